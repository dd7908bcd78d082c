"""The public C header of a library, written for people."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tilegrad.runtime import families
from tilegrad.runtime.manifest import KEYWORDS, Port, ports_of

C_TYPES = {
    "float32": "float", "float64": "double", "float16": "uint16_t", "bfloat16": "uint16_t", "bool": "uint8_t",
    **{f"{u}int{n}": f"{u}int{n}_t" for u in ("", "u") for n in (8, 16, 32, 64)},
}  # fmt: skip

_MACROS = re.compile(
    r"[A-Z][A-Z0-9_]\w*|I|errno|std(in|out|err)|complex|imaginary|noreturn|math_errhandling|linux|unix|sched_priority"
    r"|s[ait]_\w+|sigev_notify_\w+"
)
"""Names that may be macros where the header is included: capitals, and what the C library and the compiler define in small
letters (the test asks a compiler)."""
_OURS = frozenset(("ctx", "args", "batch", "get", "check"))
"""What the wrappers call their own."""


def header(manifest: Mapping[str, Any], notes: Mapping[str, str]) -> str:
    """The public header. ``notes``: a sentence (meaning, unit) by port or entry name."""
    prefix = manifest["prefix"]
    notes = {name: _comment(text) for name, text in notes.items()}
    parts = [_HEAD.replace("NEEDS", ", ".join(manifest["target"]["features"]) or "nothing beyond its base")]
    parts[0] = parts[0].replace("ARCH", manifest["target"]["arch"])
    entries = ports_of(manifest)
    for name, family in families.read(manifest).items():
        parts.append(_family(name, family, entries[family.entries[family.sizes[0]]], notes))
    parts += [_entry(prefix, entry, ports, notes) for entry, ports in entries.items()]
    parts.append(
        "/* States and hyperparameters, by name:\n" + "".join(_state_line(s, notes) for s in manifest["states"]) + " */\n"
    )
    parts.append(_TAIL)
    return "\n".join(parts).replace("PREFIX_", f"{prefix}_").replace("UPPER_", f"{prefix.upper()}_")


def identifiers(ports: tuple[Port, ...]) -> dict[str, str]:
    """A C identifier for every port's name: distinct, no keyword of C or C++, no macro, none of the wrappers' own names."""
    found: dict[str, str] = {}
    for p in ports:
        word = re.sub(r"[^A-Za-z0-9_]", "_", p.name) or "_"
        word = f"_{word}" if word[0].isdigit() else word
        if word in KEYWORDS | _OURS or _MACROS.fullmatch(word):
            word += "_"
        while word.lower() in map(str.lower, found.values()):
            word += "_"
        found[p.name] = word
    return found


def _comment(text: str) -> str:
    """Text that cannot end a comment."""
    return text.replace("*/", "* /").replace("\n", " ")


def shape_text(shape: tuple[int, ...]) -> str:
    """``[2, 3]``, or ``scalar``."""
    return f"[{', '.join(map(str, shape))}]" if shape else "scalar"


def _state_line(s: Mapping[str, Any], notes: Mapping[str, str]) -> str:
    kind = " (hyperparameter)" if s["role"] == "hyper" else ""
    note = f": {notes[s['name']]}" if s["name"] in notes else ""
    return f' *   "{_comment(s["name"])}"  {s["dtype"]} {shape_text(tuple(s["shape"]))}{kind}{note}\n'


def _entry(prefix: str, entry: str, ports: tuple[Port, ...], notes: Mapping[str, str]) -> str:
    lines = [f"/* {entry}: {notes[entry]}\n *" if entry in notes else f"/* {entry}\n *"]
    for i, p in enumerate(ports):
        note = f"; {notes[p.name]}" if p.name in notes else ""
        how = {"input": "read", "output": "written"}.get(p.role, "read and written" if p.written else "read")
        how += f"; {p.range}, anything else is UPPER_ERR_ARGUMENT" if p.range else ""
        lines.append(f' *   args[{i}]  {p.role} "{_comment(p.name)}"  {p.dtype} {shape_text(p.shape)}, {how}{note}')
    lines.append(" */")
    upper = f"{prefix}_{entry}".upper()
    names = identifiers(ports)
    lines.append("enum {")
    lines += [f"  {upper}_ARG_{names[p.name].upper()} = {i}," for i, p in enumerate(ports)]
    lines.append(f"  {upper}_NUM_ARGS = {len(ports)}\n}};")
    lines.append(f"PREFIX_API int PREFIX_{entry}(PREFIX_context *ctx, void *const *args);")
    lines.append("/* The same with the context's own states and hyperparameters. */")
    lines.append(f"PREFIX_API int PREFIX_call_{entry}({', '.join(['PREFIX_context *ctx', *typed_parameters(ports)])});\n")
    return "\n".join(lines)


def _family(name: str, family: families.Family, ports: tuple[Port, ...], notes: Mapping[str, str]) -> str:
    note = f": {notes[name]}" if name in notes else ""
    entries = ", ".join(family.entries[s] for s in family.sizes)
    how = f"by the smallest that takes it of {entries}" if family.any_batch else f"by {entries}"
    params = ", ".join(["PREFIX_context *ctx", "int64_t batch", *typed_parameters(ports)])
    rows = ", ".join(f'"{_comment(p.name)}"' for p, b in zip(ports, family.batched, strict=True) if b)
    return f"""\
/* {name}{note}
 *
 * For a batch of {family.text()}, {how}. Arguments as for {next(iter(family.entries.values()))}; with `batch` rows: {rows}.
 */
