"""The real `Throttle`, through its synchronous face: nothing of it is copied here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autoglm_throttle import Demand, Outcome, Permit, Priority, Settings, Throttle
from autoglm_throttle.limiting.concurrency_limiter import Ticket
from autoglm_throttle.types import GpuSample
from benchmarks.loop.doors.door import Site
from benchmarks.loop.plant import Card
from benchmarks.loop.request import Request
from benchmarks.loop.scenarios import Scenario

MEMORY_BYTES = 80 * 1024**3
POWER_W = 700.0
"""Limits of a common data-centre card."""


class NoReader:
    """A provider that is never asked: the loop hands the samples over itself."""

    name = "plant"
    min_interval_s = 0.0

    def read(self) -> Sequence[GpuSample]:
        """Nothing: sampling is manual."""
        return ()

    def close(self) -> None:
        """There is no driver."""

    def reset_after_fork(self) -> None:
        """There is no driver."""


class ThrottleDoor:
    """A `Throttle` with manual sampling, on the loop's clock.

    Args:
        site: where it stands.
        scenario: what the settings are made for.
        policy: ``adaptive``, ``gate``, ``tiers`` or ``fixed``.
        tuning: other settings than the defaults, by name.
    """

    def __init__(self, site: Site, scenario: Scenario, policy: str, tuning: Mapping[str, Any]) -> None:
        self._site = site
        high, mid, low = scenario.rates_rps
        settings = {
            "policy": policy,
            "slo_s": scenario.told_s or scenario.slo_s,
            "rate_high_rps": high,
            "rate_mid_rps": mid,
            "rate_low_rps": low,
            **tuning,
        }
        self.throttle = Throttle(
            Settings(**settings), gpu=NoReader(), sampling="manual", clock=site.agenda.clock
        )
        self.throttle.start()
        self._demands = [Demand(priority) for priority in Priority]
        self._waiting: dict[Ticket, Request] = {}

    def arrive(self, request: Request) -> None:
        """Ask the throttle."""
        verdict = self.throttle.try_admit(self._demands[request.priority])
        if isinstance(verdict, Permit):
            request.tag = verdict
            self._site.enter(request)
        elif isinstance(verdict, Ticket):
            self._waiting[verdict] = request
            self._site.agenda.at(verdict.arrived_s + verdict.max_wait_s, self._call)
        else:
            self._site.refuse(request)
        if self._waiting:
            self._call(None)

    def ended(self, request: Request, *, ok: bool) -> None:
        """Settle its permit."""
        request.tag.settle(Outcome.SUCCESS if ok else Outcome.FAILURE)

    def settled(self, replica: int) -> None:  # noqa: ARG002
        """Let in whose turn it is."""
        if self._waiting:
            self._call(None)

    def sample(self, cards: Sequence[Card]) -> None:
        """Hand the cards' rows to the throttle, as the sampling thread does."""
        now = self._site.agenda.now
        self.throttle.observe([_row(index, card, now) for index, card in enumerate(cards)])
        if self._waiting:
            self._call(None)

    def state(self) -> tuple[float | None, float | None]:
        """The factor of the control state and the concurrency limit."""
        snapshot = self.throttle.snapshot()
        return snapshot.control.factor, snapshot.concurrency.limit if snapshot.concurrency else None

    def _call(self, _what: object) -> None:
        for ticket, verdict in self.throttle.called():
            request = self._waiting.pop(ticket)
            if isinstance(verdict, Permit):
                request.tag = verdict
                self._site.enter(request)
            else:
                self._site.refuse(request)


def _row(index: int, card: Card, now: float) -> GpuSample:
    return GpuSample(
        device=f"card-{index}",
        index=index,
        taken_at_s=now,
        source="plant",
        utilization_pct=card.utilization_pct,
        memory_used_bytes=int(card.memory * MEMORY_BYTES),
        memory_total_bytes=MEMORY_BYTES,
        power_w=POWER_W * (0.25 + 0.75 * card.work),
        power_limit_w=POWER_W,
    )
