"""User limits shared through a store: local deny cache, store check, fallback when it is unavailable.

Everything here is used under the lock of the throttle, except `PendingCheck.send`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from autoglm_throttle.limiting.limit_sets import LimitSet, LimitSets
from autoglm_throttle.limiting.shared.last_seen import LastSeen
from autoglm_throttle.limiting.shared.outage import Change, Outage, State, fair_share
from autoglm_throttle.limiting.shared.question import Question
from autoglm_throttle.limiting.shared.refused_cache import RefusedCache
from autoglm_throttle.limiting.shared.store import VALUES, Answer, Charge, Health, Store, Trouble
from autoglm_throttle.limiting.shared.verdicts import decision, left, together, verdict
from autoglm_throttle.limiting.user_windows import Part, UserWindows
from autoglm_throttle.model import Decision, Demand, OnError, Reason

SILENT: Final = frozenset({Trouble.TIMEOUT, Trouble.UNREACHABLE, Trouble.LOST})
"""Errors that other users of the same server would meet, too; the others may be ours alone."""


def _nobody(now: float) -> None:  # noqa: ARG001 - a listener's interface
    return None


@dataclass(frozen=True, slots=True)
class StoreView:
    """The shared store at one moment. Counters only grow."""

    kind: str
    state: State
    why: Trouble | None
    """Cause of the outage; None while the store answers."""
    since_s: float
    """Monotonic time at which it entered this state."""
    on_error: OnError
    processes: int
    """Processes that share the limits, as far as is known here."""
    fallbacks: dict[Trouble, int]
    """Decisions without the store, by cause."""
    spared: int
    """Denials from the local cache, without a check of the store."""
    health: Health


class SharedWindows:
    """User limits in a store that several processes share.

    Args:
        sets: selects the limits of a demand.
        store: counts the units.
        store_health: whether the store is available.
        deny_cache: recent denials.
        last_known: units left at the store's last answers.
        on_error: mode of the decisions while the store is unavailable.
        processes: number of processes that share the limits: each applies its fair share meanwhile.
        max_users: capacity of the local table under each set of limits, meanwhile.
        text_of: makes an identity text from a user name.
        is_usable: whether the store's client can run in the current context: in an asyncio loop.
    """

    def __init__(  # noqa: PLR0913 - one argument for each part
        self,
        sets: LimitSets,
        store: Store,
        outage: Outage,
        *,
        refused: RefusedCache,
        last_seen: LastSeen,
        on_error: OnError,
        processes: Callable[[], int],
        max_users: int,
        text_of: Callable[[str], str],
        askable: Callable[[], bool],
    ) -> None:
        self.store: Store = store
        self.outage: Outage = outage
        self.changes: list[Change] = []
        """Changes of the store's state, for the log."""
        self.probe_due: bool = False
        """Whether a caller with an event loop should probe the store."""
        self.lost: Callable[[float], None] = _nobody
        """Called under the lock when the store is lost, for other users of the same server."""
        self._sets = sets
        self._refused = refused
        self._last_seen = last_seen
        self._on_error = on_error
        self._processes = processes
        self._max_users = max_users
        self._text_of = text_of
        self._askable = askable
        self._kinds = {limit_set: _kinds(limit_set) for limit_set in sets}
        self._fallbacks = dict.fromkeys(Trouble, 0)
        self._spared = 0
        self._shared_by = 0
        self._twin: UserWindows | None = None

    def hit(self, demand: Demand, now: float) -> Decision | Question | None:
        """Decide without the store, or return a `PendingCheck` to send. None if no user limit applies."""
        limit_set = self._sets.of(demand)
        if limit_set is None:
            return None
        units = 1 if demand.cost <= 1.0 else math.ceil(demand.cost)
        user = self._text_of(demand.user)
        address = self._text_of(demand.address) if demand.address else ""
        key = (limit_set.name, user, address, units)
        known = self._refused.find(key, now)
        if known is not None:
            self._spared += 1
            return known
        if self.outage.state is not State.REMOTE:
            if self._askable():
                self.look(now)
            return self._without(demand, self.outage.why or Trouble.UNREACHABLE, now)
        if not self._askable():
            return self._without(demand, Trouble.LOOP, now)
        user_kind, address_kind = self._kinds[limit_set]
        charge = Charge(user_kind, limit_set.users, user, units)
        if not address:
            return Question(self, demand, key, (charge,), now)
        return Question(
            self, demand, key, (charge, Charge(address_kind, limit_set.addresses, address, units)), now
        )

    def give_back(self, demand: Demand, charged_at: float, now: float) -> bool:
        """Refund a local charge, without the store."""
        return self._twin is not None and self._twin.give_back(demand, charged_at, now)

    def look(self, now: float) -> None:
        """Request a probe if one is due."""
        if self.outage.due(now):
            self.probe_due = True

    def suspect(self, now: float) -> None:
        """Decide locally until a probe ends, after another user's timeout. Idempotent."""
        if self.outage.suspect(now):
            self.probe_due = True

    def heard(self, trouble: Trouble | None, now: float) -> None:
        """Record the result of a round trip."""
        self._note(self.outage.heard(trouble, now))

    def probed(self, trouble: Trouble | None, now: float) -> None:
        """Record the result of a probe."""
        self._note(self.outage.probed(trouble, now))

    def view(self) -> StoreView:
        """Return the state of the store."""
        outage = self.outage
        return StoreView(
            kind=self.store.kind,
            state=outage.state,
            why=outage.why,
            since_s=outage.since_s,
            on_error=self._on_error,
            processes=self._processes(),
            fallbacks=self._fallbacks.copy(),
            spared=self._spared,
            health=self.store.health(),
        )

    @property
    def users(self) -> int:
        """Users counted here during outages of the store."""
        return self._twin.users if self._twin is not None else 0

    @property
    def overflowed(self) -> int:
        """Decisions taken on a shared log because the table here was full of exhausted users."""
        return self._twin.overflowed if self._twin is not None else 0

    def sweep(self, now: float, users: int) -> None:
        """Evict idle users among the next ``users`` of each table."""
        if self._twin is not None:
            self._twin.sweep(now, users)

    def forget(self, now: float) -> None:
        """Reset in a forked process: the connections belong to the parent."""
        self.store.forget()
        self.outage.forget(now)
        self.probe_due = False
        self.changes.clear()
        self._fallbacks = dict.fromkeys(Trouble, 0)
        self._spared = 0

    def mend(self) -> None:
        """Repair every table after a fork that interrupted a change."""
        if self._twin is not None:
            self._twin.mend()

    def answered(self, question: Question, answer: Answer | Trouble, now: float) -> Decision:
        """Decide on a check, with the store's answer or without."""
        if isinstance(answer, Trouble):
            return self._unanswered(question, answer, now)
        word = self._verdict(question.charges, answer, now)
        if word.allowed:
            question.answer = answer
        else:
            self._refused.put(question.key, word, question.sent_s, now)
        return word

    def _verdict(self, charges: Sequence[Charge], answer: Answer, now: float) -> Decision:
        """Convert an answer to a decision on a user, or on a user and its address."""
        charge = charges[0]
        if len(answer) == VALUES:
            ok, remaining, retry_us, reset_us, _ = answer
            self._last_seen.note(charge.kind, charge.user, (remaining,), now)
            return verdict(charge.limits[0], ok, remaining, retry_us, reset_us)
        user = decision(charge, answer)
        self._last_seen.note(charge.kind, charge.user, left(charge.limits, user), now)
        if len(charges) == 1:
            return user
        charge = charges[1]
        address = decision(charge, answer[VALUES * len(charges[0].limits) :])
        self._last_seen.note(charge.kind, charge.user, left(charge.limits, address), now)
        return together(user, address)

    def undo(self, question: Question, now: float) -> None:
        """Refund, once, all units of a check."""
        answer, question.answer = question.answer, None
        charged_s, question.charged_s = question.charged_s, None
        if answer is not None:
            self._refused.remove(question.key)
            self.store.give_back(question.charges, answer)
        elif charged_s is not None:
            self.give_back(question.demand, charged_s, now)

    def _note(self, change: Change | None) -> None:
        if change is None:
            return
        self.changes.append(change)
        if change.state is State.LOCAL:
            self.store.drop()
            if change.trouble in SILENT:
                self.lost(change.at_s)

    def _unanswered(self, question: Question, trouble: Trouble, now: float) -> Decision:
        decision = self._without(question.demand, trouble, now)
        if decision.allowed:
            question.charged_s = now
        return decision

    def _without(self, demand: Demand, trouble: Trouble, now: float) -> Decision:
        """Decide in this process alone."""
        self._fallbacks[trouble] += 1
        if self._on_error is OnError.ALLOW:
            return Decision(True, Reason.OK, f"store:{trouble}")
        if self._on_error is OnError.DENY:
            outage = self.outage
            wait = 0.0 if outage.state is State.REMOTE else max(0.0, outage.next_probe_s - now)
            return Decision(False, Reason.STORE, f"store:{trouble}", "store", math.inf, 0.0, wait, wait)
        twin = self._local()
        decision = twin.hit_within(demand, *self._seed(demand, now), now)
        return decision if decision is not None else Decision(True, Reason.OK)

    def _local(self) -> UserWindows:
        """Return the local windows. When the share of this process changes, counted units stay."""
        processes = max(1, self._processes())
        if self._twin is None:
            self._twin = UserWindows(self._sets, self._max_users)
        if processes != self._shared_by:
            self._shared_by = processes
            self._twin.resize(self._sets.map(lambda limits: fair_share(limits, processes)))
        return self._twin

    def _seed(self, demand: Demand, now: float) -> tuple[Part | None, Part | None]:
        """Return the usable units of the user and its address: the share of the store's last known rest.

        Units counted here reduce it, as the store does not know them.
        """
        limit_set = self._sets.of(demand)
        assert limit_set is not None  # noqa: S101 - for the type checker
        user_kind, address_kind = self._kinds[limit_set]
        seed, shares = self._last_seen.seed, self._shared_by
        user = seed(user_kind, self._text_of(demand.user), limit_set.users, shares, now)
        if not demand.address:
            return user, None
        return user, seed(address_kind, self._text_of(demand.address), limit_set.addresses, shares, now)


def _kinds(limit_set: LimitSet) -> tuple[str, str]:
    """Return the names of a set's users and addresses in the store."""
    name = limit_set.name
    return name, "address" if name == "user" else f"{name}-address"
