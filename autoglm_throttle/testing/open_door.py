"""Admission without limits that still counts, for tests of other things."""

from __future__ import annotations

from autoglm_throttle.door import ADMITTED
from autoglm_throttle.model import Demand
from autoglm_throttle.permit import Permit
from autoglm_throttle.throttle import Throttle


def admit_everything(throttle: Throttle, demand: Demand) -> Permit:
    """Replaces ``Throttle.try_admit``: no limit is checked, and no tokens or units are taken."""
    desk = throttle._settlement  # noqa: SLF001 - of this package, and a test holds the two together
    rows = desk.counters
    now = rows.clock()
    with rows.lock:
        rows.classes[demand.priority].admitted += 1
        if demand.holds_slot:
            desk.limiter.occupy_over_limit()
    return Permit(desk, demand, ADMITTED, now, now)
