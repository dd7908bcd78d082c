"""ELF objects without binutils: the machine they are for, private names for static linking, archives.

A static library must not clash with another that holds equally named kernels, so every symbol that only its own
objects share gets the library's prefix and hidden visibility.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from tilegrad._base.errors import LibraryError

_MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64"}
_SYMTAB, _HIDDEN, _LOCAL = 2, 2, 0
_SECTION = struct.Struct("<IIQQQQIIQQ")  # name, type, flags, address, offset, size, link, info, align, entry size
_SYMBOL = struct.Struct("<IBBHQQ")  # name, info, other, section, value, size


class Symbol(NamedTuple):
    """A symbol that other objects see, or that this one wants."""

    name: str
    defined: bool


def machine(data: bytes) -> str | None:
    """The architecture of a 64-bit little-endian ELF file, None when it is no such file."""
    if len(data) < 64 or data[:6] != b"\x7fELF\x02\x01":
        return None
    return _MACHINES.get(struct.unpack_from("<H", data, 18)[0], "unknown")


def symbols(data: bytes) -> list[Symbol]:
    """Global and weak symbols of a relocatable object."""
    return [Symbol(name, entry[3] != 0) for _, entry, name in _globals(data)]


def rename(data: bytes, names: Mapping[str, str]) -> bytes:
    """The object with global symbols renamed and, where defined, hidden."""
    out = bytearray(data)
    table, link, headers = _symbol_table(data)
    strings = bytearray(data[link[4] : link[4] + link[5]])
    for at, entry, name in _globals(data):
        if name not in names:
            continue
        new = len(strings)
        strings += names[name].encode() + b"\0"
        _SYMBOL.pack_into(out, at, new, entry[1], _HIDDEN if entry[3] else entry[2], *entry[3:])
    out += b"\0" * (-len(out) % 8)
    link[4], link[5] = len(out), len(strings)
    _SECTION.pack_into(out, headers + table[6] * _SECTION.size, *link)
    return bytes(out + strings)


def archive(members: Mapping[str, bytes]) -> bytes:
    """A static library (System V ``ar`` with symbol index), the same bytes for the same members."""
    names = b"".join(f"{name}/\n".encode() for name in members)
    index = [(s.name, member) for member, data in members.items() for s in symbols(data) if s.defined]
    text = b"".join(name.encode() + b"\0" for name, _ in index)
    table_size = 4 + 4 * len(index) + len(text)
    at = 8 + 60 + _even(table_size) + 60 + _even(len(names))
    places, name_at, body = {}, 0, b""
    for name, data in members.items():
        places[name] = at + len(body)
        body += _member(f"/{name_at}", data)
        name_at += len(name) + 2
    table = struct.pack(f">{len(index) + 1}I", len(index), *(places[m] for _, m in index)) + text
    return b"!<arch>\n" + _member("/", table) + _member("//", names) + body


def private_names(objects: Iterable[bytes], keep: Collection[str], prefix: str) -> dict[str, str]:
    """New names for everything that ``objects`` define and that is not public."""
    return {s.name: f"{prefix}__{s.name}" for data in objects for s in symbols(data) if s.defined and s.name not in keep}


def _even(n: int) -> int:
    return n + n % 2


def _member(name: str, data: bytes) -> bytes:
    return f"{name:<16}{0:<12}{0:<6}{0:<6}{'644':<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2)


def _symbol_table(data: bytes) -> tuple[list[int], list[int], int]:
    """(symbol table's section header, its string table's, where the headers begin)."""
    if machine(data) is None:
        raise LibraryError("object file", "no 64-bit little-endian ELF file", "an object that the C compiler made")
    headers = struct.unpack_from("<Q", data, 40)[0]
    count = struct.unpack_from("<H", data, 60)[0]
    sections = [list(_SECTION.unpack_from(data, headers + i * _SECTION.size)) for i in range(count)]
    table = next(s for s in sections if s[1] == _SYMTAB)
    return table, sections[table[6]], headers


def _globals(data: bytes) -> list[tuple[int, tuple[int, ...], str]]:
    """(file offset, entry, name) of every symbol that is not local."""
    table, link, _ = _symbol_table(data)
    found = []
    for at in range(table[4], table[4] + table[5], _SYMBOL.size):
        entry = _SYMBOL.unpack_from(data, at)
        if entry[1] >> 4 != _LOCAL and entry[0]:
            start = link[4] + entry[0]
            found.append((at, entry, data[start : data.index(b"\0", start)].decode()))
    return found
