"""Baselines of a device during progress, and samples that are not known to be work."""

from __future__ import annotations

import pytest

from autoglm_throttle.gpu.verdict.baselines import MAX_SECONDS_PER_GAP, WorkBaseline


class Device:
    """Record one measurement a second."""

    def __init__(self) -> None:
        self.at_work = WorkBaseline()
        self.now = 100.0

    def run(self, seconds: int, value: float | None, *, active: bool = True, waited_for: bool = True) -> None:
        for _ in range(seconds):
            self.now += 1.0
            self.at_work.learn(
                value, self.now, active=active, in_flight=waited_for, progressed_s=self.moved_s
            )

    moved_s: float | None = None

    def answers(self) -> None:
        self.moved_s = self.now


def test_nothing_is_known_before_something_came_out() -> None:
    device = Device()
    device.run(100, 170.0)
    assert device.at_work.mean is None


def test_the_seconds_of_an_answer_count_once_it_is_there() -> None:
    device = Device()
    device.run(100, 170.0)
    device.answers()
    device.run(1, 70.0, active=False, waited_for=False)
    assert device.at_work.mean == 170.0


def test_abandoned_request_teaches_nothing() -> None:
    device = Device()
    device.run(100, 70.0)
    device.run(1, 70.0, waited_for=False)
    device.answers()
    device.run(1, None, active=False, waited_for=False)
    assert device.at_work.mean is None


@pytest.mark.parametrize(("value", "active"), [(None, True), (70.0, False)], ids=["not known", "not active"])
def test_unknown_and_inactive_values_are_left_out(value: float | None, active: bool) -> None:
    device = Device()
    device.run(20, 200.0)
    device.run(20, value, active=active)
    device.answers()
    device.run(1, value, active=active)
    assert device.at_work.mean == 200.0


def test_hang_with_errors_moves_average_at_most_30_s() -> None:
    device = Device()
    for _ in range(300):
        device.run(1, 320.0)
        device.answers()
    device.run(600, 70.0)
    device.answers()
    device.run(1, 320.0)
    mean = device.at_work.mean
    assert mean is not None
    assert 200.0 < mean < 250.0


def test_a_pause_of_the_source_is_not_all_work() -> None:
    device = Device()
    device.run(1, 320.0)
    device.now += 3600.0
    device.run(1, 70.0)
    device.run(round(MAX_SECONDS_PER_GAP), 320.0)
    device.answers()
    device.run(1, 320.0)
    assert device.at_work.mean == pytest.approx(197.0, abs=3.0)
