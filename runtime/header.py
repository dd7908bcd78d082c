"""What a C programmer gets with a library: the header, an example program, a CMake file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tilegrad.runtime.manifest import Port, ports_of

_C_TYPES = {
    "float32": "float", "float64": "double", "float16": "uint16_t", "bfloat16": "uint16_t", "bool": "uint8_t",
    **{f"{u}int{n}": f"{u}int{n}_t" for u in ("", "u") for n in (8, 16, 32, 64)},
}  # fmt: skip


def header(manifest: Mapping[str, Any], notes: Mapping[str, str]) -> str:
    """The public header. ``notes``: a sentence (meaning, unit) by port or entry name."""
    prefix = manifest["prefix"]
    parts = [_HEAD.replace("NEEDS", ", ".join(manifest["target"]["features"]) or "nothing beyond its base")]
    parts[0] = parts[0].replace("ARCH", manifest["target"]["arch"])
    parts += [_entry(prefix, entry, ports, notes) for entry, ports in ports_of(manifest).items()]
    parts.append(
        "/* States and hyperparameters, by name:\n" + "".join(_state_line(s, notes) for s in manifest["states"]) + " */\n"
    )
    parts.append(_TAIL)
    return "\n".join(parts).replace("PREFIX_", f"{prefix}_").replace("UPPER_", f"{prefix.upper()}_")


def _identifier(name: str) -> str:
    word = re.sub(r"\W", "_", name)
    return f"_{word}" if word[0].isdigit() else word


def _shape(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]" if shape else "scalar"


def _state_line(s: Mapping[str, Any], notes: Mapping[str, str]) -> str:
    kind = " (hyperparameter)" if s["role"] == "hyper" else ""
    note = f": {notes[s['name']]}" if s["name"] in notes else ""
    return f' *   "{s["name"]}"  {s["dtype"]} {_shape(tuple(s["shape"]))}{kind}{note}\n'


def _entry(prefix: str, entry: str, ports: tuple[Port, ...], notes: Mapping[str, str]) -> str:
    lines = [f"/* {entry}: {notes[entry]}\n *" if entry in notes else f"/* {entry}\n *"]
    for i, p in enumerate(ports):
        note = f"; {notes[p.name]}" if p.name in notes else ""
        how = {"input": "read", "output": "written"}.get(p.role, "read and written" if p.written else "read")
        lines.append(f' *   args[{i}]  {p.role} "{p.name}"  {p.dtype} {_shape(p.shape)}, {how}{note}')
    lines.append(" */")
    upper = f"{prefix}_{entry}".upper()
    lines.append("enum {")
    lines += [f"  {upper}_ARG_{_identifier(p.name).upper()} = {i}," for i, p in enumerate(ports)]
    lines.append(f"  {upper}_NUM_ARGS = {len(ports)}\n}};")
    lines.append(f"PREFIX_API int PREFIX_{entry}(PREFIX_context *ctx, void *const *args);\n")
    lines.append(_typed_call(entry, ports))
    return "\n".join(lines)


def _typed_call(entry: str, ports: tuple[Port, ...]) -> str:
    """An inline function with typed arguments; states and hyperparameters are the context's own."""
    given = [p for p in ports if p.role in ("input", "output")]
    const = {"input": "const ", "output": ""}
    params = ", ".join(["PREFIX_context *ctx"] + [f"{const[p.role]}{_C_TYPES[p.dtype]} *{_identifier(p.name)}" for p in given])
    args = ", ".join(
        f"(void *)(uintptr_t){_identifier(p.name)}" if p.role == "input" else _identifier(p.name) if p.role == "output" else "0"
        for p in ports
    )
    return (
        f"/* The same with the context's own states. */\nstatic inline int PREFIX_call_{entry}({params}) {{\n"
        f"  void *args[] = {{{args}}};\n  return PREFIX_{entry}(ctx, args);\n}}\n"
    )


