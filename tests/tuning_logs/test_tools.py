"""best, merge, stats and prune over lines."""

from tilegrad._base.target import Target
from tilegrad.tuning_logs import Record, Records, Verdict, best, merge, prune, stats

TARGET = Target("x86_64", ("avx2",), 2, "zen3").record()


def trial(m, config, cost, status="ok", time="1"):
    return Record("t/1", {"m": m}, TARGET, {"c": config}, status, (cost,) if status == "ok" else None, time=time)


def verdict(m, config, cost, done="trials", time="2"):
    return Verdict("t/1", {"m": m}, TARGET, {"c": config}, cost, 2 * cost, 3, done, time=time)


LOG = [
    trial(1, 1, 2.0),
    trial(1, 2, 1.0),
    trial(1, 3, 0, "crash"),
    verdict(1, 2, 1.0),
    trial(2, 1, 5.0),
    trial(3, 1, 0, "run_timeout"),
]


def test_best_has_one_entry_per_task_that_succeeded():
    one, two = best(LOG)
    assert (one.config, one.cost_s, one.default_s, one.done, one.trials) == ({"c": 2}, 1.0, 2.0, "trials", 3)
    assert (two.config, two.cost_s, two.default_s, two.done, two.trials) == ({"c": 1}, 5.0, None, None, 1)


def test_merge_drops_repeats_and_orders_by_time():
    late = trial(1, 9, 0.5, time="3")
    merged = merge(LOG, [late], LOG)
    assert len(merged) == len(LOG) + 1 and merged[-1] == late
    assert best(merged)[0].config == {"c": 9}


def test_prune_keeps_what_lookup_needs():
    small = prune(LOG)
    assert len(small) == 3
    target = Target("x86_64", ("avx2",), 2, "zen3")
    for m in (1, 2, 3):
        assert Records(small).lookup("t/1", {"m": m}, target) == Records(LOG).lookup("t/1", {"m": m}, target)
    assert [r.config["c"] for r in prune(LOG[:3], keep=2)] == [1, 2]


def test_stats():
    s = stats(LOG)
    assert (s.trials, s.tasks, s.finished) == (5, 3, 1)
    assert s.by_status == {"ok": 3, "crash": 1, "run_timeout": 1}
    assert s.machines == ("x86_64 zen3 x2",)
