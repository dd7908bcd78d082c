"""Where the time goes: what is said of each call beside its time, and how calls are added up. No time is asserted."""

from __future__ import annotations

import numpy as np
import pytest

import tilegrad as tg
from tilegrad.relax_ext.profile import KernelTime, Profile
from tilegrad.relax_ext.report import Memory


@pytest.fixture(scope="module")
def compiled():
    """Two products of the same shape, then one of another, without tuning logs."""
    a, b = np.ones((48, 48), np.float32), np.ones((48, 16), np.float32)

    def function(x):
        x = tg.sin(x) @ tg.tensor(a)
        return tg.sin(x) @ tg.tensor(a) @ tg.tensor(b)

    return tg.compile(function, [np.ones((32, 48), np.float32)], logs=[])


def test_every_call_is_told_with_its_flops_bytes_and_config(compiled):
    profile = compiled.profile(repeat=2)
    program = compiled.programs["run"]
    assert len(profile) == len(program.calls)
    products = [c for c in profile if c.template == "contraction/1"]
    assert [c.flops for c in products] == [2 * 32 * 48 * 48] * 2 + [2 * 32 * 48 * 16]
    assert products[-1].bytes == 4 * (32 * 48 + 48 * 16 + 32 * 16)
    assert {c.source for c in profile} == {"default"}
    assert all(
        dict(c.config) == dict(compiled.build.choices[k.kernel].config) for c, k in zip(profile, program.calls, strict=True)
    )
    assert all(c.seconds >= 0 for c in profile)


def test_the_table_names_every_kernel_and_the_moment_of_most_memory(compiled):
    profile = compiled.profile()
    text = str(profile)
    assert all(c.kernel in text for c in profile)
    assert f"in call {profile.memory.peak_call} of {len(profile)}" in text


def test_a_second_build_from_the_cache_says_the_same(compiled):
    again = compiled.recompile(logs=[])
    known = [(c.kernel, c.flops, c.bytes, c.template, c.source) for c in again.profile(repeat=1)]
    assert known == [(c.kernel, c.flops, c.bytes, c.template, c.source) for c in compiled.profile(repeat=1)]


def test_calls_add_up_to_kernels_and_shares():
    a = KernelTime("a", 1e-3, 4_000_000, 1_000_000, "contraction/1", {}, "tuned")
    b = KernelTime("b", 6e-3, 0, 12_000_000, "elementwise/1", {}, "default")
    profile = Profile("run", (a, b, a), Memory(256, 128, 1, "b"))
    assert profile.seconds == pytest.approx(8e-3)
    first, second = profile.kernels
    assert (first.kernel, first.calls, first.gbytes, first.gflops) == ("b", 1, pytest.approx(2.0), 0.0)
    assert (second.kernel, second.calls, second.gbytes, second.gflops) == ("a", 2, pytest.approx(1.0), pytest.approx(4.0))
    lines = str(profile).splitlines()
    assert lines[0] == "entry run: 8.000 ms in 3 calls of 2 kernels"
    assert "2.00 of the lower bound" in lines[1] and "call 1 of 3 (b)" in lines[1]
    assert lines[-2].split() == ["6.0000", "75.0%", "1", "-", "2.0", "elementwise/1", "default", "b"]
    assert lines[-1].split() == ["2.0000", "25.0%", "2", "4.0", "1.0", "contraction/1", "tuned", "a"]


def test_an_unknown_entry_is_refused(compiled):
    with pytest.raises(tg.errors.TilegradError, match="absent"):
        compiled.profile(entry="absent")
