"""The loop with scripted builders and runners: what is tried, kept, resumed and concluded."""

import math

import pytest

from tests.fakes import TARGET, FakeBuilder, FakeDatabase, FakeRunner, FakeTemplate, table, task
from tilegrad._base.errors import TuningError
from tilegrad.tuner.interfaces import Outcome
from tilegrad.tuner.session import Limits, Session
from tilegrad.tuner.strategy import Search
from tilegrad.tuner.task import Space
from tilegrad.tuning_logs import Record, canonical

DEFAULT, FAST = '{"a":1,"b":0}', '{"a":4,"b":1}'
BIG = FakeTemplate({"a": tuple(range(1, 60)), "b": (0, 1, 2)})


def session(tasks, script, database=None, limits=None, **more):
    builder = FakeBuilder(script)
    runner = FakeRunner(builder, more.pop("references", ()), more.pop("stop_after", None))
    database = database if database is not None else FakeDatabase()
    limits = limits or Limits()
    s = Session(tasks, builder, runner, database, lambda space: Search(space, hints=database.hints(None)), limits, **more)
    return s, builder, runner, database


def configs(records):
    return [canonical(r.config) for r in records]


def test_finds_the_fastest_of_a_small_space_and_stops_when_it_is_exhausted():
    s, builder, runner, db = session([task()], table({FAST: 0.5}))
    report = s.run()
    assert configs(db.trials)[0] == DEFAULT, "the default is trial 0"
    assert len(db.trials) == 12 == len(set(configs(db.trials))), "every config once"
    (verdict,) = db.verdicts
    assert canonical(verdict.config) == FAST and (verdict.cost_s, verdict.default_s, verdict.done) == (0.5, 1.0, "exhausted")
    assert report.tasks[0].row.of_default == 2.0 and report.saved_ms == pytest.approx(500.0)
    assert builder.closed and runner.closed


def test_never_worse_than_default():
    """0.998 is within the spread of 1: the default stays."""
    s, _, _, db = session([task()], table({FAST: 0.998}))
    s.run()
    assert canonical(db.verdicts[0].config) == DEFAULT and db.verdicts[0].cost_s == 1.0


def test_the_final_comparison_overrules_the_trials():
    answers = table({FAST: 0.5})
    s, _, runner, db = session([task()], answers)
    real = runner.compare

    def compare(task, paths, seconds=None):
        return [Outcome("ok", (1.2,) * 3) if FAST in p else o for o, p in zip(real(task, paths), paths, strict=True)]

    runner.compare = compare
    s.run()
    assert canonical(db.verdicts[0].config) == DEFAULT


@pytest.mark.parametrize("status", ["invalid_config", "compile_error", "compile_timeout", "run_timeout", "crash", "wrong_answer"])
def test_a_failing_candidate_costs_one_trial_and_is_recorded(status):
    s, _, _, db = session([task()], table({FAST: 0.5, '{"a":2,"b":0}': status}))
    report = s.run()
    (bad,) = [r for r in db.trials if r.status != "ok"]
    assert (bad.status, bad.costs_s, math.isinf(bad.cost_s)) == (status, None, True)
    assert canonical(db.verdicts[0].config) == FAST and report.errors == 1 and report.trials == 12


def test_a_failing_default_does_not_end_the_task():
    s, _, _, db = session([task()], table({FAST: 0.5, DEFAULT: "crash"}))
    s.run()
    assert canonical(db.verdicts[0].config) == FAST and db.verdicts[0].default_s is None


def test_nothing_compiles_is_an_error_that_shows_the_first():
    s, builder, _, db = session([task(template=FakeTemplate({"a": range(1, 100), "b": (0,)}))], lambda t, c: "compile_error")
    with pytest.raises(TuningError, match="none of which succeeded; the first: compile_error: scripted"):
        s.run()
    assert 16 <= len(db.trials) <= 24, "a hopeless task is given up early"
    assert builder.closed and db.verdicts == []


def test_an_empty_space_is_an_error():
    s, _, _, _ = session([task(template=FakeTemplate({"a": (), "b": ()}, pick={"a": 1, "b": 1}))], table({}))
    with pytest.raises(TuningError, match="the space of legal configs is empty"):
        s.run()


