"""What an exported package shows besides its header: a C program that calls the library, and a CMake project."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilegrad.runtime.header import C_TYPES, identifiers, shape_text
from tilegrad.runtime.manifest import ports_of


def example(manifest: Mapping[str, Any]) -> str:
    """A program that loads the parameters, reads inputs from files (or makes some up) and calls the first entry."""
    prefix = manifest["prefix"]
    entry, ports = next(iter(ports_of(manifest).items()))
    names = identifiers(ports)
    given = [p for p in ports if p.role in ("input", "output")]
    lines = [_EXAMPLE_HEAD]
    reads = []
    inputs = 0
    for p in given:
        name, count = f"{p.role}_{names[p.name]}", " * ".join(map(str, p.shape)) or "1"
        lines.append(f"static {C_TYPES[p.dtype]} {name}[{count}]; /* {p.dtype} {shape_text(p.shape)} */")
        if p.role == "input":
            inputs += 1
            value = "(float)(i % 7) / 7.0f - 0.4f" if p.dtype == "float32" else "0"
            reads.append(
                f"  if (argc > {inputs + 1}) read_file(argv[{inputs + 1}], {name}, sizeof {name});\n"
                f"  else for (size_t i = 0; i < sizeof {name} / sizeof *{name}; ++i) {name}[i] = {value};"
            )
    outputs = [p for p in given if p.role == "output"]
    call = ", ".join(["ctx"] + [f"{p.role}_{names[p.name]}" for p in given])
    show = [f'    printf("{_string(p.name)} %.9g\\n", (double)output_{names[p.name]}[0]);' for p in outputs]
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

add_library(PREFIX_shared SHARED IMPORTED)
set_target_properties(PREFIX_shared PROPERTIES
  IMPORTED_LOCATION ${CMAKE_CURRENT_SOURCE_DIR}/libPREFIX.so
  INTERFACE_INCLUDE_DIRECTORIES ${CMAKE_CURRENT_SOURCE_DIR})

add_library(PREFIX_static STATIC IMPORTED)
set_target_properties(PREFIX_static PROPERTIES
  IMPORTED_LOCATION ${CMAKE_CURRENT_SOURCE_DIR}/libPREFIX.a
  INTERFACE_INCLUDE_DIRECTORIES ${CMAKE_CURRENT_SOURCE_DIR}
  INTERFACE_LINK_LIBRARIES "m;Threads::Threads")

add_executable(main main.c)
target_link_libraries(main PRIVATE PREFIX_shared)
"""
