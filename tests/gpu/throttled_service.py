"""A whole throttle on a manual clock, with sources and arrivals that the test commands."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from autoglm_throttle import (
    ControlState,
    Demand,
    GpuProvider,
    Permit,
    Priority,
    Reason,
    Rejection,
    Settings,
    Throttle,
)
from autoglm_throttle.gpu.select import providers
from autoglm_throttle.settings.groups.gpu import GpuSettings
from autoglm_throttle.testing import FakeGpu, ManualClock
from autoglm_throttle.types import GpuCondition, GpuSample, GpuVerdict

RATES: dict[str, Any] = {"rate_high_rps": 100.0, "rate_mid_rps": 50.0, "rate_low_rps": 20.0, "burst_s": 1.0}
"""Rates small enough to count single requests."""

NOMINAL_RPS = 170.0
START_S = ManualClock()()
WALL_S = 1_763_759_000.0
LONGEST_S = 60.0
STEP_S = 1 / 16  # exact, so that ages are


class Service:
    """One service: its throttle, its clock, and its running requests.

    Args:
        sources: telemetry sources; None: one fake GPU.
        clock: the clock that the sources share.
        settings: settings by lower-case name.
    """

    def __init__(
        self,
        sources: GpuProvider | Sequence[GpuProvider] | None = None,
        clock: ManualClock | None = None,
        **settings: Any,
    ) -> None:
        self.clock = clock if clock is not None else ManualClock()
        chosen = {"policy": "tiers", "retry_jitter": 0.0, **RATES, **settings}
        source = FakeGpu(clock=self.clock) if sources is None else sources
        self.throttle = Throttle(Settings(**chosen), gpu=source, sampling="manual", clock=self.clock)
        self.rejected: Counter[str] = Counter()
        """Rejections by detail."""
        self.reasons: Counter[Reason] = Counter()
        self._work: deque[tuple[float, Permit]] = deque()
        self._request_number = 0

    def tick(self, times: int = 1, every_s: float = 1.0) -> ControlState:
        """Advance the time and read every source, repeatedly."""
        for _ in range(times):
            self._finish(self.clock.advance(every_s))
            self.throttle.tick()
        return self.throttle.control_state()

    def request(self, priority: Priority = Priority.MID) -> Permit | None:
        """Send one request that does not wait in the queue."""
        verdict = self.throttle.try_admit(Demand(priority))
        if isinstance(verdict, Permit):
            return verdict
        if isinstance(verdict, Rejection):
            _check_retry_after(verdict)
            self.rejected[verdict.decision.detail] += 1
            self.reasons[verdict.decision.reason] += 1
        else:
            self.throttle.leave(verdict)
            self.rejected["queue"] += 1
        return None

    def detail(self, priority: Priority = Priority.MID) -> str:
        """Return the detail of a rejection now; empty if the request is admitted."""
        verdict = self.throttle.try_admit(Demand(priority))
        if isinstance(verdict, Permit):
            verdict.settle()
            return ""
        assert isinstance(verdict, Rejection)
        _check_retry_after(verdict)
        return verdict.decision.detail

    def wait_s(self, priority: Priority = Priority.MID) -> float:
        """Return the retry time of a rejection now."""
        verdict = self.throttle.try_admit(Demand(priority))
        assert isinstance(verdict, Rejection)
        return verdict.decision.retry_after_s

    def overload(self, seconds: int, rps: float = 2.5 * NOMINAL_RPS, takes_s: float = 0.0) -> list[int]:
        """Send requests of all priorities at a rate, and sample each second.

        Args:
            seconds: how long.
            rps: requests per second.
            takes_s: seconds of work of each one.

        Returns:
            Number of admissions in each second.
        """
        admitted = []
        owed = 0.0
        for _ in range(seconds):
            count = 0
            for _ in range(round(1.0 / STEP_S)):
                self._finish(self.clock.advance(STEP_S))
                owed += rps * STEP_S
                while owed >= 1.0:
                    owed -= 1.0
                    permit = self.request(self._next_priority())
                    if permit is not None:
                        count += 1
                        self._work.append((self.clock() + takes_s, permit))
            self.throttle.tick()
            admitted.append(count)
        return admitted

    def hang(self, requests: int = 1) -> list[Permit]:
        """Start requests that do not end."""
        permits = [self.request(Priority.HIGH) for _ in range(requests)]
        return [permit for permit in permits if permit is not None]

    @property
    def verdict(self) -> GpuVerdict:
        """Return the verdict of the only device."""
        (verdict,) = self.verdicts
        return verdict

    @property
    def verdicts(self) -> list[GpuVerdict]:
        """Return the verdicts of all devices, in their order."""
        view = self.throttle.snapshot().view
        assert view is not None
        return list(view.verdicts.values())

    @property
    def findings(self) -> list[GpuCondition]:
        """Return the conditions of the devices."""
        return [verdict.condition for verdict in self.verdicts]

    @property
    def telemetry_rejections(self) -> int:
        """Return the number of rejections caused by telemetry."""
        return self.reasons[Reason.GPU]

    def _next_priority(self) -> Priority:
        self._request_number = (self._request_number + 1) % 10
        return (
            Priority.LOW
            if self._request_number == 0
            else Priority.MID
            if self._request_number < 4
            else Priority.HIGH
        )

    def _finish(self, now: float) -> None:
        while self._work and self._work[0][0] <= now:
            self._work.popleft()[1].settle()


def of_settings(*items: str, selector: str = "", **settings: Any) -> Service:
    """Build a service with sources named by settings, as in production; the wall clock is `WALL_S`."""
    clock = ManualClock()
    sources = providers(
        GpuSettings(gpu=items, gpu_selector=selector),
        clock=clock,
        wall=lambda: WALL_S + clock() - START_S,
        manual=True,
    )
    return Service(sources, clock, **settings)


def _check_retry_after(rejection: Rejection) -> None:
    """Check that a rejection states a retry time of at most a minute."""
    assert 0.0 <= rejection.decision.retry_after_s <= LONGEST_S, rejection


class Named(FakeGpu):
    """A fake GPU under a name of its own, with an engine of its own."""

    def __init__(
        self, name: str, clock: ManualClock, devices: int = 1, engines: int = 0, *, own: bool = False
    ) -> None:
        super().__init__(devices, engines=engines, clock=clock)
        self.name = name
        self._apart = own
        """Whether its devices differ from those of another source."""

    def read(self) -> Sequence[GpuSample]:
        return [self._named(row) for row in super().read()]

    def _named(self, row: GpuSample) -> GpuSample:
        if row.kind == "engine":
            return replace(row, device=f"{self.name}#{row.index}")
        return replace(row, device=f"{self.name}/{row.device}") if self._apart else row
