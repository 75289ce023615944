"""What a request and a start do with a fleet, for tests of its thread."""

from __future__ import annotations

from autoglm_throttle.limiting.shared.redis_fleet import Fleet
from autoglm_throttle.model import Decision, Demand, Priority
from tests.fleet.clients import PATIENCE_S, Wire
from tests.stores.polling import until

RATES = (1000.0, 500.0, 100.0)
MID = Demand(Priority.MID)


async def admit(fleet: Fleet, demand: Demand = MID) -> tuple[bool, bool]:
    """What the path of a request does with leases: whether it was admitted, and whether it waited."""
    with fleet._lock:
        settled = fleet.leases.covers(demand, fleet._clock())
    if not settled:
        await fleet.cover(demand)
    with fleet._lock:
        paid = fleet.leases.take(demand, fleet._clock())
    return not isinstance(paid, Decision), not settled


def beats(fleet: Fleet, wire: Wire) -> None:
    """Start it and wait for its first sign of life."""
    fleet.start()
    wire.wait()
    until(lambda: fleet.leases.members == 1 and not fleet.leases._asking, PATIENCE_S, "the first answer")
