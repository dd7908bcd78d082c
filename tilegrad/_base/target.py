"""Target: the machine that code is made for, as facts (features, vector registers, caches, threads)."""

from __future__ import annotations

import contextlib
import difflib
import itertools
import json
import platform
import re
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from tilegrad._base import settings
from tilegrad._base.errors import TargetError

# Linux's /proc/cpuinfo flag -> LLVM's feature name, for the features that code generation may use.
_X86_FLAGS = {
    "sse4_2": "sse4.2", "popcnt": "popcnt", "avx": "avx", "avx2": "avx2", "fma": "fma", "f16c": "f16c", "bmi1": "bmi",
    "bmi2": "bmi2", "abm": "lzcnt", "movbe": "movbe", "avx512f": "avx512f", "avx512bw": "avx512bw", "avx512dq": "avx512dq",
    "avx512vl": "avx512vl", "avx512cd": "avx512cd", "avx512_vnni": "avx512vnni", "avx512_bf16": "avx512bf16",
    "avx_vnni": "avxvnni", "amx_tile": "amx-tile", "amx_bf16": "amx-bf16", "amx_int8": "amx-int8", "avx512_fp16": "avx512fp16",
}  # fmt: skip
_ARM_FLAGS = {
    "asimd": "neon", "asimdhp": "fullfp16", "asimddp": "dotprod", "i8mm": "i8mm", "bf16": "bf16", "sve": "sve", "sve2": "sve2",
}  # fmt: skip

