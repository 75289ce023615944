"""Requests and starts of a fleet, for tests of its thread."""

from __future__ import annotations

from autoglm_throttle.store.fleet import FleetSync
from autoglm_throttle.types import Decision, Demand, Priority
from tests.store.clients import PATIENCE_S, Wire
from tests.store.polling import until

MID = Demand(Priority.MID)


async def admit(fleet: FleetSync, demand: Demand = MID) -> tuple[bool, bool]:
    """Admit a demand by leases as the request path does: whether it was admitted, and whether it waited."""
    with fleet.lock:
        settled = fleet.leases.is_decidable(demand, fleet.clock())
    if not settled:
        await fleet.ensure(demand)
    with fleet.lock:
        paid = fleet.leases.take(demand, fleet.clock())
    return not isinstance(paid, Decision), not settled


def beats(fleet: FleetSync, wire: Wire) -> None:
    """Start it and wait for its first sign of life."""
    fleet.start()
    wire.wait()
    until(
        lambda: fleet.leases.members == 1 and not fleet.leases.is_request_pending,
        PATIENCE_S,
        "the first answer",
    )
