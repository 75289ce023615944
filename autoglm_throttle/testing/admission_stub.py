"""Admission without limits that still counts, for tests of other things."""

from __future__ import annotations

from autoglm_throttle.admission.controller import ADMITTED, AdmissionController
from autoglm_throttle.admission.permit import Permit
from autoglm_throttle.types import Demand


def admit_all(admission: AdmissionController, demand: Demand) -> Permit:
    """Replaces ``AdmissionController.try_admit``: no limit is checked, and no tokens or units are taken."""
    settlement = admission.parts.settlement
    now = settlement.clock()
    with settlement.lock:
        settlement.counters.classes[demand.priority].admitted += 1
        if demand.holds_slot:
            settlement.limiter.occupy_over_limit(demand.priority)
    return Permit(settlement, demand, ADMITTED, now, now)
