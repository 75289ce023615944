"""The GPU monitor: state of each source, stop timeout, and idle sampling."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

import pytest

from autoglm_throttle.gpu.monitor import JOIN_S, GpuMonitor
from autoglm_throttle.gpu.sampler import THREAD
from autoglm_throttle.settings.groups.gpu import GpuSettings, VerdictSettings
from autoglm_throttle.testing import FakeGpu, ManualClock
from autoglm_throttle.types import (
    ControlCause,
    ControlState,
    GpuProvider,
    GpuSample,
    ProviderMisconfigured,
    ProviderUnavailable,
    ServiceStats,
    TelemetryState,
)
from autoglm_throttle.types.errors import NoSourceError

IDLE = ServiceStats()


class Named(FakeGpu):
    """A fake source with a name of its own."""

    def __init__(self, name: str, **others: Any) -> None:
        super().__init__(**others)
        self.name = name


class Listener:
    """Records the calls of a monitor."""

    def __init__(self) -> None:
        self.observed: list[tuple[str, float | None]] = []
        self.lost: list[bool] = []

    def observe(self, samples: Sequence[GpuSample], source: str, interval_s: float | None) -> None:
        self.observed.append((source, interval_s))

    def source_lost(self, existed: bool) -> None:
        self.lost.append(existed)


def monitor(*providers: GpuProvider, clock: ManualClock | None = None, **settings: Any) -> GpuMonitor:
    gpu = GpuSettings(**settings)
    listener = Listener()  # weakly held: gone at once
    return GpuMonitor(
        gpu, VerdictSettings(), providers, listener.observe, listener.source_lost, clock or ManualClock()
    )


def listening(providers: Sequence[GpuProvider], listener: Listener, clock: ManualClock) -> GpuMonitor:
    settings = GpuSettings(), VerdictSettings()
    return GpuMonitor(*settings, providers, listener.observe, listener.source_lost, clock)


def states(watched: GpuMonitor, clock: ManualClock) -> dict[str, str]:
    return {source.name: source.state for source in watched.views(clock())}


def test_each_source_has_its_own_view() -> None:
    clock = ManualClock()
    well, away, wrong = (Named(name, clock=clock) for name in ("well", "away", "wrong"))
    watched = monitor(well, away, wrong, clock=clock)
    assert states(watched, clock) == {"well": "starting", "away": "starting", "wrong": "starting"}
    away.fail_with(ProviderUnavailable("gone fishing"))
    wrong.fail_with(ProviderMisconfigured("no such card"))
    watched.tick()
    assert states(watched, clock) == {"well": "reading", "away": "failing", "wrong": "misconfigured"}
    report = {source.name: source.last_error for source in watched.views(clock())}
    assert report["well"] == ""
    assert "gone fishing" in report["away"]
    assert "no such card" in report["wrong"]
    away.recover()
    clock.advance(2.0)
    watched.tick()
    assert states(watched, clock)["away"] == "reading"
    assert watched.error_count == 3, "the wrong one is read again, in manual mode"


def test_a_read_that_hangs_shows_while_it_lasts() -> None:
    clock = ManualClock()
    hung = Named("hung", blocks=True, clock=clock)
    hung.hang()
    watched = monitor(hung, clock=clock)
    try:
        watched.start()
        deadline = time.monotonic() + 60.0
        while watched.samplers["hung"].status.reading_since_s is None and time.monotonic() < deadline:
            threading.Event().wait(0.001)
        assert states(watched, clock) == {"hung": "starting"}
        clock.advance(0.6)
        assert states(watched, clock) == {"hung": "hanging"}
    finally:
        hung.recover()
        watched.stop()


def test_several_hung_reads_are_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    waits_s: list[float] = []
    join = threading.Thread.join

    def recorded_calls(thread: threading.Thread, timeout: float | None = None) -> None:
        assert timeout is not None
        waits_s.append(timeout)
        join(thread, timeout)

    hung = [Named(f"hung{n}", blocks=True) for n in range(3)]
    for one in hung:
        one.hang()
    watched = monitor(*hung)
    watched.start()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "join", recorded_calls)
        watched.stop()
    for one in hung:
        one.recover()
    assert 0.0 < sum(waits_s) <= JOIN_S


def test_duplicate_source_name_is_rejected() -> None:
    with pytest.raises(ValueError, match="two sources have the same name"):
        monitor(Named("a"), Named("a"))


def test_only_when_no_source_is_left_is_there_silence() -> None:
    clock, listener = ManualClock(), Listener()
    device, engine = Named("card", clock=clock), Named("engine", clock=clock)
    watched = listening([device, engine], listener, clock)
    assert watched.providers == (device, engine)
    device.fail_with(ProviderMisconfigured("no"))
    watched.tick()
    assert listener.lost == []
    assert listener.observed == [("engine", 1.0)]
    engine.fail_with(ProviderMisconfigured("no"))
    clock.advance(1.0)
    watched.tick()
    assert listener.lost[-1] is True


def test_missing_sources_never_existed() -> None:
    clock, listener = ManualClock(), Listener()
    device = Named("card", clock=clock)
    watched = listening([device], listener, clock)
    device.fail_with(NoSourceError("no GPU found"))
    watched.tick()
    assert listener.lost == [False]
    device.recover()
    clock.advance(60.0)
    watched.tick()
    device.fail_with(ProviderMisconfigured("no"))
    clock.advance(1.0)
    watched.tick()
    assert listener.lost == [False, True]


def test_monitor_keeps_no_listener_alive() -> None:
    clock, listener = ManualClock(), Listener()
    watched = listening([Named("card", clock=clock)], listener, clock)
    alive = weakref.ref(listener)
    del listener
    gc.collect()
    assert alive() is None
    watched.tick()
    assert states(watched, clock) == {"card": "reading"}


def test_abandoned_monitor_ends_its_threads() -> None:
    watched = monitor(Named("abandoned"))
    watched.start()
    (thread,) = [one for one in threading.enumerate() if one.name == f"{THREAD}-abandoned"]
    del watched
    gc.collect()
    thread.join(60.0)
    assert not thread.is_alive()


CALM = ControlState(1.0, 1.0, 0.1, 0.0, ControlCause.CALM, TelemetryState.FRESH, 0.0)


def rested(load: float | None, *, busy: bool = False, adaptive: bool = True) -> GpuMonitor:
    """After a minute with this load."""
    clock, gpu = ManualClock(), Named("card")
    watched = monitor(gpu, clock=clock, sample_adaptive=adaptive)
    rows: Sequence[GpuSample] = []
    for second in range(90):
        rows = [GpuSample(device="GPU-a", index=0, taken_at_s=clock(), source="card", utilization_pct=5.0)]
        view = watched.merge(rows, IDLE, clock(), source="card", interval_s=1.0)
        watched.schedule_next(view, CALM, load, busy=busy and second % 2 == 0, now=clock())
        clock.advance(1.0)
    return watched


@pytest.mark.parametrize(("load", "interval_s"), [(0.1, 10.0), (0.5, 5.0), (0.8, 1.0), (None, 1.0)])
def test_idle_device_is_sampled_less_often(load: float | None, interval_s: float) -> None:
    watched = rested(load)
    assert [source.interval_s for source in watched.views(0.0)] == [interval_s]
    assert watched.is_idle is (interval_s > 1.0)


def test_a_fixed_interval_stays() -> None:
    watched = rested(0.1, adaptive=False)
    assert [source.interval_s for source in watched.views(0.0)] == [1.0]
    assert not watched.is_idle


def test_request_wakes_idle_sampler_once() -> None:
    watched = rested(0.1)
    watched.wake(0.0)
    assert not watched.is_idle
