"""Resource quotas in admission: a check before tokens are taken, and a permit that reserves memory."""

from __future__ import annotations

from autoglm_throttle.admission.permit import Permit
from autoglm_throttle.admission.settlement import Settlement
from autoglm_throttle.control.quota import Quota
from autoglm_throttle.limiting.decisions import HasTokens
from autoglm_throttle.limiting.token_bucket import PriorityBuckets
from autoglm_throttle.limiting.work_class import WorkClass
from autoglm_throttle.store.fleet import LeasedBuckets
from autoglm_throttle.types import Decision, Demand, Outcome, ResourceAdvice


class QuotaCheck:
    """Priority buckets that reject a demand without memory before taking tokens."""

    __slots__ = ("_buckets", "_quota")

    def __init__(self, buckets: PriorityBuckets | LeasedBuckets, quota: Quota) -> None:
        self._buckets = buckets
        self._quota = quota

    def take(self, demand: Demand, now: float) -> HasTokens | Decision:
        """Take the tokens of a demand; a rejection takes nothing."""
        rejection = self._quota.rejection(demand, now)
        return self._buckets.take(demand, now) if rejection is None else rejection


class QuotaPermit(Permit):
    """A permit that carries resource advice, and counts against the quotas."""

    __slots__ = ("_advice", "_load")

    def __init__(
        self, quota: Quota, *arguments: *tuple[Settlement, Demand, Decision, float, float, WorkClass, int]
    ) -> None:
        super().__init__(*arguments)
        self._advice = quota.advice(self.demand, self.admitted_s)
        self._load = quota.reserve(self.demand) if self.demand.holds_slot else None

    @property
    def advice(self) -> ResourceAdvice:
        """Advice on serving the request."""
        return self._advice

    def settle(self, outcome: Outcome = Outcome.SUCCESS, *, client_error: bool = False) -> None:
        """Settle the request with its outcome, and free its reserved memory."""
        self._settlement.lock.run(self._free_memory)
        super().settle(outcome, client_error=client_error)

    def _free_memory(self) -> None:
        load, self._load = self._load, None
        if load is not None:
            load.remove(self.demand)
