"""How often a scripted timer is asked: enough for the confidence, not more."""

import itertools

from tilegrad.tuner import timing


class Clock:
    """A kernel that takes ``seconds`` with relative ``noise``; counts what it was asked."""

    def __init__(self, seconds, noise=(0.0,)):
        self.seconds, self.noise, self.asked = seconds, itertools.cycle(noise), []

    def __call__(self, number):
        self.asked.append(number)
        return self.seconds * (1 + next(self.noise))


def test_quiet_kernels_need_the_least_repeats_of_ten_milliseconds():
    clock = Clock(1e-4)
    assert timing.measure(clock, None) == [1e-4] * timing.LEAST
    assert clock.asked == [1, *[100] * timing.LEAST]


def test_noise_asks_for_more_up_to_a_limit():
    assert timing.LEAST < len(timing.measure(Clock(1e-4, (0, 0.03, -0.02, 0.01)), None)) <= timing.MOST
    assert len(timing.measure(Clock(1e-4, (0, 0.4, -0.5, 0.2, -0.3)), None)) == timing.MOST


def test_long_kernels_stop_at_three_repeats():
    assert len(timing.measure(Clock(0.4), None)) == 3


def test_clearly_slower_kernels_stop_at_two():
    assert len(timing.measure(Clock(0.1), 0.04)) == 2
    assert len(timing.measure(Clock(1e-4), 4e-5)) == 2
    assert len(timing.measure(Clock(1e-4), 6e-5)) == 3


def test_what_is_certainly_not_the_best_is_not_measured_to_a_percent():
    noise = (0, 0.03, -0.02, 0.01)
    assert len(timing.measure(Clock(1e-4, noise), 9e-5)) == 3
    assert len(timing.measure(Clock(1e-4, noise), 9.9e-5)) > timing.LEAST


def test_cold_runs_are_single():
    clock = Clock(1e-4)
    timing.measure(clock, None, hot=False)
    assert set(clock.asked) == {1}


def test_a_glance_does_not_ask_for_more_where_there_is_noise():
    assert len(timing.glance(Clock(1e-4, (0, 1.0, -0.5, 0.7, 0.2)))) == timing.LEAST
    clock = Clock(1e-3)
    timing.glance(clock)
    assert clock.asked == [1, *[10] * timing.LEAST]
    assert len(timing.glance(Clock(0.4))) == 1, "not longer than a measurement of a long kernel"


def test_comparison_alternates_its_order():
    order = []
    clocks = [lambda n, i=i: order.append(i) or 1e-3 * (i + 1) for i in range(3)]
    costs = timing.compare(clocks)
    assert [len(c) for c in costs] == [timing.ROUNDS_MOST] * 3
    assert order[3:15] == [0, 0, 1, 1, 2, 2, 2, 2, 1, 1, 0, 0], "each after a run to warm up"
    assert len(timing.compare([Clock(2.0), Clock(2.0)])[0]) == timing.ROUNDS_LEAST