def test_no_tasks_is_an_empty_report():
    assert session([], table({}))[0].run().tasks == ()


def test_one_hopeless_task_does_not_hide_the_others():
    bad, good = task("conv"), task("matmul")
    s, _, _, db = session([bad, good], lambda t, c: "crash" if t.workload.op == "conv" else 1.0)
    report = s.run()
    assert [t.row.best_s for t in report.tasks] == [None, 1.0]
    assert len(db.verdicts) == 1


def test_equal_workloads_are_tuned_once():
    s, _, _, db = session([task(weight=3), task(weight=2)], table({}))
    assert len(s.run().tasks) == 1
    assert len(set(configs(db.trials))) == len(db.trials)


def test_trials_of_all_tasks_together():
    s, _, _, db = session([task("matmul"), task("conv")], table({}), limits=Limits(trials=10))
    report = s.run()
    assert len(db.trials) == 10 == report.trials
    assert {t.row.done for t in report.tasks} == {"trials"}


def test_fewer_trials_than_tasks_still_ends_well():
    s, _, _, db = session([task(f"op{i}") for i in range(5)], table({}), limits=Limits(trials=1))
    assert s.run().trials == 1 and configs(db.trials) == [DEFAULT]


def test_a_budget_in_seconds():
    now = iter(range(1000))
    s, _, _, db = session(
        [task(template=FakeTemplate({"a": range(1, 500), "b": (0,)}))],
        table({}),
        limits=Limits(seconds=20, min_gain=0.0),
        clock=lambda: next(now),
    )
    report = s.run()
    assert report.tasks[0].row.done == "budget" and 8 <= len(db.trials) < 200


@pytest.mark.parametrize("limits, tried", [({"seconds": 6.0}, 9), ({"trials": 10}, 10), ({"seconds": 2.0}, 3)])
def test_few_seconds_are_spread_as_few_trials_are(limits, tried):
    """A trial takes half a second here: no task gets a second one before every task that there is time for had its first."""
    now = [0.0]
    s, *_, db = session(
        [task(f"op{i}", template=BIG) for i in range(10)],
        lambda t, c: now.__setitem__(0, now[0] + 0.25) or 1.0,  # asked by the builder and by the runner
        limits=Limits(**limits),
        clock=lambda: now[0],
    )
    s.run()
    first = [r.workload_key for r in db.trials[:10]]
    assert len(set(first)) == len(first) == tried


@pytest.mark.parametrize("tasks", [1, 40])
@pytest.mark.parametrize("whole", [False, True])
def test_a_budget_holds_with_many_tasks(tasks, whole):
    """The clock moves while something is measured; a comparison takes the seconds it is given, 4 at the most."""
    budget, now, given = 60.0, [0.0], []
    big = FakeTemplate({"a": tuple(range(1, 600)), "b": (0,)})
    s, _, runner, db = session(
        [task(f"op{i}", template=big, weight=1 + i) for i in range(tasks)],
        lambda t, c: now.__setitem__(0, now[0] + 0.1) or (1.0 if c["a"] == 1 else 0.5),
        limits=Limits(seconds=budget, min_gain=0.0),
        clock=lambda: now[0],
        recheck=(lambda finalists, seconds: given.append(seconds) or now.__setitem__(0, now[0] + seconds) or {})
        if whole
        else None,
    )
    real = runner.compare

    def compare(task, paths, seconds=None):
        end = now[0] + min(4.0, seconds)
        answers = real(task, paths)
        now[0] = max(now[0], end)
        return answers

    runner.compare = compare
    s.run()
    assert 0.9 * budget <= now[0] <= 1.1 * budget
    assert len(db.verdicts) == len({r.workload_key for r in db.trials}) and all(0 <= x <= budget / 2 for x in given)
    weights = [int(p.split('"op":"op')[1].split('"')[0]) for p, *_ in runner.compared]
    assert weights == sorted(weights, reverse=True), "what saves most is compared first"