def example(manifest: Mapping[str, Any]) -> str:
    """A program that loads the parameters, reads inputs from files (or makes some up) and calls the first entry."""
    prefix = manifest["prefix"]
    entry, ports = next(iter(ports_of(manifest).items()))
    given = [p for p in ports if p.role in ("input", "output")]
    lines = [_EXAMPLE_HEAD]
    reads = []
    inputs = 0
    for p in given:
        name, count = f"{p.role}_{_identifier(p.name)}", " * ".join(map(str, p.shape)) or "1"
        lines.append(f"static {_C_TYPES[p.dtype]} {name}[{count}]; /* {p.dtype} {_shape(p.shape)} */")
        if p.role == "input":
            inputs += 1
            value = "(float)(i % 7) / 7.0f - 0.4f" if p.dtype == "float32" else "0"
            reads.append(
                f"  if (argc > {inputs + 1}) read_file(argv[{inputs + 1}], {name}, sizeof {name});\n"
                f"  else for (size_t i = 0; i < sizeof {name} / sizeof *{name}; ++i) {name}[i] = {value};"
            )
    outputs = [p for p in given if p.role == "output"]
    call = ", ".join(["ctx"] + [f"{p.role}_{_identifier(p.name)}" for p in given])
    show = [f'    printf("{_string(p.name)} %.9g\\n", (double)output_{_identifier(p.name)}[0]);' for p in outputs]
    lines.append(
        _EXAMPLE_MAIN.replace("READS", "\n".join(reads))
        .replace("ENTRY", entry)
        .replace("CALL", call)
        .replace("SHOW", "\n".join(show))
    )
    return "\n".join(lines).replace("PREFIX_", f"{prefix}_").replace("UPPER_", f"{prefix.upper()}_").replace("PREFIX", prefix)


def _string(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")


def cmake(manifest: Mapping[str, Any]) -> str:
    """A CMake project: imported targets for the shared and the static library, and the example."""
    return _CMAKE.replace("PREFIX", manifest["prefix"])


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
  UPPER_ERR_ARGUMENT = 3, /* a NULL or misaligned array, an unknown name, a wrong size */
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
/* What went wrong in this context's last call; with NULL, in this thread's last attempt to create one. */
PREFIX_API const char *PREFIX_last_error(const PREFIX_context *ctx);
"""

_TAIL = """\
/* The array itself (valid until the context is destroyed), its size in *bytes unless that is NULL; NULL for unknown names. */
PREFIX_API void *PREFIX_state(PREFIX_context *ctx, const char *name, size_t *bytes);
PREFIX_API int PREFIX_get_state(PREFIX_context *ctx, const char *name, void *to, size_t bytes);
PREFIX_API int PREFIX_set_state(PREFIX_context *ctx, const char *name, const void *from, size_t bytes);
/* A scalar hyperparameter (learning rate, seed, ...), converted to its type. */
PREFIX_API int PREFIX_set_hyper(PREFIX_context *ctx, const char *name, double value);
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

_EXAMPLE_HEAD = """\
/* Calls the library: ./main [number of calls [a raw file for each input ...]] */
#include "PREFIX.h"

#include <stdio.h>
#include <stdlib.h>
"""

_EXAMPLE_MAIN = """
static void fail(const char *what, const char *why) {
  fprintf(stderr, "%s: %s\\n", what, why);
  exit(1);
}

static void read_file(const char *name, void *to, size_t bytes) {
  FILE *file = fopen(name, "rb");
  if (!file || fread(to, 1, bytes, file) != bytes) fail(name, "not enough bytes");
  fclose(file);
}

int main(int argc, char **argv) {
  int calls = argc > 1 ? atoi(argv[1]) : 3;
  PREFIX_context *ctx = PREFIX_context_create(0);
  if (!ctx) fail("context", PREFIX_last_error(NULL));
  if (PREFIX_load(ctx, "parameters.safetensors")) fail("parameters", PREFIX_last_error(ctx));
READS
  for (int n = 0; n < calls; ++n) {
    if (PREFIX_call_ENTRY(CALL)) fail("ENTRY", PREFIX_last_error(ctx));
SHOW
  }
  if (PREFIX_save(ctx, "checkpoint.safetensors")) fail("checkpoint", PREFIX_last_error(ctx));
  return PREFIX_context_destroy(ctx);
}
"""

_CMAKE = """\
# cmake -B build && cmake --build build; then run build/main in this folder.
cmake_minimum_required(VERSION 3.15)
project(PREFIX_example C)
set(CMAKE_C_STANDARD 11)
find_package(Threads REQUIRED)

add_library(PREFIX SHARED IMPORTED)
set_target_properties(PREFIX PROPERTIES
  IMPORTED_LOCATION ${CMAKE_CURRENT_SOURCE_DIR}/libPREFIX.so
  INTERFACE_INCLUDE_DIRECTORIES ${CMAKE_CURRENT_SOURCE_DIR})

add_library(PREFIX_static STATIC IMPORTED)
set_target_properties(PREFIX_static PROPERTIES
  IMPORTED_LOCATION ${CMAKE_CURRENT_SOURCE_DIR}/libPREFIX.a
  INTERFACE_INCLUDE_DIRECTORIES ${CMAKE_CURRENT_SOURCE_DIR}
  INTERFACE_LINK_LIBRARIES "m;Threads::Threads")

add_executable(main main.c)
target_link_libraries(main PRIVATE PREFIX)
"""
