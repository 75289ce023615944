"""The real `Throttle`, driven through its synchronous methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autoglm_throttle import Demand, Outcome, Permit, Priority, Settings, Throttle
from autoglm_throttle.limiting.concurrency_limiter import Ticket
from autoglm_throttle.types import GpuSample
from benchmarks.loop.limiters.limiter import LimiterContext
from benchmarks.loop.plant import DeviceReading
from benchmarks.loop.request import Request
from benchmarks.loop.scenarios import Scenario

MEMORY_BYTES = 80 * 1024**3
POWER_W = 700.0
"""Limits of a common data-centre card."""


class UnusedProvider:
    """A provider that is never read: the loop passes the samples to the throttle."""

    name = "plant"
    min_interval_s = 0.0

    def read(self) -> Sequence[GpuSample]:
        """Return nothing: sampling is manual."""
        return ()

    def close(self) -> None:
        """Do nothing: there is no driver."""

    def reset_after_fork(self) -> None:
        """Do nothing: there is no driver."""


class ThrottleLimiter:
    """A `Throttle` with manual sampling, on the clock of the loop.

    Args:
        context: time, service and objective.
        scenario: source of rates and objective.
        policy: ``adaptive``, ``concurrency``, ``tiers`` or ``fixed``.
        tuning: further settings, by name.
    """

    def __init__(
        self, context: LimiterContext, scenario: Scenario, policy: str, tuning: Mapping[str, Any]
    ) -> None:
        self._context = context
        high, mid, low = scenario.rates_rps
        settings = {
            "policy": policy,
            "slo_s": None if scenario.slo_unset else scenario.slo_s,
            "rate_high_rps": high,
            "rate_mid_rps": mid,
            "rate_low_rps": low,
            **tuning,
        }
        self.throttle = Throttle(
            Settings(**settings), gpu=UnusedProvider(), sampling="manual", clock=context.scheduler.clock
        )
        self.throttle.start()
        self._demands = [Demand(priority) for priority in Priority]
        self._waiting: dict[Ticket, Request] = {}

    def arrive(self, request: Request) -> None:
        """Request admission from the throttle."""
        verdict = self.throttle.try_admit(self._demands[request.priority])
        if isinstance(verdict, Permit):
            request.tag = verdict
            self._context.admit(request)
        elif isinstance(verdict, Ticket):
            self._waiting[verdict] = request
            self._context.scheduler.at(verdict.arrived_s + verdict.max_wait_s, self._poll_ready)
        else:
            self._context.reject(request)
        if self._waiting:
            self._poll_ready(None)

    def ended(self, request: Request, *, ok: bool) -> None:
        """Settle the permit of the request."""
        request.tag.settle(Outcome.SUCCESS if ok else Outcome.FAILURE)

    def settled(self, replica: int) -> None:  # noqa: ARG002
        """Admit the tickets that became ready."""
        if self._waiting:
            self._poll_ready(None)

    def sample(self, readings: Sequence[DeviceReading]) -> None:
        """Pass the samples of the devices to the throttle, as the sampling thread does."""
        now = self._context.scheduler.now
        self.throttle.observe([_row(index, reading, now) for index, reading in enumerate(readings)])
        if self._waiting:
            self._poll_ready(None)

    def state(self) -> tuple[float | None, float | None]:
        """Return the factor of the control state and the concurrency limit."""
        snapshot = self.throttle.snapshot()
        return snapshot.control.factor, snapshot.concurrency.limit if snapshot.concurrency else None

    def _poll_ready(self, _event: object) -> None:
        for ticket, verdict in self.throttle.called():
            request = self._waiting.pop(ticket)
            if isinstance(verdict, Permit):
                request.tag = verdict
                self._context.admit(request)
            else:
                self._context.reject(request)


def _row(index: int, reading: DeviceReading, now: float) -> GpuSample:
    return GpuSample(
        device=f"card-{index}",
        index=index,
        taken_at_s=now,
        source="plant",
        utilization_pct=reading.utilization_pct,
        memory_used_bytes=int(reading.memory * MEMORY_BYTES),
        memory_total_bytes=MEMORY_BYTES,
        power_w=POWER_W * (0.25 + 0.75 * reading.work),
        power_limit_w=POWER_W,
    )