def test_a_kernel_of_no_weight_is_not_searched():
    """The small task takes a ten-thousandth of the time of both; alone it is searched, and where it only seemed small."""

    def tried(*names, small=1e-3):
        s, *_, db = session([task(n, template=BIG) for n in names], lambda t, c: small if t.name.startswith("small") else 10.0)
        report = s.run()
        assert {r.row.done for r in report.tasks} <= {"converged", "negligible"} and len(db.verdicts) == len(names)
        return sum('"small"' in r.workload_key for r in db.trials)

    assert tried("large", "small") == 1
    assert tried("small") > 16 and tried("large", "small", small=1.0) > 16


def test_what_is_slower_than_the_default_is_no_finalist():
    """Level with it within the spread, but slower in the median: the report would say that tuning lost."""
    costs = {DEFAULT: (1.0, 1.0, 1.0), FAST: (0.9, 1.01, 1.1), '{"a":2,"b":0}': (0.8, 0.99, 1.2)}
    seen = []
    s, _, runner, db = session(
        [task()], table({k: 1.0 for k in costs}, 5.0), recheck=lambda finalists, seconds: seen.extend(*finalists.values()) or {}
    )
    runner.compare = lambda task, paths, seconds=None: [Outcome("ok", costs[p.split("|")[1]]) for p in paths]
    s.run()
    assert [canonical(c) for c in seen] == [DEFAULT, '{"a":2,"b":0}'] and canonical(db.verdicts[0].config) == DEFAULT


def test_what_was_negligible_beside_others_is_searched_alone():
    script = lambda t, c: 1e-3 if t.name.startswith("small") else 10.0  # noqa: E731
    small = task("small", template=BIG)
    s, *_, db = session([task("large", template=BIG), small], script)
    assert [t.row.done for t in s.run().tasks] == ["converged", "negligible"]
    before = len(db.trials)
    again, *_ = session([small], script, db)
    assert again.run().tasks[0].row.done == "converged" and len(db.trials) > before + 8
    beside, *_, db2 = session([task("large", template=BIG)], script)
    beside.run()
    s, *_ = session([task("large", template=BIG), small], script, db2)
    s.run()
    assert sum('"small"' in r.workload_key for r in db2.trials) == 1, "the time of what was finished earlier counts"


def test_a_default_that_fails_is_not_taken_for_negligible():
    """The model finds the task small, its default does not compile, and another config takes half a second."""

    def script(t, c):
        return 1.0 if t.name.startswith("large") else "compile_error" if c == {"a": 1e-6, "b": 0} else 0.5

    tiny = task("tiny", template=FakeTemplate({"a": (1e-6, 2e-6, 3e-6), "b": (0,)}))
    s, *_, db = session([task("large"), tiny], script)
    report = s.run()
    assert report.tasks[1].row.best_s == 0.5 and report.tasks[1].row.done == "exhausted"


def test_decisions_do_not_look_at_all_trials_of_all_tasks(monkeypatch):
    """They took 50 s for 200 tasks once."""
    looked, median = [0], Record.cost_s.fget

    def counted(self):
        looked[0] += 1
        return median(self)

    monkeypatch.setattr(Record, "cost_s", property(counted))
    counts = []
    for tasks in (10, 40):
        looked[0] = 0
        s, *_, db = session([task(f"op{i}") for i in range(tasks)], lambda t, c: 1.0)
        s.run()
        counts.append(looked[0] / len(db.trials))
    assert counts[1] < 1.5 * counts[0]


def test_a_recorded_config_outside_the_space_stays_a_contender():
    better = Record("fake/1", task().workload.json(), {**TARGET.record()}, {"a": 3, "b": 0}, "ok", (0.1,) * 3, run="old")
    unreadable = Record("fake/1", task().workload.json(), {**TARGET.record()}, {"z": 3}, "ok", (0.05,) * 3, run="old")
    s, *_, db = session(
        [task()], lambda t, c: 0.1 if c["a"] == 3 else 0.9, FakeDatabase([better, unreadable], [{"a": 3, "b": 0}])
    )
    s.run()
    assert dict(db.verdicts[-1].config) == {"a": 3, "b": 0}


@pytest.mark.parametrize("estimate", [0.0, -1.0, math.nan, math.inf])
def test_an_estimate_that_is_no_time_is_an_error_before_anything_starts(estimate):
    class Odd(FakeTemplate):
        def estimate(self, workload, config, target):
            return estimate

    with pytest.raises(TuningError, match=r"template 'fake/1', estimate of .*seconds above 0"):
        session([task(template=Odd())], table({}))