_V2 = ("sse4.2", "popcnt")
_V3 = (*_V2, "avx", "avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
# Names a person may write -> (arch, features). CPU names stand for the features that all such cores have.
_KNOWN: dict[str, tuple[str, tuple[str, ...]]] = {
    "x86-64": ("x86_64", ()), "x86-64-v2": ("x86_64", _V2), "x86-64-v3": ("x86_64", _V3), "x86-64-v4": ("x86_64", _V4),
    "haswell": ("x86_64", _V3), "broadwell": ("x86_64", _V3), "skylake": ("x86_64", _V3), "znver1": ("x86_64", _V3),
    "znver2": ("x86_64", _V3), "znver3": ("x86_64", _V3), "alderlake": ("x86_64", (*_V3, "avxvnni")),
    "skylake-avx512": ("x86_64", _V4), "cascadelake": ("x86_64", (*_V4, "avx512vnni")),
    "icelake-server": ("x86_64", (*_V4, "avx512vnni")),
    "sapphirerapids": ("x86_64", (*_V4, "avx512vnni", "avx512bf16")), "znver4": ("x86_64", (*_V4, "avx512vnni", "avx512bf16")),
    "znver5": ("x86_64", (*_V4, "avx512vnni", "avx512bf16")),
    "aarch64": ("aarch64", ("neon",)), "cortex-a72": ("aarch64", ("neon",)), "cortex-a76": ("aarch64", ("neon", "dotprod")),
    "neoverse-n1": ("aarch64", ("neon", "dotprod")), "apple-m1": ("aarch64", ("neon", "dotprod")), "riscv64": ("riscv64", ()),
}  # fmt: skip
_TRIPLES = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu", "riscv64": "riscv64-linux-gnu"}


@dataclass(frozen=True)
class Target:
    """arch, LLVM feature names, threads and cache sizes in bytes; ``cpu`` is a name for people, never matched on."""

    arch: str
    features: tuple[str, ...] = ()
    threads: int = 1
    cpu: str = "generic"
    l1_bytes: int = 32 << 10
    l2_bytes: int = 512 << 10
    l3_bytes: int = 8 << 20

    @property
    def triple(self) -> str:
        """LLVM's target triple."""
        return _TRIPLES[self.arch]

    @property
    def vector_bytes(self) -> int:
        """Width of one vector register: 64 (AVX-512), 32 (AVX), 16 (SSE, NEON), 8 where there is none."""
        if "avx512f" in self.features:
            return 64
        if "avx" in self.features:
            return 32
        return 8 if self.arch == "riscv64" else 16

    @property
    def vector_registers(self) -> int:
        """Number of vector registers: 32 for AVX-512, NEON and RISC-V's FP file, otherwise 16."""
        return 32 if "avx512f" in self.features or self.arch != "x86_64" else 16

    @property
    def is_native(self) -> bool:
        """Whether this process can run the code."""
        host = Target.native()
        return self.arch == host.arch and set(self.features) <= set(host.features)

    def with_threads(self, threads: int) -> Target:
        """The same machine with another thread count."""
        return replace(self, threads=threads)

    @cached_property
    def tvm(self) -> Any:
        """``tvm.target.Target`` for LLVM code generation."""
        from tilegrad._base.tvm import tvm

        spec: dict[str, Any] = {"kind": "llvm", "mtriple": self.triple}
        if self.arch == "x86_64":
            for level, feats in (("x86-64-v4", _V4), ("x86-64-v3", _V3), ("x86-64-v2", _V2)):
                if set(feats) <= set(self.features):
                    spec["mcpu"] = level
                    break
        if self.arch == "riscv64":
            spec.update(mcpu="generic-rv64", mabi="lp64d", mattr=["+m", "+a", "+f", "+d", "+c"])
        elif self.features:
            spec["mattr"] = [f"+{f}" for f in self.features]
        return tvm.target.Target(spec)

    def record(self) -> dict[str, Any]:
        """The ``target`` object of a tuning record."""
        return {"arch": self.arch, "features": list(self.features), "threads": self.threads, "cpu": self.cpu}

    @staticmethod
    def native(threads: int | None = None) -> Target:
        """The machine this process runs on; threads from the affinity mask unless given."""
        return _detect().with_threads(settings.num_threads(threads))

    @staticmethod
    def parse(spec: str | dict[str, Any] | Target = "native", threads: int | None = None) -> Target:
        """A Target from ``native``, a known name, ``llvm -mcpu=... -mattr=...``, a triple, or TVM's JSON target.

        Raises TargetError for an unknown CPU (near names are listed) or a kind other than llvm.
        """
        if isinstance(spec, Target):
            return spec if threads is None else spec.with_threads(settings.num_threads(threads))
        if isinstance(spec, str) and spec.strip().startswith("{"):
            try:
                spec = json.loads(spec)
            except ValueError as e:
                raise TargetError("target", repr(spec), "a JSON object such as TVM's targets") from e
        if isinstance(spec, str):
            spec = _split_cli(spec)
        if not isinstance(spec, dict):
            raise TargetError("target", type(spec).__name__, "a string, a dict or a tg.Target")
        kind, cpu = spec.get("kind", "llvm"), spec.get("mcpu")
        if kind not in ("llvm", "c", "native"):
            raise TargetError("target", f"kind {kind!r}", "'llvm'", "tilegrad makes CPU code for now.")
        triple = str(spec.get("mtriple") or "")
        if cpu in (None, "native") and not triple:
            base = Target.native(threads)
        else:
            base = _known(str(cpu) if cpu else triple.split("-")[0], threads)
            if triple and triple.split("-")[0] != base.arch:
                raise TargetError("target", f"cpu {cpu!r} with triple {triple!r}", f"a triple for {base.arch}")
        extra = [str(f) for f in spec.get("mattr", ())]
        feats = [f for f in base.features if f"-{f}" not in extra]
        feats += [f[1:] for f in extra if f.startswith("+") and f[1:] not in feats]
        if threads is None and "num-cores" in spec:
            base = base.with_threads(settings.num_threads(spec["num-cores"]))
        return replace(base, features=tuple(feats))


def _split_cli(text: str) -> dict[str, Any]:
    """``llvm -mcpu=x -mattr=+a,+b`` or one bare name."""
    words = text.split()
    if len(words) == 1 and words[0] in ("cuda", "rocm", "metal", "opencl", "vulkan"):
        return {"kind": words[0]}
    if len(words) == 1 and words[0] not in ("llvm", "native"):
        return {"kind": "llvm", "mcpu": words[0]}
    out: dict[str, Any] = {"kind": words[0] if words else ""}
    for w in words[1:]:
        m = re.fullmatch(r"--?([\w-]+)(?:=(.*))?", w)
        if not m or (m[2] is None and m[1] in ("mcpu", "mtriple", "mattr", "num-cores")):
            known = "words such as -mcpu=NAME, -mattr=+a,-b, -mtriple=TRIPLE, -num-cores=N"
            raise TargetError("target", f"{w!r} in {text!r}", known)
        out[m[1]] = m[2].split(",") if m[1] == "mattr" else m[2]
    return out


def _known(name: str, threads: int | None) -> Target:
    if name in ("x86_64", "amd64"):
        name = "x86-64"
    if "-linux" in name or name == "arm64":
        name = "aarch64" if name == "arm64" else name.split("-")[0].replace("x86_64", "x86-64")
    if name not in _KNOWN:
        near = difflib.get_close_matches(name, _KNOWN, n=3, cutoff=0.4)
        hint = f"Did you mean {' or '.join(near)}?" if near else ""
        raise TargetError("target", f"unknown CPU {name!r}", f"one of {', '.join(_KNOWN)}", hint)
    arch, feats = _KNOWN[name]
    return Target(arch, feats, settings.num_threads(threads), name)


@lru_cache(maxsize=1)
def cpu() -> tuple[str, tuple[str, ...], str]:
    """This machine's architecture, features (LLVM's names) and model. Raises TargetError for an unknown architecture."""
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
    if machine not in _TRIPLES:
        raise TargetError("target 'native'", f"architecture {machine!r}", "x86_64, aarch64 or riscv64")
    flags: set[str] = set()
    model = "generic"
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as info:
        for line in itertools.takewhile(str.strip, info):  # the first core's: Linux reports what all of them have
            key, _, value = line.partition(":")
            if key.strip() in ("flags", "Features"):
                flags |= set(value.split())
            elif key.strip() == "model name":
                model = value.strip()
    table = _X86_FLAGS if machine == "x86_64" else _ARM_FLAGS
    return machine, tuple(v for k, v in table.items() if k in flags) or (("neon",) if machine == "aarch64" else ()), model


@lru_cache(maxsize=1)
def _detect() -> Target:
    machine, feats, model = cpu()
    caches = {1: 32 << 10, 2: 512 << 10, 3: 8 << 20}
    for entry in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            if (entry / "type").read_text().strip() != "Instruction":
                size = (entry / "size").read_text().strip()
                caches[int((entry / "level").read_text())] = int(size[:-1]) << {"K": 10, "M": 20}[size[-1]]
        except (OSError, ValueError, KeyError):
            continue
    return Target(machine, feats, 1, model, caches[1], caches[2], caches[3])
