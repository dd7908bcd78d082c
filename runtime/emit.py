"""The generated C file of a library: tables that say what each entry calls on which buffers, and the public functions."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilegrad._base.errors import UsageError
from tilegrad.runtime import families
from tilegrad.runtime.header import typed_arguments, typed_parameters
from tilegrad.runtime.manifest import Port, ports_of
from tilegrad.runtime.program import RANDOM, Buffer, ByRows, Call, Program, numpy_dtype

ALIGN = 64
MAX_ARGS = 128
"""TGRT_MAX_ARGS of the C runtime."""
INLINE_CONSTANTS = 4096
"""Up to this many bytes of constants are C text; more are taken in from a file by the assembler."""


@dataclass(frozen=True)
class Kernel:
    """A compiled kernel as the tables see it: its symbol without ``__tvm_ffi_``, and its scratch."""

    symbol: str
    scratch_bytes: int = 0


@dataclass
class Source:
    """C text and the constants it takes in from ``constants.bin`` (empty when they are in the text)."""

    text: str
    constants: bytes
    exports: tuple[str, ...]


def emit(
    programs: Mapping[str, Program], kernels: Mapping[str, Kernel], manifest: Mapping[str, Any], inline: int = INLINE_CONSTANTS
) -> Source:
    """Generate the tables. Raises UsageError when a temporary does not fit the arena, or a buffer is no port that must be one."""
    w = _Writer(manifest["prefix"])
    offsets = _state_offsets(manifest["states"])
    for name, program in programs.items():
        w.entry(name, program, kernels, offsets)
    return w.finish(manifest, offsets, inline)


def _round_up(n: int) -> int:
    return -(-n // ALIGN) * ALIGN


def _nbytes(state: Mapping[str, Any]) -> int:
    return Buffer(state["name"], tuple(state["shape"]), state["dtype"], state["role"]).nbytes


def _state_offsets(states: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    offsets, end = {}, 0
    for s in states:
        offsets[s["name"]] = end
        end += _round_up(_nbytes(s))
    return offsets


def _string(text: str) -> str:
    return json.dumps(text).replace("??", '?""?')


@dataclass
class _Writer:
    prefix: str
    lines: list[str] = field(default_factory=list)
    entries: list[str] = field(default_factory=list)
    ints: dict[tuple[int, ...], int] = field(default_factory=dict)
    symbols: dict[str, None] = field(default_factory=dict)
    constants: dict[bytes, int] = field(default_factory=dict)
    constant_bytes: int = 0
    num_args: int = 0
    num_by_rows: int = 0
    arena_bytes: int = 0

    def entry(self, name: str, program: Program, kernels: Mapping[str, Kernel], offsets: Mapping[str, int]) -> None:
        """Tables of one entry: buffers, ports, calls, arguments."""
        views = {b.name: _base(b, program) for b in program.buffers.values() if b.role == "view"}
        real = [b for b in program.buffers.values() if b.name not in views or b.nbytes != views[b.name].nbytes]
        index = {b.name: i for i, b in enumerate(real)}
        index |= {name: index[base.name] for name, base in views.items() if name not in index}
        buffers = [self._buffer(b, offsets, program) for b in real]
        scratch: dict[int, int] = {}
        calls: list[str] = []
        args: list[int] = []
        for call in program.calls:
            kernel = kernels[call.kernel]
            these = [index[a] for a in call.args]
            size, by_rows = kernel.scratch_bytes, "0"
            if call.by_rows:
                size, by_rows = self._by_rows(call, call.by_rows, kernel, kernels[call.by_rows.single])
            if size:
                if size not in scratch:
                    scratch[size] = len(buffers)
                    at = _round_up(program.arena_bytes)
                    self.arena_bytes = max(self.arena_bytes, at + size)
                    buffers.append(_row("TG_TEMP", size, at))
                these.append(scratch[size])
            self.symbols[kernel.symbol] = None
            calls.append(f"{{__tvm_ffi_{kernel.symbol}, {_string(call.kernel)}, {len(args)}, {len(these)}, {by_rows}}}")
            args += these
        uses = [[at for at, a in enumerate(args) if a == index[p]] for p in program.ports]
        starts = itertools.accumulate(map(len, uses), initial=0)
        n = len(self.entries)
        ports = [
            f"{{{_string(p)}, {index[p]}, {at}, {len(u)}, {self._limits(program, program.buffers[p], f'{n}_{i}')}}}"
            for i, (p, at, u) in enumerate(zip(program.ports, starts, uses, strict=False))
        ]
        self._table(f"static const tgrt_buffer buffers_{n}", buffers)
        self._table(f"static const tgrt_port ports_{n}", ports)
        self._table(f"static const tgrt_call calls_{n}", calls)
        self._numbers(f"args_{n}", args)
        self._numbers(f"uses_{n}", [at for u in uses for at in u])
        self.entries.append(
            f"{{{_string(name)}, buffers_{n}, ports_{n}, calls_{n}, args_{n}, uses_{n}, "
            f"{len(ports)}, {len(calls)}, {len(args)}, {self.num_args}, {program.batch}}}"
        )
        self.num_args += len(args)

    def _by_rows(self, call: Call, by: ByRows, kernel: Kernel, single: Kernel) -> tuple[int, str]:
        """(bytes of scratch of all parts, C expression of the table that says how the call goes through the rows)."""
        size = _round_up(max(kernel.scratch_bytes, single.scratch_bytes))
        steps = [*by.row_bytes, 0] if size else [*by.row_bytes]
        if len(steps) > MAX_ARGS:
            raise UsageError(f"kernel '{call.kernel}' by rows", f"{len(steps)} arguments", f"at most {MAX_ARGS}")
        n, self.num_by_rows = self.num_by_rows, self.num_by_rows + 1
        self.symbols[single.symbol] = None
        self._numbers(f"row_bytes_{n}", steps, "uint64_t")
        takes = ", ".join(str(len(by.row_bytes) + bool(k.scratch_bytes)) for k in (kernel, single))
        row = f"{{__tvm_ffi_{single.symbol}, row_bytes_{n}, {by.rows}, {size}u, {takes}, {by.parts}}}"
        self._table(f"static const tgrt_by_rows by_rows_{n}", [row])
        return size * by.parts, f"by_rows_{n}"

    def _limits(self, program: Program, b: Buffer, where: str) -> str:
        """C expression of the table of what an input may hold."""
        if b.limits is None:
            return "0"
        count, by_batch = b.nbytes // _element_bytes(b), int(program.batch > 0 and b.shape[:1] == (program.batch,))
        low, high, also = b.limits
        row = f"{{{low}, {high}, {also}, {count}u, {by_batch}, {int(b.dtype.startswith('int'))}}}"
        self._table(f"static const tgrt_limits limits_{where}", [row])
        return f"limits_{where}"

    def _buffer(self, b: Buffer, offsets: Mapping[str, int], program: Program) -> str:
        if b.role == "const":
            return _row("TG_CONST", b.nbytes, 0, _element_bytes(b), self._constant(b))
        if b.role == "batch":
            return _row("TG_BATCH", b.nbytes, 0)
        if b.role in ("temp", "view"):
            at = b.offset if b.role == "temp" else _sum(b.offset, _base(b, program).offset)
            if at is None or at % ALIGN or at + b.nbytes > program.arena_bytes:
                where = f"program '{program.name}', temporary '{b.name}'"
                raise UsageError(where, f"offset {at}", f"a multiple of {ALIGN} within {program.arena_bytes} bytes")
            self.arena_bytes = max(self.arena_bytes, program.arena_bytes)
            return _row("TG_TEMP", b.nbytes, at)
        if b.name not in program.ports:
            raise UsageError(
                f"program '{program.name}', {b.role} '{b.name}'", "a buffer that is no port", "every such buffer among the ports"
            )
        return _row(f"TG_{b.role.upper()}", b.nbytes, offsets.get(b.name, 0), _element_bytes(b))

    def _ints(self, values: tuple[int, ...]) -> int:
        if values not in self.ints:
            self.ints[values] = sum(map(len, self.ints)) if values else 0
        return self.ints[values]

    def _constant(self, b: Buffer) -> str:
        if b.data is None or b.data.shape != b.shape or b.data.nbytes != b.nbytes:
            got = "no data" if b.data is None else f"{b.data.dtype}{list(b.data.shape)}"
            raise UsageError(f"constant '{b.name}'", got, f"{b.dtype}{list(b.shape)}")
        data = np.ascontiguousarray(b.data).tobytes()
        if data not in self.constants:
            self.constants[data] = self.constant_bytes
            self.constant_bytes += _round_up(len(data))
        return f"tgrt_constants + {self.constants[data]}"

    def _family(self, n: int, name: str, family: families.Family, manifest: Mapping[str, Any]) -> str:
        """Tables of one family; its row."""
        order = list(manifest["entries"])
        self._numbers(f"family_entries_{n}", [order.index(family.entries[s]) for s in family.sizes])
        self._numbers(f"family_batches_{n}", family.sizes, "int64_t")
        return (
            f"{{{_string(name)}, family_entries_{n}, family_batches_{n}, {_string(family.text())}, "
            f"{len(family.sizes)}, {int(family.any_batch)}}}"
        )

    def _function(self, template: str, name: str, index: int, ports: tuple[Port, ...]) -> None:
        """A public function and its typed form."""
        params = "".join(f", {p}" for p in typed_parameters(ports))
        text = template.replace("PREFIX", self.prefix).replace("NAME", name).replace("INDEX", str(index))
        self.lines.append(text.replace("PARAMS", params).replace("GIVEN", typed_arguments(ports) or "0"))

    def _table(self, head: str, rows: list[str]) -> None:
        self.lines.append(
            f"{head}[] = {{" + ("" if len(rows) > 1 else " ") + ",".join(f"\n    {r}" for r in rows or ["0"]) + "};\n"
        )

    def _numbers(self, name: str, values: list[int], kind: str = "uint32_t") -> None:
        self.lines.append(f"static const {kind} {name}[] = {{{', '.join(map(str, values or [0]))}}};\n")

    def finish(self, manifest: Mapping[str, Any], offsets: Mapping[str, int], inline_limit: int) -> Source:
        """The whole file."""
        states = [
            f"{{{_string(s['name'])}, {_string(s['dtype'])}, ints + {self._ints(tuple(s['shape']))}, {len(s['shape'])}, "
            f"TG_{s['role'].upper()}, {_nbytes(s)}u, {offsets[s['name']]}u}}"
            for s in manifest["states"]
        ]
        blob = b"".join(data.ljust(_round_up(len(data)), b"\0") for data in self.constants)
        inline = len(blob) <= inline_limit
        head = [
            "/* Generated by tilegrad. What each entry calls, on which buffers. */",
            '#include "runtime.h"\n',
            *(f"TG_HIDDEN int32_t __tvm_ffi_{s}(void *, void *, int32_t, void *);" for s in self.symbols),
            "",
            *_constants(blob, inline),
            "static const int64_t ints[] = {" + ", ".join(str(v) for values in self.ints for v in values or ()) + "};\n"
            if any(self.ints)
            else "static const int64_t ints[] = {0};\n",
        ]
        self._table("static const tgrt_state states", states)
        self._table("static const tgrt_entry entries", self.entries)
        found = families.read(manifest)
        rows = [self._family(i, name, family, manifest) for i, (name, family) in enumerate(found.items())]
        self._table("static const tgrt_family families", rows or ["{0, 0, 0, 0, 0, 0}"])
        text = json.dumps(manifest, separators=(",", ":"))
        features = ",".join(manifest["target"]["features"])
        end_of_states = sum(_round_up(_nbytes(s)) for s in manifest["states"])
        self.lines += [
            f"static const char manifest[] =\n    {_long_string(text)};\n",
            f"static const tgrt_library library = {{{_string(self.prefix)}, manifest, {_string(features)}, entries, states, "
            f"families, {len(self.entries)}, {len(states)}, {self.num_args}, "
            f"{end_of_states}u, {self.arena_bytes}u}};\n",
            _FUNCTIONS.replace("PREFIX", self.prefix).replace("RANDOM", RANDOM),
        ]
        ports_by_entry = ports_of(manifest)
        for i, (name, ports) in enumerate(ports_by_entry.items()):
            self._function(_ENTRY, name, i, ports)
        for i, (name, family) in enumerate(found.items()):
            self._function(_FAMILY, name, i, ports_by_entry[family.entries[family.sizes[0]]])
        body = "\n".join(head + self.lines) + "\n"
        exports = [line.split("(")[0].split(" ")[-1].lstrip("*") for line in body.splitlines() if line.startswith("TG_PUBLIC ")]
        return Source(body, b"" if inline else blob, tuple(exports))


def _base(view: Buffer, program: Program) -> Buffer:
    """The buffer whose memory a view shows."""
    base = program.buffers.get(view.view_of or "")
    where = f"program '{program.name}', view '{view.name}'"
    if base is None or base.role == "view" or base.dtype != view.dtype:
        raise UsageError(where, f"a view of {view.view_of!r}", "a buffer of the same dtype that is not itself a view")
    start = view.offset or 0
    if base.nbytes != view.nbytes and (base.role != "temp" or start + view.nbytes > base.nbytes):
        got = f"{view.nbytes} bytes from {start} on of {base.role} '{base.name}'"
        raise UsageError(where, got, f"all of its {base.nbytes} bytes, or a part of a temporary")
    return base


def _sum(a: int | None, b: int | None) -> int | None:
    """a + b where both are known."""
    return None if a is None or b is None else a + b


def _element_bytes(b: Buffer) -> int:
    return np.dtype(numpy_dtype(b.dtype)).itemsize


def _row(role: str, nbytes: int, offset: int, align: int = 1, data: str = "0") -> str:
    return f"{{{data}, {nbytes}u, {offset}u, {role}, {align}}}"


def _constants(blob: bytes, inline: bool) -> list[str]:
    if not blob:
        return []
    if inline:
        rows = [",".join(map(str, blob[i : i + 32])) for i in range(0, len(blob), 32)]
        return ["static const _Alignas(64) unsigned char tgrt_constants[] = {\n    " + ",\n    ".join(rows) + "};\n"]
    return [
        '__asm__(".pushsection .rodata\\n.balign 64\\n.globl tgrt_constants\\n.hidden tgrt_constants\\ntgrt_constants:\\n"',
        '        ".incbin \\"constants.bin\\"\\n.popsection\\n");',
        "extern TG_HIDDEN const unsigned char tgrt_constants[];\n",
    ]


def _long_string(text: str) -> str:
    """C's literals may be limited to 4095 characters; neighbours are joined."""
    return "\n    ".join(_string(text[i : i + 100]) for i in range(0, len(text), 100))


