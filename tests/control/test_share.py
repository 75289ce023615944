"""The share in force: down at once, up after three, and what it drifts to while nothing is told."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.control.staleness import SAMPLES_TO_TRUST, CapacityTracker, Staleness
from autoglm_throttle.types import MissingTelemetryMode, TelemetryState
from tests.control.views import T0, see, staleness, tiers, view

SHARES = st.sampled_from([0.0, 0.25, 0.5, 0.51, 0.75, 1.0]) | st.floats(0.0, 1.0)


def reported(
    share: CapacityTracker, *values: float, start: float = T0, ladder: Staleness | None = None
) -> list[float]:
    """One new sample a second; what is in force after each."""
    found = []
    for n, value in enumerate(values):
        share.observe(value, start + n, ladder or staleness(), start + n)
        found.append(share.at(start + n))
    return found


@pytest.mark.parametrize(
    ("values", "in_force"),
    [
        ([0.5, 1, 1, 1], [0.5, 0.5, 0.5, 1]),
        ([1, 0, 1, 0, 1, 1, 0], [1, 0, 0, 0, 0, 0, 0]),
        ([1, 0.25, 0.5, 1, 0.75, 1, 1], [1, 0.25, 0.25, 0.25, 0.5, 0.75, 0.75]),
        ([1, 0.5, 0.51, 0.5, 0.51, 0.52, 0.53, 0.53], [1, 0.5, 0.5, 0.5, 0.5, 0.5, 0.51, 0.52]),
        ([1, 0.5, 1, 1, 0.5, 1, 1, 1], [1, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 1]),
    ],
)
def test_down_at_once_and_up_after_three(values: list[float], in_force: list[float]) -> None:
    assert reported(CapacityTracker(staleness(), T0), *values) == in_force


@given(st.lists(SHARES, min_size=1, max_size=40))
def test_it_is_the_least_of_the_last_three(values: list[float]) -> None:
    found = reported(CapacityTracker(staleness(), T0), *values)
    assert found == [min(values[max(0, n - 2) : n + 1]) for n in range(len(values))]


@given(st.floats(0.0, 0.99), st.lists(st.floats(0.01, 0.99), min_size=4, max_size=9))
def test_several_sources_in_turn_are_one_sample_in_each_interval(left: float, steps: list[float]) -> None:
    share = CapacityTracker(staleness(), T0)
    reported(share, 1.0, left)
    now, counted, newest_s = T0 + 1, 0, -math.inf
    for step_s in steps:
        now += step_s
        if now - newest_s > 0.5:
            counted, newest_s = counted + 1, now
        share.observe(1.0, now, staleness(), now)
        assert share.at(now) == (1.0 if counted >= SAMPLES_TO_TRUST else left)


@given(
    st.lists(st.tuples(SHARES, st.floats(0.05, 45.0)), max_size=20),
    SHARES,
    st.sampled_from(MissingTelemetryMode),
)
def test_capacity_rises_only_at_the_third_report_never_by_loss(
    history: list[tuple[float, float]], loss: float, unknown: MissingTelemetryMode
) -> None:
    ladder = staleness(gpu_unknown=unknown)
    share, now, row = CapacityTracker(ladder, T0), T0, 0
    for n, (value, step_s) in enumerate(history):
        now += step_s
        before = share.at(now)
        share.observe(value, now, ladder, now)
        row = row + 1 if value > before else 0
        assert share.at(now) <= max(before, value)
        if n and row < SAMPLES_TO_TRUST:
            assert share.at(now) <= before
    before = share.at(now)
    share.observe(loss, now, ladder, now)
    assert share.at(now) == (min(loss, before) if history else loss)


@given(
    st.lists(SHARES, min_size=1, max_size=12),
    SHARES,
    st.floats(0.0, 200.0),
    st.sampled_from(MissingTelemetryMode),
)
def test_capacity_reported_three_times_is_in_force(
    history: list[float], then: float, silence_s: float, unknown: MissingTelemetryMode
) -> None:
    ladder = staleness(gpu_unknown=unknown)
    share = CapacityTracker(ladder, T0)
    reported(share, *history, ladder=ladder)
    assert reported(share, then, then, then, start=T0 + len(history) + silence_s, ladder=ladder)[-1] == then


class TestSilence:
    def rejecting_all(self, unknown: MissingTelemetryMode = MissingTelemetryMode.OPEN) -> CapacityTracker:
        share = CapacityTracker(staleness(gpu_unknown=unknown), T0 - 1)
        reported(share, 1.0, 0.0, start=T0 - 1, ladder=staleness(gpu_unknown=unknown))
        return share

    @pytest.mark.parametrize(
        "unknown", [MissingTelemetryMode.OPEN, MissingTelemetryMode.CLOSED, MissingTelemetryMode.CONSERVATIVE]
    )
    def test_it_drifts_to_all(self, unknown: MissingTelemetryMode) -> None:
        share = self.rejecting_all(unknown)
        assert [share.at(T0 + age) for age in (0, 3, 16.5, 30, 1e6)] == pytest.approx([0, 0, 0.5, 1, 1])
        holds_s = [share.valid_until(T0 + age) for age in (0, 0.5, 2.5, 10, 30.1)]
        assert holds_s == [T0 + 1, T0 + 1, T0 + 3.5, T0 + 10.25, math.inf]

    def test_what_is_left_holds_until_it_drifts(self) -> None:
        share = CapacityTracker(staleness(), T0)
        reported(share, 0.5)
        assert [share.valid_until(T0 + age) for age in (0, 2.9, 3.1)] == [T0 + 3, T0 + 3.15, T0 + 3.35]

    def test_it_is_held_where_the_last_is_assumed(self) -> None:
        assert self.rejecting_all(MissingTelemetryMode.LAST).at(T0 + 1e6) == 0.0

    def test_the_first_view_after_it_neither_lifts_nor_lowers_what_has_drifted(self) -> None:
        assert reported(self.rejecting_all(), 1.0, 1.0, 1.0, start=T0 + 16.5) == [0.5, 0.5, 1.0]
        assert reported(self.rejecting_all(), 1.0, start=T0 + 60) == [1.0]

    def test_loss_reported_after_it_is_trusted(self) -> None:
        assert reported(self.rejecting_all(), 0.25, start=T0 + 16.5) == [0.25]

    @pytest.mark.parametrize("unknown", [MissingTelemetryMode.OPEN, MissingTelemetryMode.LAST])
    def test_samples_from_before_it_do_not_count(self, unknown: MissingTelemetryMode) -> None:
        share = self.rejecting_all(unknown)
        ladder = staleness(gpu_unknown=unknown)
        reported(share, 0.9, 0.9, start=T0 + 1, ladder=ladder)
        back = reported(share, 0.9, 0.9, 0.9, start=T0 + 6, ladder=ladder)
        assert (back[0] < 0.2, back[1] < 0.2, back[2]) == (True, True, 0.9)

    def test_repeated_measurement_is_missing_telemetry(self) -> None:
        """A card that is listed but not measured any more: no proof, and not shut for ever either."""
        share, found = self.rejecting_all(), []
        for second in range(1, 40):
            share.observe(1.0, T0 + 1, staleness(), T0 + second)
            found.append(share.at(T0 + second))
        assert found[:4] == [0.0] * 4
        assert found == sorted(found)
        assert max(b - a for a, b in itertools.pairwise(found)) < 0.05
        assert found[-1] == 1.0

    def test_a_time_to_come_is_now(self) -> None:
        share = self.rejecting_all()
        for age in (1.0, 1.2, 1.4, 2.0, 2.2, 2.4, 3.0):
            assert share.at(T0 + age) == 0.0
            share.observe(1.0, T0 + 1000.0 + age, staleness(), T0 + age)
        assert share.at(T0 + 3.0) == 1.0


def test_reset_forgets_the_reported_capacity() -> None:
    share = CapacityTracker(staleness(), T0)
    reported(share, 0.25)
    share.is_first = True
    assert reported(share, 0.75, 1.0, start=T0 + 1) == [0.75, 0.75]


class TestRising:
    @given(
        seen=st.lists(st.sampled_from([0.0, 0.0, 0.5, 1.0]), max_size=8),
        unknown=st.sampled_from([MissingTelemetryMode.OPEN, MissingTelemetryMode.LAST]),
        interval_s=st.sampled_from([0.2, 1.0, 5.0]),
    )
    def test_it_names_the_first_sample_that_could(
        self, seen: list[float], unknown: MissingTelemetryMode, interval_s: float
    ) -> None:
        ladder = staleness(sample_interval_s=interval_s, gpu_unknown=unknown)
        share, now = CapacityTracker(ladder, T0), T0
        for value in [0.0, *seen]:
            now += interval_s
            share.observe(value, now, ladder, now)
        if share.at(now):
            return
        named_s = share.rises_at(now)
        while not share.at(now):
            assert named_s == pytest.approx(share.rises_at(now + interval_s / 2)), "it does not slide"
            assert now < named_s
            now += interval_s
            share.observe(1.0, now, ladder, now)
        assert now == pytest.approx(named_s)

    def test_a_slow_source_needs_its_own_time(self) -> None:
        """It is read each second and measures each thirty."""
        ladder = staleness().for_intervals(1.0, 30.0)
        share = CapacityTracker(staleness(), T0)
        share.observe(0.0, T0, ladder, T0)
        assert share.rises_at(T0) == T0 + 61
        for second in range(1, 61):
            share.observe(1.0, T0 + 1 + 30 * ((second - 1) // 30), ladder, T0 + second)
            assert (share.at(T0 + second), share.rises_at(T0 + second)) == (0.0, T0 + 61)
        share.observe(1.0, T0 + 61, ladder, T0 + 61)
        assert share.at(T0 + 61) == 1.0

    def test_overdue_is_one_interval_from_now_and_an_outage_begins_anew(self) -> None:
        share = CapacityTracker(staleness(gpu_unknown=MissingTelemetryMode.LAST), T0)
        reported(share, 0.0, 1.0, 1.0, ladder=staleness(gpu_unknown=MissingTelemetryMode.LAST))
        last = T0 + 2
        assert [share.rises_at(last + age) for age in (0, 1.5, 2.5, 9)] == [
            last + 1,
            last + 2.5,
            last + 5.5,
            last + 12,
        ]


@given(
    st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=20), st.sampled_from(MissingTelemetryMode)
)
def test_rejection_after_a_loss_ends_at_the_stated_time(
    history: list[float], unknown: MissingTelemetryMode
) -> None:
    """Whatever the table makes of the silence that a loss is."""
    controller, now = tiers(unknown=unknown), T0
    for left in [1.0, *history, 0.0]:
        now += 1.0
        state = see(controller, view(50.0 if left else None, left), now)
    assert state.factor == 0.0
    while not state.factor:
        assert now <= state.valid_until_s <= state.may_rise_at_s > now
        named_s = controller.control_state(now + 0.5).may_rise_at_s
        assert named_s == state.may_rise_at_s
        now += 1.0
        state = see(controller, view(50.0), now)
    assert now == named_s
    assert state.telemetry is TelemetryState.FRESH