def test_a_budget_that_is_over_before_the_first_trial_says_so():
    now = iter(range(0, 1000, 5))
    s, *_ = session([task()], table({}), limits=Limits(seconds=1.0), clock=lambda: next(now))
    with pytest.raises(TuningError, match=r"a budget of 1.0 s, over before the first trial, expected more seconds"):
        s.run()


def test_trials_in_the_log_count_where_a_replay_differs():
    """Other limits ask for other batches; however that goes, there are no more trials than were asked for."""
    tasks = [task(f"op{i}", template=BIG, weight=1 + i) for i in range(3)]
    script = lambda t, c: 1.0 / (1 + c["a"] % 7)  # noqa: E731
    first, *_, db = session(tasks, script, limits=Limits(trials=31))
    first.run()
    for limit in (31, 31, 20, 40, 40):
        s, *_ = session(tasks, script, db, limits=Limits(trials=limit))
        s.run()
        assert len(db.trials) == max(31, limit)


def test_a_resumed_session_looks_for_drift():
    t = task(template=BIG)
    s, *_, db = session([t], table({}), limits=Limits(trials=8))
    s.run()
    s, builder, runner, _ = session([t], table({}), db, limits=Limits(trials=24))
    given, real = [], runner.measure
    runner.measure = lambda task, paths, reference, best: given.append(reference) or real(task, paths, reference, best)
    s.run()
    assert given and all(r is not None and '"a":1' in r for r in given)


def test_no_expected_gain_ends_a_task():
    big = FakeTemplate({"a": range(1, 500), "b": (0,)})
    s, _, _, db = session([task(template=big)], table({}))
    assert s.run().tasks[0].row.done == "converged"
    assert 16 <= len(db.trials) <= 64


def test_the_roofline_ends_a_task():
    s, _, _, db = session([task()], table({DEFAULT: 0.5}), roofline=lambda t: 0.49)
    assert s.run().tasks[0].row.done == "roofline" and len(db.trials) <= 8


def test_trials_go_where_they_save_most():
    big = FakeTemplate({"a": range(1, 500), "b": (0,)})
    heavy, light = task("heavy", weight=100, template=big), task("light", weight=1, template=big)
    s, _, _, db = session([light, heavy], lambda t, c: 1e-3, limits=Limits(trials=40))
    s.run()
    count = [sum(r.workload["op"] == op for r in db.trials) for op in ("heavy", "light")]
    assert count == [35, 5], "after the opening of both"


def bumpy(t, c):
    if (c["a"] * 7 + c["b"]) % 11 == 0:
        return "wrong_answer"
    return 1.0 + 0.01 * ((c["a"] * 37 + c["b"] * 11) % 23)


@pytest.mark.parametrize("k", [0, 1, 5, 8, 13, 29])
def test_an_interrupted_run_resumes_without_repeating_and_ends_the_same(k):
    limits = Limits(trials=60)
    tasks = [task("one", template=BIG), task("two", weight=2, template=BIG)]
    whole, _, _, expected = session(tasks, bumpy, limits=limits)
    whole.run()
    first, _, runner, db = session(tasks, bumpy, limits=limits, stop_after=k)
    report = first.run()
    assert report.interrupted and runner.closed
    kept = len(db.trials)
    assert kept >= k and all(v.done is None for v in db.verdicts)
    again, builder, runner, _ = session(tasks, bumpy, db, limits)
    again.run()
    key = lambda r: (r.workload["op"], canonical(r.config))  # noqa: E731
    assert len(runner.measured) + len([r for r in db.trials[kept:] if r.status != "ok"]) >= 60 - kept
    assert len({key(r) for r in db.trials}) == len(db.trials) == 60, "no trial is repeated, failed ones included"
    assert {key(r) for r in db.trials} == {key(r) for r in expected.trials}
    assert [(v.config, v.done) for v in db.verdicts[-2:]] == [(v.config, v.done) for v in expected.verdicts]


def test_interruption_saves_the_best_so_far():
    s, _, _, db = session([task()], table({FAST: 0.5}), stop_after=11)
    report = s.run()
    assert report.interrupted
    assert db.verdicts[-1].done is None and db.verdicts[-1].cost_s == min(r.cost_s for r in db.trials)


