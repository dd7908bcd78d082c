"""Calls: values, states, in-place updates, threads, forks, every refused argument."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import threading
import time

import numpy as np
import pytest

from tilegrad import runtime
from tilegrad._base.errors import DTypeError, LibraryError, ShapeError, UsageError
from tilegrad.runtime import memory


def train(context, data, steps, **given):
    """Losses of ``steps`` calls; states not given are the context's own, set to the start."""
    for name, value in (("w", data.w), ("lr", data.lr)):
        if name not in given:
            context.state(name)[...] = value
    return np.array([context.run("step", {"x": data.x, "y": data.y, **given})["loss"][()] for _ in range(steps)])


def test_training_follows_the_closed_form(regression, data, kit):
    losses, w = kit.reference(data.x, data.y, data.w, data.lr, kit.steps)
    context = regression.context(2)
    np.testing.assert_allclose(train(context, data, kit.steps), losses, rtol=1e-5)
    np.testing.assert_allclose(context.state("w"), w, rtol=1e-5)
    np.testing.assert_allclose(
        context.run("evaluate", {"x": data.x, "y": data.y})["loss"], np.mean((data.x @ w - data.y) ** 2), rtol=1e-4
    )


def test_the_programs_threads_give_the_same_bits(regression, data, kit):
    own = train(regression.context(2), data, kit.steps)
    asked = []

    def run(body, argument, count, flags):
        asked.append((count, flags))
        threads = [threading.Thread(target=body, args=(argument,)) for _ in range(count)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()

    body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    pool = ctypes.CFUNCTYPE(None, body, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)(run)
    context = regression.context(2)
    context.use_threads(pool)
    assert np.array_equal(train(context, data, kit.steps), own)
    assert set(asked) == {(2, 0)}
    asked.clear()
    context.use_threads(None)
    assert np.array_equal(train(context, data, kit.steps), own) and not asked


def test_caller_may_bind_states_and_outputs(regression, data, kit):
    context = regression.context()
    w, lr, loss = data.w.copy(), np.array(data.lr, "f4"), np.empty((), "f4")
    given = train(context, data, kit.steps, w=w, lr=lr, loss=loss)
    assert given[-1] == loss and np.all(context.state("w") == 0)
    own = regression.context()
    assert np.array_equal(given, train(own, data, kit.steps)) and np.array_equal(w, own.state("w"))


def test_hyper_takes_a_number(regression, data):
    context = regression.context()
    w = data.w.copy()
    context.run("step", {"x": data.x, "y": data.y, "w": w, "lr": 0.0})
    assert np.array_equal(w, data.w)
    context.run("step", {"x": data.x, "y": data.y, "w": w, "lr": np.float32(0.1)})
    assert not np.array_equal(w, data.w)


def test_same_bits_for_a_thread_count_and_prepared_calls(regression, data, kit):
    first, second = (train(regression.context(2), data, kit.steps) for _ in range(2))
    assert np.array_equal(first, second)
    context = regression.context(2)
    context.state("lr")[...] = data.lr
    call = context.prepare("step", {"x": data.x, "y": data.y})
    assert np.array_equal(first, [call()["loss"][()] for _ in range(kit.steps)])


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_any_thread_count_computes_the_same(regression, data, kit, threads):
    losses, _ = kit.reference(data.x, data.y, data.w, data.lr, kit.steps)
    np.testing.assert_allclose(train(regression.context(threads), data, kit.steps), losses, rtol=1e-5)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="platform: no affinity masks")
def test_workers_keep_off_the_callers_core_and_inside_the_mask(regression, data):
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("platform: one core")

    def masks_of_a_new_pool(caller_cores):
        before = set(os.listdir("/proc/self/task"))
        context = regression.context(2)
        workers = {int(t) for t in set(os.listdir("/proc/self/task")) - before}
        seen = []
        for core in caller_cores:
            os.sched_setaffinity(0, {core})
            context.run("step", {"x": data.x, "y": data.y, "lr": 0.0})
            seen.append({frozenset(os.sched_getaffinity(w)) for w in workers})
        return seen

    first, second = sorted(allowed)[:2]
    try:
        assert masks_of_a_new_pool([first, second]) == [{frozenset(allowed - {core})} for core in (first, second)]
        assert masks_of_a_new_pool([second]) == [{frozenset({second})}]  # made by a thread that may use this core alone
    finally:
        os.sched_setaffinity(0, allowed)


