"""Admission without limits that still counts, for tests of other things."""

from __future__ import annotations

from autoglm_throttle.admission.controller import ADMITTED, AdmissionController
from autoglm_throttle.admission.permit import Permit
from autoglm_throttle.limiting.work_class import NO_SLOT
from autoglm_throttle.types import Demand


def admit_all(admission: AdmissionController, demand: Demand, work_class_name: str = "") -> Permit:
    """Replaces ``AdmissionController.try_admit``: no limit is checked, and no tokens or units are taken."""
    settlement = admission.parts.settlement
    limiter, now = settlement.limiter, settlement.clock()
    with settlement.lock:
        work_class = limiter.work_classes[work_class_name or demand.work_class]
        settlement.counters.classes[demand.priority].admitted += 1
        slot = limiter.occupy_over_limit(demand, work_class) if demand.holds_slot else NO_SLOT
    return Permit(settlement, demand, ADMITTED, now, now, work_class, slot)
