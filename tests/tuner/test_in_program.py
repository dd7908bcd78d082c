"""The check inside the whole program, from scripted profiles."""

from tilegrad.tuner.in_program import InProgram, in_program

KEYS = {"k1": "matmul", "k2": "relu", "k3": "matmul"}


def rounds(*seconds):
    """Nine rounds of three calls: k1, k2, k3."""
    return [list(zip(("k1", "k2", "k3"), seconds, strict=True))] * 9


def test_calls_of_a_task_are_summed_and_others_left_out():
    profiles = [rounds(1.0, 5.0, 2.0), rounds(0.5, 5.0, 1.0), rounds(9.0, 5.0, 9.0)]
    found = in_program(profiles, KEYS, {"matmul": [{}, {}]})
    assert set(found) == {"matmul"}
    assert found["matmul"].runs == ((3.0,) * 9, (1.5,) * 9), "the third library has no finalist of its own"
    assert found["matmul"].calls == 2 and found["matmul"].per_call_s == 0.75 and found["matmul"].pick == 1


def test_another_finalist_must_be_faster_by_more_than_the_margin_and_the_spread():
    assert InProgram(((1.05,) * 9, (1.0,) * 9), 1).pick == 1
    assert InProgram(((1.05,) * 9, (1.0,) * 9, (0.9,) * 9), 1).pick == 2
    assert InProgram(((1.01,) * 9, (1.0,) * 9), 1).pick == 0, "within two percent"
    noisy = (0.7, 0.9, 1.0, 1.1, 1.4)
    assert InProgram((tuple(1.05 * x for x in noisy), noisy), 1).pick == 0, "within the spread"


def test_a_cost_that_does_not_reproduce_is_noticed():
    from tilegrad.tuner.events import Row
    from tilegrad.tuner.report import Report, TaskResult

    task = TaskResult(Row(0, "matmul m8", 1, default_s=2e-3, best_s=1e-3), "t/1", {"op": "matmul", "m": 8}, {})
    report = Report((task,))
    assert report.inside({task.key: 1.1e-3}, 1.2).notices == ()
    noticed = report.inside({task.key: 1.5e-3}, 1.2)
    assert noticed.notices == ("matmul m8: takes 1.50 times its recorded cost inside the program",)
    assert noticed.tasks[0].in_program_s == 1.5e-3 and noticed.notices[0] in noticed.text()
