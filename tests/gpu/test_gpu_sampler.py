"""Results of one reading, without a thread: checks, counts, reports and logs."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from autoglm_throttle.gpu.sampler import Sampler
from autoglm_throttle.types import GpuSample, ProviderMisconfigured, ProviderUnavailable
from autoglm_throttle.types.errors import NoSourceError
from tests.gpu.sampler_doubles import ROW, SampleRecorder, Source, StepClock, raising, sampler_threads


def test_tick_reads_in_caller_and_drops_implausible_values(
    listener: SampleRecorder, clock: StepClock
) -> None:
    odd = replace(ROW, utilization_pct=math.nan, power_w=-1.0)
    sampler = Sampler(Source(lambda: [odd, ROW]), listener.samples, interval_s=1.0, clock=clock)
    sampler.tick()
    assert listener.rows == [[replace(ROW, utilization_pct=None), ROW]]
    assert (sampler.status.implausible, sampler.status.failures, sampler.is_running) == (2, 0, False)


def test_an_empty_reading_is_not_handed_on(listener: SampleRecorder) -> None:
    Sampler(Source(list), listener.samples, listener.failure, interval_s=1.0).tick()
    assert not listener.rows
    assert not listener.errors


def test_a_failure_is_counted_reported_and_kept(listener: SampleRecorder, clock: StepClock) -> None:
    error = ProviderUnavailable("no driver")
    source = Source(raising(error))
    sampler = Sampler(source, listener.samples, listener.failure, interval_s=1.0, clock=clock)
    sampler.tick()
    assert (sampler.status.failures, sampler.status.last_error, listener.errors) == (1, "no driver", [error])
    source.reading = lambda: [ROW]
    sampler.tick()
    assert (sampler.status.failures, len(listener.rows)) == (1, 1)
    assert sampler.status.last_error is not None


def test_without_a_listener_a_failure_is_only_counted(listener: SampleRecorder) -> None:
    sampler = Sampler(Source(raising(OSError("x"))), listener.samples, interval_s=1.0)
    sampler.tick()
    assert sampler.status.failures == 1


def test_error_is_logged_once_in_thirty_seconds(
    listener: SampleRecorder, clock: StepClock, caplog: pytest.LogCaptureFixture
) -> None:
    sampler = Sampler(Source(raising(OSError("x"))), listener.samples, interval_s=1.0, clock=clock)
    with caplog.at_level(logging.INFO, "autoglm_throttle"):
        for _ in range(31):
            sampler.tick()
            clock.now += 1.0
    line = "GPU telemetry: source: OSError: x"
    assert caplog.messages == [line, f"{line} (29 more since the last line)"]


def test_after_three_retries_the_driver_is_opened_anew(listener: SampleRecorder, clock: StepClock) -> None:
    source = Source(raising(OSError("x")))
    sampler = Sampler(source, listener.samples, interval_s=1.0, clock=clock)
    for _ in range(6):
        sampler.tick()
    assert source.calls == ["read"] * 4 + ["close", "read"] * 2


def test_nothing_there_is_no_failure_and_is_visible(listener: SampleRecorder, clock: StepClock) -> None:
    source = Source(raising(NoSourceError("no GPU found")))
    sampler = Sampler(source, listener.samples, listener.failure, interval_s=1.0, clock=clock)
    sampler.tick()
    assert (sampler.status.no_source, sampler.status.failures, len(listener.errors)) == ("no GPU found", 0, 1)
    source.reading = lambda: [ROW]
    sampler.tick()
    assert sampler.status.no_source is None


def test_a_misconfiguration_is_visible_and_critical(
    listener: SampleRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    source = Source(raising(ProviderMisconfigured("install it")))
    sampler = Sampler(source, listener.samples, listener.failure, interval_s=1.0)
    sampler.tick()
    assert sampler.status.misconfigured == sampler.status.last_error == "install it"
    assert (caplog.records[0].levelno, len(listener.errors)) == (logging.CRITICAL, 1)
    source.reading = lambda: [ROW]
    sampler.tick()
    assert sampler.status.misconfigured is None


def test_a_listener_that_raises_is_caught_and_counted(listener: SampleRecorder) -> None:
    def broken(argument: object) -> None:
        raise ZeroDivisionError

    source = Source()
    sampler = Sampler(source, broken, broken, interval_s=1.0)
    sampler.tick()
    source.reading = raising(OSError("x"))
    sampler.tick()
    assert (sampler.status.callback_errors, sampler.status.failures) == (2, 1)


@pytest.mark.parametrize(("took_s", "overruns"), [(0.2, 0), (0.5, 0), (0.6, 1)])
def test_a_read_longer_than_half_the_interval_is_an_overrun(
    listener: SampleRecorder, clock: StepClock, took_s: float, overruns: int
) -> None:
    def slow() -> Sequence[GpuSample]:
        clock.now += took_s
        return [ROW]

    sampler = Sampler(Source(slow), listener.samples, interval_s=1.0, clock=clock)
    sampler.tick()
    assert sampler.status.overruns == overruns


def test_stop_without_thread_closes_and_tick_still_works(listener: SampleRecorder) -> None:
    source = Source()
    sampler = Sampler(source, listener.samples, interval_s=1.0)
    sampler.tick()
    sampler.stop()
    sampler.tick()
    assert source.calls == ["read", "close", "read"]
    assert len(listener.rows) == 2


def test_a_close_that_raises_is_only_logged(
    listener: SampleRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source()
    monkeypatch.setattr(source, "close", raising(OSError("shutdown")))
    sampler = Sampler(source, listener.samples, interval_s=1.0)
    sampler.stop()
    assert sampler.status.last_error == "OSError: shutdown"


@pytest.mark.parametrize(("woken", "wait_s"), [(False, 5.0), (True, 0.25)])
def test_wake_reads_at_once_within_provider_minimum(
    listener: SampleRecorder, clock: StepClock, woken: bool, wait_s: float
) -> None:
    sampler = Sampler(Source(min_interval_s=0.25), listener.samples, interval_s=5.0, clock=clock)
    sampler.tick()
    if woken:
        sampler.wake()
    assert sampler.schedule.wait_s(clock.now, 0.25) == wait_s


def test_the_interval_is_at_least_that_of_the_provider(listener: SampleRecorder, clock: StepClock) -> None:
    sampler = Sampler(Source(min_interval_s=2.0), listener.samples, interval_s=0.5, clock=clock)
    sampler.tick()
    assert sampler.schedule.due_s == clock.now + 2.0


@pytest.mark.parametrize("interval_s", [0.0, -1.0, math.nan])
def test_impossible_interval_is_rejected(listener: SampleRecorder, interval_s: float) -> None:
    with pytest.raises(ValueError, match="interval_s"):
        Sampler(Source(), listener.samples, interval_s=interval_s)


# The rhythm changes.


@pytest.mark.parametrize(("interval_s", "due_s"), [(0.5, 0.5), (2.0, 1.0)])
def test_listener_interval_is_sooner_now_later_after_read(
    clock: StepClock, interval_s: float, due_s: float
) -> None:
    sampler = Sampler(Source(), lambda rows: sampler.set_interval(interval_s), interval_s=1.0, clock=clock)
    sampler.tick()
    assert sampler.status.callback_errors == 0
    assert sampler.interval_s == interval_s
    assert sampler.schedule.due_s == clock.now + due_s
    clock.now += due_s
    sampler.tick()
    assert sampler.schedule.due_s == clock.now + interval_s


def test_no_pace_is_faster_than_the_provider_allows(listener: SampleRecorder, clock: StepClock) -> None:
    sampler = Sampler(Source(min_interval_s=2.0), listener.samples, interval_s=10.0, clock=clock)
    sampler.tick()
    sampler.set_interval(0.1)
    assert (sampler.interval_s, sampler.schedule.due_s) == (2.0, clock.now + 2.0)


def test_no_pace_cuts_the_back_off_short(listener: SampleRecorder, clock: StepClock) -> None:
    sampler = Sampler(Source(raising(OSError("x"))), listener.samples, interval_s=5.0, clock=clock)
    for _ in range(7):
        sampler.tick()
    due_s = sampler.schedule.due_s
    sampler.set_interval(0.2)
    assert sampler.schedule.due_s == due_s == clock.now + 8.0
    assert sampler.schedule.reopens


@pytest.mark.parametrize("interval_s", [0.0, -1.0, math.nan, math.inf])
def test_rejected_interval_changes_nothing(listener: SampleRecorder, interval_s: float) -> None:
    sampler = Sampler(Source(), listener.samples, interval_s=1.0)
    with pytest.raises(ValueError, match="interval_s"):
        sampler.set_interval(interval_s)
    assert sampler.interval_s == 1.0


@pytest.mark.parametrize(("interval_s", "overruns"), [(1.0, 1), (10.0, 0)])
def test_the_deadline_follows_the_pace(
    listener: SampleRecorder, clock: StepClock, interval_s: float, overruns: int
) -> None:
    def slow() -> Sequence[GpuSample]:
        clock.now += 0.6
        return [ROW]

    sampler = Sampler(Source(slow), listener.samples, interval_s=1.0, clock=clock)
    sampler.set_interval(interval_s)
    sampler.tick()
    assert sampler.status.overruns == overruns


# What it tells of itself.


def test_last_read_and_reading_since_are_reported(listener: SampleRecorder, clock: StepClock) -> None:
    seen: list[float | None] = []

    def slow() -> Sequence[GpuSample]:
        seen.append(sampler.status.reading_since_s)
        clock.now += 0.25
        return rows

    rows: list[GpuSample] = []
    sampler = Sampler(Source(slow), listener.samples, interval_s=1.0, clock=clock)
    began = clock.now
    sampler.tick()
    assert (seen, sampler.status.reading_since_s, sampler.status.last_read_s) == ([began], None, None), (
        "no rows, no sample"
    )
    rows.append(ROW)
    sampler.tick()
    assert (sampler.status.reading_since_s, sampler.status.last_read_s) == (None, clock.now)
    assert sampler.name == "source"


@pytest.mark.parametrize("error", [OSError("x"), SystemExit()])
def test_a_read_that_raises_is_over_and_is_no_sample(listener: SampleRecorder, error: BaseException) -> None:
    sampler = Sampler(Source(raising(error)), listener.samples, interval_s=1.0)
    with contextlib.suppress(SystemExit):
        sampler.tick()
    assert (sampler.status.reading_since_s, sampler.status.last_read_s) == (None, None)


def test_stopped_sampler_is_not_restarted(listener: SampleRecorder, clock: StepClock) -> None:
    source = Source()
    sampler = Sampler(source, listener.samples, interval_s=1.0, clock=clock)
    sampler.tick()
    sampler.restart_if_dead(clock.now + 1000.0)
    assert not sampler_threads()
    assert source.calls == ["read"]


def test_view_shows_the_state(listener: SampleRecorder) -> None:
    sampler = Sampler(Source(raising(ProviderMisconfigured("x"))), listener.samples, interval_s=1.0)
    assert sampler.view(0.0).state == "starting"
    sampler.tick()
    view = sampler.view(0.0)
    assert (view.name, view.state, view.last_error, view.failures) == ("source", "misconfigured", "x", 1)