_ENTRY = """\
TG_PUBLIC int PREFIX_NAME(tgrt_context *ctx, void *const *args) {
  return tgrt_run(&library, ctx, INDEX, args);
}
TG_PUBLIC int PREFIX_call_NAME(tgrt_context *ctxPARAMS) {
  void *args[] = {GIVEN};
  return tgrt_run(&library, ctx, INDEX, args);
}"""

_FAMILY = """\
TG_PUBLIC int PREFIX_NAME(tgrt_context *ctx, int64_t batch, void *const *args) {
  return tgrt_run_batch(&library, ctx, INDEX, batch, args);
}
TG_PUBLIC int PREFIX_call_NAME(tgrt_context *ctx, int64_t batchPARAMS) {
  void *args[] = {GIVEN};
  return tgrt_run_batch(&library, ctx, INDEX, batch, args);
}"""

_FUNCTIONS = """\
TG_PUBLIC size_t PREFIX_workspace_size(int num_threads) {
  return tgrt_workspace_size(&library, num_threads);
}
TG_PUBLIC tgrt_context *PREFIX_context_create(int num_threads) {
  return tgrt_context_create(&library, num_threads, 0, 0);
}
TG_PUBLIC tgrt_context *PREFIX_context_create_in(int num_threads, void *workspace, size_t bytes) {
  return tgrt_context_create(&library, num_threads, workspace, bytes);
}
TG_PUBLIC int PREFIX_context_destroy(tgrt_context *ctx) {
  return tgrt_context_destroy(&library, ctx);
}
TG_PUBLIC const char *PREFIX_last_error(const tgrt_context *ctx) {
  return tgrt_last_error(&library, ctx);
}
TG_PUBLIC int PREFIX_num_threads(const tgrt_context *ctx) {
  return tgrt_num_threads(&library, ctx);
}
TG_PUBLIC int PREFIX_use_threads(tgrt_context *ctx, tgrt_parallel run) {
  return tgrt_use_threads(&library, ctx, run);
}
TG_PUBLIC const char *PREFIX_manifest(void) {
  return manifest;
}
TG_PUBLIC void *PREFIX_state(tgrt_context *ctx, const char *name, size_t *bytes) {
  return tgrt_state_data(&library, ctx, name, bytes);
}
TG_PUBLIC int PREFIX_get_state(tgrt_context *ctx, const char *name, void *to, size_t bytes) {
  return tgrt_state_get(&library, ctx, name, to, bytes);
}
TG_PUBLIC int PREFIX_set_state(tgrt_context *ctx, const char *name, const void *from, size_t bytes) {
  return tgrt_state_set(&library, ctx, name, from, bytes);
}
TG_PUBLIC int PREFIX_set_hyper(tgrt_context *ctx, const char *name, double value) {
  return tgrt_hyper_set(&library, ctx, name, value);
}
TG_PUBLIC int PREFIX_seed(tgrt_context *ctx, int64_t seed) {
  const int64_t start[2] = {seed, 0};
  return tgrt_state_set(&library, ctx, "RANDOM", start, sizeof start);
}
TG_PUBLIC int PREFIX_save(tgrt_context *ctx, const char *path) {
  return tgrt_checkpoint_save(&library, ctx, path);
}
TG_PUBLIC int PREFIX_load(tgrt_context *ctx, const char *path) {
  return tgrt_checkpoint_load(&library, ctx, path);
}
TG_PUBLIC int PREFIX_benchmark(tgrt_context *ctx, unsigned entry, void *const *args, int number, int repeat, double *seconds) {
  return tgrt_benchmark(&library, ctx, entry, args, number, repeat, seconds);
}
TG_PUBLIC int PREFIX_profile(tgrt_context *ctx, unsigned entry, void *const *args, int repeat, double *seconds) {
  return tgrt_profile(&library, ctx, entry, args, repeat, seconds);
}
"""