def test_a_finished_run_builds_nothing_when_repeated():
    limits = Limits(trials=10)
    _, _, _, db = first = session([task()], table({FAST: 0.5}), limits=limits)
    first[0].run()
    lines = list(db.lines)
    again, builder, runner, _ = session([task()], table({FAST: 0.5}), db, limits)
    report = again.run()
    assert builder.built == [] and runner.measured == [] and db.lines == lines
    assert report.trials == 10 and report.tasks[0].row.best_s == lines[-1].cost_s


def test_a_seed_gives_the_same_trials():
    runs = []
    for _ in range(2):
        s, _, _, db = session([task(template=BIG)], bumpy, limits=Limits(trials=40))
        s.run()
        runs.append(configs(db.trials))
    assert runs[0] == runs[1]


def test_drift_measures_again():
    """The third reference is 20 % slower: that trial is measured once more, and only the second result is kept."""
    s, _, runner, db = session([task()], table({}), references=[1.0, 1.0, 1.2, *[1.0] * 40], limits=Limits(trials=8))
    notices = []
    s._listener = lambda e: notices.append(e.text) if e.kind == "notice" else None
    s.run()
    assert len(db.trials) == 8 and len(runner.measured) == 9
    assert notices == ["the machine's speed drifted; measuring 1 trials again"]


def test_the_whole_program_decides_among_the_finalists():
    t, asked = task(), []
    s, _, _, db = session([t], table({FAST: 0.5}), recheck=lambda finalists, seconds: asked.append(finalists) or {t.key: 1})
    report = s.run()
    assert [canonical(c) for c in asked[0][t.key]] == [FAST, DEFAULT]
    assert canonical(db.verdicts[0].config) == DEFAULT and report.saved_ms == 0


def test_finalists_are_what_is_level_with_the_winner():
    t, asked = task(), []
    near = next(k for k in Space(t).keys if k not in (FAST, DEFAULT))
    s, _, _, db = session(
        [t], table({FAST: 0.5, near: 0.501}), recheck=lambda finalists, seconds: asked.append(finalists) or {t.key: 2}
    )
    s.run()
    assert [canonical(c) for c in asked[0][t.key]] == [FAST, DEFAULT, near]
    assert canonical(db.verdicts[0].config) == near and db.verdicts[0].cost_s == pytest.approx(0.501, rel=0.02)


def test_events_tell_every_trial():
    events = []
    s, _, _, db = session([task()], table({FAST: 0.5}), listener=events.append, limits=Limits(trials=10))
    s.run()
    assert [e.kind for e in events] == ["start", *["trial"] * 10, "task", "end"]
    assert [e.row.trials for e in events[1:11]] == list(range(1, 11))
    assert events[-1].rows[0].done == "trials" and events[-2].row.saved_ms >= 0
    assert all(isinstance(e.json(), dict) for e in events)


def interrupt(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("stage", ["build", "measure", "compare", "recheck"])
def test_interruption_at_every_stage_keeps_the_trials_and_resumes(stage):
    script = table({FAST: 0.5})
    s, builder, runner, db = session([task()], script, recheck=interrupt if stage == "recheck" else None)
    if stage != "recheck":
        setattr(builder if stage == "build" else runner, stage, interrupt)
    report = s.run()
    assert report.interrupted and builder.closed and runner.closed
    assert len(db.trials) == (0 if stage in ("build", "measure") else 12)
    assert [v.done for v in db.verdicts] == ([None] if db.trials else [])
    again, _, _, _ = session([task()], script, db)
    again.run()
    assert len(db.trials) == 12 and db.verdicts[-1].done == "exhausted" and canonical(db.verdicts[-1].config) == FAST


def test_a_full_disk_ends_the_session_and_its_processes():
    s, builder, runner, db = session([task()], table({}))
    keep, db.append = db.append, lambda line: keep(line) if len(db.lines) < 3 else full()

    def full():
        raise TuningError("tuning log 'x'", "No space left on device", "room for one more line")

    with pytest.raises(TuningError, match="No space left"):
        s.run()
    assert len(db.trials) == 3 and builder.closed and runner.closed
