"""Resource quotas on the path of a request: a look before it pays, and a permit that counts until it ends."""

from __future__ import annotations

from autoglm_throttle.control.quota import Quota
from autoglm_throttle.desk import Desk
from autoglm_throttle.limiting.shared.leases import Leases
from autoglm_throttle.limiting.token_bucket import Payer, PriorityBuckets
from autoglm_throttle.model import Decision, Demand, Hint, Outcome
from autoglm_throttle.permit import Permit


class QuotedBuckets:
    """Buckets that are asked only about demands for which there is memory.

    Args:
        buckets: where tokens are taken.
        quota: is asked before.
    """

    __slots__ = ("_buckets", "_quota")

    def __init__(self, buckets: PriorityBuckets | Leases, quota: Quota) -> None:
        self._buckets = buckets
        self._quota = quota

    def take(self, demand: Demand, now: float) -> Payer | Decision:
        """Take the tokens of a demand; on any refusal nothing is taken."""
        refusal = self._quota.refusal(demand, now)
        return self._buckets.take(demand, now) if refusal is None else refusal


class QuotedPermit(Permit):
    """A permit that says how its request should be served, and counts it for the quotas.

    Args:
        quota: where it counts.
        permit: the arguments of any permit.
    """

    __slots__ = ("_hint", "_load")

    def __init__(
        self,
        quota: Quota,
        desk: Desk,
        demand: Demand,
        decision: Decision,
        arrived_s: float,
        admitted_s: float,
    ) -> None:
        super().__init__(desk, demand, decision, arrived_s, admitted_s)
        self._hint = quota.hint(demand, admitted_s)
        self._load = quota.hold(demand) if demand.holds_slot else None

    @property
    def hint(self) -> Hint:
        """How the request should be served."""
        return self._hint

    def settle(self, outcome: Outcome = Outcome.SUCCESS) -> None:
        """Say how the request ended; the memory it was held to use counts as free again."""
        with self._desk.rows.lock:
            load, self._load = self._load, None
            if load is not None:
                load.drop(self.demand)
        super().settle(outcome)