PREFIX_API int PREFIX_{name}(PREFIX_context *ctx, int64_t batch, void *const *args);
PREFIX_API int PREFIX_call_{name}({params});
"""


def typed_parameters(ports: tuple[Port, ...]) -> list[str]:
    """C declarations of an entry's inputs and outputs."""
    names, const = identifiers(ports), {"input": "const ", "output": ""}
    return [f"{const[p.role]}{C_TYPES[p.dtype]} *{names[p.name]}" for p in ports if p.role in const]


def typed_arguments(ports: tuple[Port, ...]) -> str:
    """The argument array of an entry from the parameters of its typed form; 0 for the context's own."""
    names = identifiers(ports)
    words = {"input": "(void *)(uintptr_t){}", "output": "{}"}
    return ", ".join(words.get(p.role, "0").format(names[p.name]) for p in ports)


_HEAD = """\
/* Generated by tilegrad: a compiled model for ARCH; the CPU needs NEEDS.
 *
 * Arrays are row-major, without gaps, and aligned to their elements; nothing is copied. Every entry takes a context,
 * which owns states, hyperparameters, temporaries and threads, and an array of pointers, one per port. NULL for a state
 * or hyperparameter means the context's own. Arrays that an entry writes must not overlap any other argument.
 *
 * Functions return UPPER_OK or an error code; PREFIX_last_error has the text. Nothing is allocated and no file is touched
 * inside an entry. One call at a time per context (another thread's call gets UPPER_ERR_BUSY); different contexts are
 * independent. Results are the same bits for the same number of threads. After fork the child may use its contexts.
 */
#ifndef UPPER_H
#define UPPER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef PREFIX_API
#define PREFIX_API extern
#endif

enum {
  UPPER_OK = 0,
  UPPER_ERR_CONTEXT = 1,  /* the context is NULL, destroyed or another library's */
  UPPER_ERR_BUSY = 2,     /* the context is inside a call on another thread */
  UPPER_ERR_ARGUMENT = 3, /* a NULL or misaligned array, a number out of range, an unknown name, a wrong size */
  UPPER_ERR_KERNEL = 4,   /* a kernel refused its arguments: library and header do not belong together */
  UPPER_ERR_MEMORY = 5,   /* no memory or no threads */
  UPPER_ERR_MACHINE = 6,  /* this CPU lacks a feature */
  UPPER_ERR_FILE = 7      /* a checkpoint cannot be read or written, or does not fit */
};

typedef struct PREFIX_context PREFIX_context;

/* A context with zeroed states. num_threads 0: one per core of the affinity mask. NULL on failure: PREFIX_last_error(NULL). */
PREFIX_API PREFIX_context *PREFIX_context_create(int num_threads);
/* The same in memory of yours, at least PREFIX_workspace_size(num_threads) bytes, for as long as the context lives.
 * States start with what the memory holds: clear it, or set them. */
PREFIX_API PREFIX_context *PREFIX_context_create_in(int num_threads, void *workspace, size_t bytes);
PREFIX_API size_t PREFIX_workspace_size(int num_threads);
/* Stops the threads and frees the memory. Later calls with it are refused with UPPER_ERR_CONTEXT. */
PREFIX_API int PREFIX_context_destroy(PREFIX_context *ctx);
PREFIX_API int PREFIX_num_threads(const PREFIX_context *ctx);
/* Parallel loops run on the program's own threads: run(body, data, count, 0) calls body(data) count times, at once where it
 * can, and returns when all have returned. libgomp's GOMP_parallel may be given as it is. NULL: the context's threads again.
 * The results are the same bits. */
PREFIX_API int PREFIX_use_threads(PREFIX_context *ctx,
                                  void (*run)(void (*body)(void *), void *data, unsigned count, unsigned flags));
/* What went wrong in this context's last call; with NULL, in this thread's last attempt to create one. */
PREFIX_API const char *PREFIX_last_error(const PREFIX_context *ctx);
"""

_TAIL = """\
/* The array itself (valid until the context is destroyed), its size in *bytes unless that is NULL; NULL for unknown names. */
PREFIX_API void *PREFIX_state(PREFIX_context *ctx, const char *name, size_t *bytes);
PREFIX_API int PREFIX_get_state(PREFIX_context *ctx, const char *name, void *to, size_t bytes);
PREFIX_API int PREFIX_set_state(PREFIX_context *ctx, const char *name, const void *from, size_t bytes);
/* A scalar hyperparameter (learning rate, ...), converted to its type. */
PREFIX_API int PREFIX_set_hyper(PREFIX_context *ctx, const char *name, double value);
/* Starts the random operators (dropout) anew: the same seed, the same numbers. UPPER_ERR_ARGUMENT when the model has none. */
PREFIX_API int PREFIX_seed(PREFIX_context *ctx, int64_t seed);
/* All states and hyperparameters to and from a safetensors file. Loading needs every state and ignores other arrays. */
PREFIX_API int PREFIX_save(PREFIX_context *ctx, const char *path);
PREFIX_API int PREFIX_load(PREFIX_context *ctx, const char *path);
/* Seconds per run, for each of `repeat` series of `number` runs of the entry with that index (order of this header). */
PREFIX_API int PREFIX_benchmark(PREFIX_context *ctx, unsigned entry, void *const *args, int number, int repeat, double *seconds);
/* Seconds of every kernel call: `repeat` rows of as many numbers as the manifest lists calls. */
PREFIX_API int PREFIX_profile(PREFIX_context *ctx, unsigned entry, void *const *args, int repeat, double *seconds);
/* What the library contains, as JSON. */
PREFIX_API const char *PREFIX_manifest(void);

#ifdef __cplusplus
}
#endif
#endif
"""
