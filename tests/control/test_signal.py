"""Which signal is in force, how old it is, and in which rhythm its source promises it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from autoglm_throttle.control.signal import LOSS_HOLD_S, SignalTracker
from autoglm_throttle.settings.groups.control import ControlSettings
from autoglm_throttle.settings.groups.gpu import GpuSettings
from autoglm_throttle.types import GpuSample, GpuView, ServiceStats, Signal, TelemetryState
from tests.control.views import T0, staleness

BUSY = ServiceStats(p95_s=1.0, slo_s=2.0)


def listener(signal: Signal = Signal.AUTO) -> SignalTracker:
    return SignalTracker(ControlSettings(signal=signal), GpuSettings(), T0)


def cards(at_s: float, pct: float | None = 90.0) -> GpuView:
    return GpuView(at_s, pct, pct, None, None, 1.0, ())


def engine(at_s: float, device_at_s: float | None = None, pct: float | None = 90.0) -> GpuView:
    """One engine with half its queue target waiting, measured at ``at_s``, and maybe an older card."""
    return replace(
        cards(at_s if device_at_s is None else device_at_s, pct), queued=2, engines=1, engines_at_s=at_s
    )


@pytest.mark.parametrize("stated", [Signal.UTILIZATION, Signal.PRESSURE])
def test_a_stated_signal_stays(stated: Signal) -> None:
    hears = listener(stated)
    assert hears.signal is stated
    hears.observe(engine(T0), BUSY, T0)
    assert hears.signal is stated


def test_auto_uses_pressure_where_an_engine_reports() -> None:
    hears = listener()
    assert (hears.signal, hears.term) == (Signal.UTILIZATION, "utilization")
    news = hears.observe(cards(T0), BUSY, T0)
    assert news is not None
    assert (hears.signal, news[0]) == (Signal.UTILIZATION, 90.0)
    news = hears.observe(engine(T0 + 1), ServiceStats(), T0 + 1)
    assert news is not None
    assert (hears.signal, news[0], hears.term) == (Signal.PRESSURE, 40.0, "queue")


def test_silent_engine_leaves_the_signal_to_devices() -> None:
    hears = listener()
    hears.observe(engine(T0), ServiceStats(), T0)
    news = hears.observe(engine(T0, device_at_s=T0 + 3), ServiceStats(), T0 + 3)
    assert (hears.signal, news) == (Signal.PRESSURE, None), "three seconds is not stale yet"
    news = hears.observe(engine(T0, device_at_s=T0 + 4), ServiceStats(), T0 + 4)
    assert (hears.signal, news and news[0]) == (Signal.UTILIZATION, 90.0)
    news = hears.observe(engine(T0 + 5), ServiceStats(), T0 + 5)
    assert (hears.signal, news and news[0]) == (Signal.PRESSURE, 40.0), "it is heard again"


@pytest.mark.parametrize("pct", [None, 90.0])
def test_silent_engine_is_kept_if_devices_are_silent(pct: float | None) -> None:
    hears = listener()
    hears.observe(engine(T0, pct=pct), ServiceStats(), T0)
    assert hears.observe(engine(T0, device_at_s=T0, pct=pct), ServiceStats(), T0 + 4) is None
    assert hears.signal is Signal.PRESSURE
    assert hears.state(T0 + 4) is TelemetryState.STALE


def test_the_age_of_the_pressure_is_that_of_the_engine() -> None:
    hears = listener(Signal.PRESSURE)
    hears.observe(engine(T0 - 2, device_at_s=T0), ServiceStats(), T0)
    assert hears.state(T0) is TelemetryState.FRESH
    assert hears.state(T0 + 0.5) is TelemetryState.LATE
    assert hears.observe(engine(T0 - 2, device_at_s=T0 + 1), ServiceStats(), T0 + 1) is None, (
        "the same measurement again"
    )


@pytest.mark.parametrize(
    ("interval_s", "period_s", "fresh_s", "stale_s", "blind_s"),
    [
        (None, None, 2.0, 3.0, 30.0),
        (1.0, 0.0, 2.0, 3.0, 30.0),
        (0.2, None, 0.4, 3.0, 30.0),
        (10.0, None, 20.0, 30.0, 60.0),
        (1.0, 30.0, 31.0, 75.0, 150.0),
        (None, 1.0, 2.0, 3.0, 30.0),
    ],
)
def test_telemetry_states_follow_the_source_interval(
    interval_s: float | None, period_s: float | None, fresh_s: float, stale_s: float, blind_s: float
) -> None:
    ladder = staleness().for_intervals(interval_s, period_s)
    assert (ladder.fresh_s, ladder.stale_s, ladder.blind_s) == (fresh_s, stale_s, blind_s)
    assert ladder.for_intervals(interval_s, period_s) is ladder


def test_an_age_that_was_stated_counts_unless_the_source_is_slower() -> None:
    stated = staleness(gpu_stale_after_s=4.0)
    assert [stated.for_intervals(*rhythm).stale_s for rhythm in ((1.0, None), (2.0, None), (1.0, 30.0))] == [
        4.0,
        5.0,
        75.0,
    ]


def test_what_is_promised_with_a_view_counts_until_the_next() -> None:
    hears = listener()
    hears.observe(replace(cards(T0), interval_s=10.0), ServiceStats(), T0)
    assert hears.state(T0 + 20) is TelemetryState.FRESH
    assert hears.readmits_at(T0) == T0 + 30
    hears.observe(replace(cards(T0 + 10), interval_s=1.0), ServiceStats(), T0 + 10)
    assert hears.state(T0 + 12.5) is TelemetryState.LATE


def card(name: str, health: str = "ok") -> GpuSample:
    return GpuSample(device=name, index=0, taken_at_s=T0, source="t", health=health)  # type: ignore[arg-type]


def test_slow_device_is_no_loss_and_lost_device_is() -> None:
    hears = listener()
    instants = itertools.count()

    def see(capacity: float, second: str) -> float:
        now = T0 + next(instants)
        seen = replace(cards(now), capacity=capacity, devices=(card("a"), card("b", second)))
        hears.observe(replace(seen, weights={("", "a"): 0.5, ("", "b"): 0.5}), ServiceStats(), now)
        return now

    assert hears.may_release(see(1.0, "ok"))
    assert hears.may_release(see(0.8, "ok")), "slowed down by heat"
    now = see(0.5, "lost")
    assert not hears.may_release(now)
    assert hears.may_release(now + LOSS_HOLD_S)


def test_sources_that_are_read_in_turn_are_one_sample_in_each_interval() -> None:
    hears = listener()
    at = [T0 + step / 4 for step in range(13)]
    new = [time_s for time_s in at if hears.observe(cards(time_s), BUSY, time_s) is not None]
    assert new == [T0, T0 + 0.75, T0 + 1.5, T0 + 2.25, T0 + 3.0]


def test_a_sample_that_comes_a_little_early_counts() -> None:
    hears = listener()
    assert all(hears.observe(cards(T0 + 0.6 * step), BUSY, T0 + 0.6 * step) for step in range(5))