def test_any_element_alignment(regression, data, kit):
    def moved(array, by):
        memory = np.zeros(array.nbytes + 128, np.uint8)
        at = -memory.ctypes.data % 64 + by
        view = memory[at : at + array.nbytes].view(array.dtype).reshape(array.shape)
        view[...] = array
        return view

    expected = train(regression.context(), data, kit.steps)
    for by in (4, 16, 20, 48):
        got = train(regression.context(), data, kit.steps, x=moved(data.x, by), y=moved(data.y, by), w=moved(data.w, by))
        assert np.array_equal(expected, got)


def test_contexts_in_many_threads(regression, data, kit):
    expected = train(regression.context(2), data, kit.steps)
    got = [None] * 8

    def job(i):
        context = regression.context(2)
        for _ in range(5):
            got[i] = train(context, data, kit.steps)

    threads = [threading.Thread(target=job, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(np.array_equal(expected, g) for g in got)


def test_fork_while_the_pool_exists(regression, data, kit):
    context = regression.context(2)
    expected = train(context, data, kit.steps)
    child = os.fork()
    if child == 0:
        ok = all(np.array_equal(expected, train(c, data, kit.steps)) for c in (context, context, regression.context(2)))
        context.close()
        os._exit(0 if ok else 1)
    assert np.array_equal(expected, train(context, data, kit.steps))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_states_outlive_the_context(regression, data, kit):
    context = regression.context()
    w = context.state("w")
    train(context, data, 3)
    before = w.copy()
    context.close()
    context.close()
    del context
    assert np.array_equal(w, before)


def test_a_closed_context_is_refused(regression, data):
    context = regression.context()
    call = context.prepare("step", {"x": data.x, "y": data.y})
    context.close()
    for use in (lambda: context.run("step", {"x": data.x, "y": data.y}), call, lambda: context.state("w")):
        with pytest.raises(UsageError, match="closed context"):
            use()


def test_a_context_in_use_elsewhere_is_refused(regression, data):
    context = regression.context(1)
    args = {"x": data.x, "y": data.y}

    def job():
        with contextlib.suppress(UsageError):  # when it meets the short calls below it tries once more
            context.benchmark("step", args, number=2_000_000)
            return
        context.benchmark("step", args, number=2_000_000)

    slow = threading.Thread(target=job)
    slow.start()
    time.sleep(0.05)
    for use in (lambda: context.run("step", args), context.close):
        seen = ""
        while slow.is_alive() and not seen:
            try:
                use()
            except UsageError as e:
                seen = str(e)
        assert "on another thread" in seen
    slow.join()
    context.run("step", args)


def test_benchmark_and_profile(regression, data):
    context = regression.context()
    args = {"x": data.x, "y": data.y}
    seconds = context.benchmark("step", args, number=3, repeat=4)
    assert len(seconds) == 4 and all(0 < s < 1 for s in seconds)
    profile = context.profile("step", args)
    assert [name for name, _ in profile] == ["error", "mean_square", "descend"] and all(0 <= s < 1 for _, s in profile)


@pytest.mark.parametrize("warm_up, runs", [(True, 13), (False, 12)])
def test_a_benchmark_runs_what_it_says(regression, data, warm_up, runs):
    args = {"x": data.x, "y": data.y}
    timed, plain = regression.context(), regression.context()
    for context in (timed, plain):
        context.state("lr")[...] = data.lr
    timed.benchmark("step", args, number=3, repeat=4, warm_up=warm_up)
    for _ in range(runs - 1):
        plain.run("step", args)
    assert not np.array_equal(timed.state("w"), plain.state("w"))
    plain.run("step", args)
    np.testing.assert_array_equal(timed.state("w"), plain.state("w"))


def _bad(data):
    x, y = data.x, data.y
    read_only = data.w.copy()
    read_only.flags.writeable = False
    raw = np.zeros(y.nbytes + 1, np.uint8)
    shared = np.zeros((), "f4")
    return [
        (UsageError, {"x": x}, "no 'y'.*input 'y' float32"),
        (UsageError, {"x": x, "y": y, "z": y}, "unknown 'z'"),
        (ShapeError, {"x": x[:-1], "y": y}, r"input 'x'.*\(31, 5\).*\(32, 5\)"),
        (ShapeError, {"x": x, "y": y[:, None]}, r"input 'y'.*\(32, 1\)"),
        (DTypeError, {"x": x.astype("f8"), "y": y}, "input 'x'.*float64.*float32.*astype"),
        (DTypeError, {"x": x, "y": y.astype(">f4")}, "input 'y'"),
        (UsageError, {"x": np.asfortranarray(x), "y": y}, "C-contiguous.*ascontiguousarray"),
        (UsageError, {"x": np.zeros((64, 5), "f4")[::2], "y": y}, "input 'x'.*C-contiguous"),
        (UsageError, {"x": x, "y": raw[1:].view("f4")}, "input 'y'.*aligned"),
        (UsageError, {"x": x.tolist(), "y": y}, "input 'x'.*list.*asarray"),
        (UsageError, {"x": x, "y": y, "w": read_only}, "state 'w'.*read-only"),
        (UsageError, {"x": x, "y": y, "lr": "fast"}, "hyper 'lr'.*str"),
        (UsageError, {"x": x, "y": y, "lr": shared, "loss": shared}, "memory that"),
        (ShapeError, {"x": x, "y": y, "loss": np.zeros(1, "f4")}, "output 'loss'"),
    ]


@pytest.mark.parametrize("case", range(14))
def test_bad_arguments(regression, data, case):
    error, args, message = _bad(data)[case]
    with pytest.raises(error, match=message):
        regression.context(1).run("step", args)


def test_every_bad_argument_is_tried(data):
    assert len(_bad(data)) == 14


def test_unknown_names(regression):
    context = regression.context(1)
    for use in (lambda: context.run("stop", {}), lambda: context.prepare("stop", {})):
        with pytest.raises(UsageError, match="'stop'.*step, evaluate"):
            use()
    with pytest.raises(UsageError, match="'v'.*w, lr"):
        context.state("v")
    with pytest.raises(UsageError, match="number 0"):
        context.benchmark("step", {}, number=0)
    with pytest.raises(UsageError, match="num_threads"):
        regression.context(0)


def test_dlpack_objects(regression, data, kit):
    torch = pytest.importorskip("torch")
    expected = train(regression.context(), data, 3)
    w = torch.from_numpy(data.w.copy())
    got = train(regression.context(), data, 3, x=torch.from_numpy(data.x.copy()), w=w)
    assert np.array_equal(expected, got) and not np.array_equal(w.numpy(), data.w)
    with pytest.raises(UsageError, match="input 'x'.*DLPack"):
        regression.context().run("step", {"x": torch.from_numpy(data.x.copy()).requires_grad_(), "y": data.y})


def test_two_libraries_keep_their_own_kernels(kit):
    x = np.arange(64, dtype="f4")
    libraries = [runtime.build(*kit.binary("op", f), kit.target, prefix="same") for f in (kit.add, kit.subtract)]
    contexts = [lib.context() for lib in libraries]
    for _ in range(2):
        plus, minus = (c.run("apply", {"x": x})["y"] for c in contexts)
        assert np.array_equal(plus, x + 2) and np.array_equal(minus, x - 2)


@pytest.mark.parametrize("nbytes", [100, 3 * memory.HUGE + 100])
@pytest.mark.parametrize("huge", [True, False])
def test_memory_is_zeros_that_may_be_written(nbytes, huge, monkeypatch):
    """Large memory starts at a huge page where there are any; arrays keep it alive, and a fork's child has a copy of its own."""
    if not huge:
        monkeypatch.delattr(mmap, "MADV_HUGEPAGE")
    array = memory.zeros(nbytes)
    assert array.shape == (nbytes,) and array.dtype == np.uint8 and not array.any()
    assert nbytes < memory.HUGE or not huge or array.ctypes.data % memory.HUGE == 0
    tail = array[-50:].view()
    del array
    tail[...] = 7
    child = os.fork()
    if child == 0:
        tail[...] = 8
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0 and (tail == 7).all()


def test_no_memory_for_a_context(regression, monkeypatch):
    monkeypatch.setattr(regression.functions, "workspace_size", lambda threads: 1 << 60)
    with pytest.raises(LibraryError, match=f"no memory for {1 << 60} bytes"):
        regression.context(1)
