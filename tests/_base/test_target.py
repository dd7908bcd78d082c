"""Target: what people write is understood or refused with near names; facts hang together."""

import pytest

from tilegrad._base.errors import TargetError, UsageError
from tilegrad._base.target import Target

AVX2 = {"avx", "avx2", "fma"}


@pytest.mark.parametrize(
    ("spec", "arch", "has", "lacks"),
    [
        ("x86-64-v3", "x86_64", AVX2, {"avx512f"}),
        ("llvm -mcpu=skylake-avx512", "x86_64", AVX2 | {"avx512f", "avx512vl"}, set()),
        ("llvm -mcpu=haswell -mattr=-fma,+avxvnni", "x86_64", {"avx2", "avxvnni"}, {"fma"}),
        ("llvm -mtriple=aarch64-linux-gnu", "aarch64", {"neon"}, AVX2),
        ({"kind": "llvm", "mcpu": "znver3", "num-cores": 7}, "x86_64", AVX2, {"avx512f"}),
        ('{"kind": "llvm", "mcpu": "cortex-a76"}', "aarch64", {"neon", "dotprod"}, set()),
        ("aarch64-linux-gnu", "aarch64", {"neon"}, set()),
        ("riscv64", "riscv64", set(), AVX2),
    ],
)
def test_parse(spec: object, arch: str, has: set[str], lacks: set[str]) -> None:
    t = Target.parse(spec)  # type: ignore[arg-type]
    assert t.arch == arch
    assert has <= set(t.features)
    assert not lacks & set(t.features)


def test_cores_come_from_the_spec_unless_given() -> None:
    spec = {"kind": "llvm", "mcpu": "znver3", "num-cores": 7}
    assert Target.parse(spec).threads == 7
    assert Target.parse(spec, threads=3).threads == 3


def test_native_is_this_machine() -> None:
    t = Target.parse("native")
    assert t.is_native
    assert t == Target.native() == Target.parse("llvm")
    assert t.l1_bytes < t.l2_bytes


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        ("skylak", r"unknown CPU 'skylak'.*Did you mean skylake"),
        ("llvm -mcpu=znver9", r"unknown CPU 'znver9'.*znver"),
        ("cuda", r"kind 'cuda', expected 'llvm'"),
        ("", r"target: got"),
        ("{broken", r"JSON"),
        ("llvm -mcpu=haswell -mtriple=aarch64-linux-gnu", r"a triple for x86_64"),
        ("llvm -mcpu znver3", r"'-mcpu'.*-mcpu=NAME"),
        ("llvm znver3", r"'znver3'.*-mcpu=NAME"),
        (7, r"got int"),
    ],
)
def test_unknown_targets_are_refused(spec: object, match: str) -> None:
    with pytest.raises(TargetError, match=match):
        Target.parse(spec)  # type: ignore[arg-type]


def test_bad_thread_count_is_refused() -> None:
    with pytest.raises(UsageError, match="num_threads"):
        Target.parse("native", threads=-1)
    with pytest.raises(UsageError, match="num_threads"):
        Target.parse(Target.native(), threads=0)
    with pytest.raises(UsageError, match="num_threads"):
        Target.parse("llvm -num-cores=many")


def test_flags_that_mean_nothing_here_change_nothing() -> None:
    """Flags of other tools in the string must not make good records miss."""
    assert Target.parse("llvm -mcpu=haswell -link-params -executor=graph") == Target.parse("haswell")


@pytest.mark.parametrize(
    ("name", "width", "registers"),
    [("x86-64", 16, 16), ("haswell", 32, 16), ("znver4", 64, 32), ("aarch64", 16, 32), ("riscv64", 8, 32)],
)
def test_vector_registers(name: str, width: int, registers: int) -> None:
    t = Target.parse(name)
    assert (t.vector_bytes, t.vector_registers) == (width, registers)


@pytest.mark.parametrize("name", ["native", "x86-64", "znver4", "apple-m1", "riscv64"])
def test_every_target_is_one_that_tvm_takes(name: str) -> None:
    t = Target.parse(name)
    assert str(t.tvm.attrs["mtriple"]) == t.triple


def test_more_features_are_not_native() -> None:
    t = Target.native()
    assert not Target(t.arch, (*t.features, "made-up")).is_native


def test_record_is_plain_json() -> None:
    r = Target.parse("haswell", threads=2).record()
    assert r["arch"] == "x86_64" and r["threads"] == 2 and r["cpu"] == "haswell"
    assert all(isinstance(f, str) for f in r["features"])
