"""User limits that also bound the requests of each user in progress, counted in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol, TypeAlias, runtime_checkable

from autoglm_throttle.limiting.decisions import Usages
from autoglm_throttle.limiting.user_limits import NO_LIMIT, NO_PARTS, LimitSet, LimitSets, Part, UserLimits
from autoglm_throttle.types import Decision, Demand, Reason, UserLimit

HELD_GAIN: Final = 0.1  # Weight of the newest request in the mean time for which a slot is held
RETRY_MIN_S: Final = 1.0  # Until a first request has ended, and at least


_Caller: TypeAlias = tuple[UserLimit, dict[str, int], str]  # Limit, slots in use of all callers, its name


@runtime_checkable
class UserSlots(Protocol):
    """Slots of users, of which a request holds one from its charge until it ends."""

    def release(self, demand: Demand, charges: object, held_s: float) -> None:
        """Free the slot of an admitted request with these charges, which ends after ``held_s``."""
        ...


class SlottedUserLimits(UserLimits):
    """User limits, and slots that are charged and given back with them; an admitted request releases its own.

    A demand that holds no slot of the service needs none here. Queued requests hold one.

    Args:
        sets: the user limits.
        max_users: capacity of each table of users.
        slots: the slots of a user and of an address.
        processes: processes of which this one has its share of the slots.
    """

    def __init__(self, sets: LimitSets, max_users: int, slots: LimitSet, processes: int = 1) -> None:
        super().__init__(sets, max_users)
        self.slots: LimitSet = slots
        self.processes: int = processes
        # Slots in use by caller; none of 0, which bounds the memory.
        self._users: dict[str, int] = {}
        self._addresses: dict[str, int] = {}
        self._held_s = 0.0

    def hit(self, demand: Demand, now: float) -> Usages | Decision:
        """Charge the demand and take its slots, or neither."""
        return self._full(demand) or self._take(demand, super().hit(demand, now))

    def hit_units(
        self, demand: Demand, units: int, now: float, parts: Mapping[str, Part | None] = NO_PARTS
    ) -> Usages | Decision:
        """Charge as `hit`, but so many units, using only a part of the user limits."""
        return self._full(demand) or self._take(demand, super().hit_units(demand, units, now, parts))

    def give_back(self, demand: Demand, charged_at: float, now: float, units: int | None = None) -> bool:
        """Refund a charge, once, and free its slots."""
        self._free(demand)
        return super().give_back(demand, charged_at, now, units)

    def release(self, demand: Demand, charges: object, held_s: float) -> None:  # noqa: ARG002 - interface
        """Free the slots of an admitted request; its units stay charged."""
        self._free(demand)
        self.record(held_s)

    def record(self, held_s: float) -> None:
        """Record for how long a slot was held."""
        self._held_s += HELD_GAIN * (held_s - self._held_s)

    def verdict(self, limit: UserLimit, *, is_full: bool) -> Usages | Decision:
        """Return the verdict on a caller whose slots are known to be full, or not; with the expected wait."""
        if not is_full:
            return NO_LIMIT
        wait_s = max(RETRY_MIN_S, self._held_s / limit.limit)
        detail = f"{Reason.CONCURRENCY}:{'user' if limit in self.slots.users else 'address'}"
        most, window_s = limit.limit, limit.window_s
        return Decision(False, Reason.CONCURRENCY, detail, limit.name, most, 0, wait_s, wait_s, window_s)

    def _full(self, demand: Demand) -> Usages | Decision:
        for limit, used, caller in self._callers(demand):
            if used.get(caller, 0) >= -(-limit.limit // self.processes):
                return self.verdict(limit, is_full=True)
        return NO_LIMIT

    def _take(self, demand: Demand, verdict: Usages | Decision) -> Usages | Decision:
        if not isinstance(verdict, Decision):
            for _, used, caller in self._callers(demand):
                used[caller] = used.get(caller, 0) + 1
        return verdict

    def _free(self, demand: Demand) -> None:
        for _, used, caller in self._callers(demand):
            left = used.pop(caller, 0) - 1
            if left > 0:
                used[caller] = left

    def _callers(self, demand: Demand) -> tuple[_Caller, ...]:
        if not demand.holds_slot:
            return ()
        user = (self.slots.users[0], self._users, demand.user)
        if not demand.address:
            return (user,)
        return user, (self.slots.addresses[0], self._addresses, demand.address)
