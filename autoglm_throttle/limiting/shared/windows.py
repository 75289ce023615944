"""The user limits of several processes: what is known here, what the store is asked, who decides without it.

Everything here is touched under the lock of the throttle, `Question.send` apart.
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
"""What whoever else asks the same server would meet, too; the others may be ours alone."""


def _nobody(now: float) -> None:  # noqa: ARG001 - the face of a listener
    return None


@dataclass(frozen=True, slots=True)
class StoreView:
    """The shared store at one moment. Counters only grow."""

    kind: str
    state: State
    why: Trouble | None
    """What the store's absence began with; None while it answers."""
    since_s: float
    """Monotonic: since when it has been in this state."""
    on_error: OnError
    processes: int
    """Processes that share the limits, as far as is known here."""
    fallbacks: dict[Trouble, int]
    """Decisions taken without the store, by cause."""
    spared: int
    """Refusals known here already, for which it was not asked."""
    health: Health


class SharedWindows:
    """User limits in a store that several processes ask.

    Args:
        sets: which limits a demand is held to.
        store: where they are counted.
        outage: whether the store can be asked.
        refused: who need not ask again yet.
        on_error: who decides while it cannot be asked.
        processes: how many processes share the limits: each takes its fair share while it cannot be asked.
        max_users: most users remembered under each set of limits, meanwhile.
        text_of: makes an identity of a user's name that is none.
        askable: whether the store's client can run where this is asked: in an asyncio loop.
    """

    def __init__(  # noqa: PLR0913 - one argument for each part that it is put together from
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
        """Of the store's state, for whoever writes the log."""
        self.probe_due: bool = False
        """Whether somebody with an event loop should ask the store whether it answers again."""
        self.lost: Callable[[float], None] = _nobody
        """Told, under the lock, when the store has fallen silent: whoever else asks it need not find out."""
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
        """What is known without the store; a Question must be sent. None if no user limit applies."""
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
        """Take back what was charged here, without the store."""
        return self._twin is not None and self._twin.give_back(demand, charged_at, now)

    def look(self, now: float) -> None:
        """Have a probe sent if one is due."""
        if self.outage.due(now):
            self.probe_due = True

    def suspect(self, now: float) -> None:
        """Decide here until a probe has told: somebody else has found the store silent. Idempotent."""
        if self.outage.suspect(now):
            self.probe_due = True

    def heard(self, trouble: Trouble | None, now: float) -> None:
        """Take in what a round trip has told about the store."""
        self._note(self.outage.heard(trouble, now))

    def probed(self, trouble: Trouble | None, now: float) -> None:
        """Take in what the question whether it answers again has told."""
        self._note(self.outage.probed(trouble, now))

    def view(self) -> StoreView:
        """What there is to see."""
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
        """Users counted here while the store could not be asked."""
        return self._twin.users if self._twin is not None else 0

    @property
    def overflowed(self) -> int:
        """Decisions taken on a shared log because the table here was full of exhausted users."""
        return self._twin.overflowed if self._twin is not None else 0

    def sweep(self, now: float, users: int) -> None:
        """Forget idle users among the next ``users`` of each table."""
        if self._twin is not None:
            self._twin.sweep(now, users)

    def forget(self, now: float) -> None:
        """In a forked process: the parent's connections are not ours."""
        self.store.forget()
        self.outage.forget(now)
        self.probe_due = False
        self.changes.clear()
        self._fallbacks = dict.fromkeys(Trouble, 0)
        self._spared = 0

    def mend(self) -> None:
        """Make every table whole again, as after a fork in the midst of a change."""
        if self._twin is not None:
            self._twin.mend()

    def answered(self, question: Question, answer: Answer | Trouble, now: float) -> Decision:
        """The decision on a question, with the store's answer or without."""
        if isinstance(answer, Trouble):
            return self._unanswered(question, answer, now)
        word = self._verdict(question.charges, answer, now)
        if word.allowed:
            question.answer = answer
        else:
            self._refused.put(question.key, word, question.sent_s, now)
        return word

    def _verdict(self, charges: Sequence[Charge], answer: Answer, now: float) -> Decision:
        """The decision that an answer is, on a user or on a user and its address."""
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
        """Take back, once, all that a question has been allowed."""
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
        """The decision of this process alone."""
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
        """The windows of this process alone. When its share changes, what they have counted stays."""
        processes = max(1, self._processes())
        if self._twin is None:
            self._twin = UserWindows(self._sets, self._max_users)
        if processes != self._shared_by:
            self._shared_by = processes
            self._twin.resize(self._sets.map(lambda limits: fair_share(limits, processes)))
        return self._twin

    def _seed(self, demand: Demand, now: float) -> tuple[Part | None, Part | None]:
        """How much may be used up here: the share of what the store had left the user, and its address.

        All that has been counted here goes off it, as the store knows of none.
        """
        limit_set = self._sets.of(demand)
        assert limit_set is not None  # noqa: S101 - for the type checker: who has no limits is not asked about
        user_kind, address_kind = self._kinds[limit_set]
        seed, shares = self._last_seen.seed, self._shared_by
        user = seed(user_kind, self._text_of(demand.user), limit_set.users, shares, now)
        if not demand.address:
            return user, None
        return user, seed(address_kind, self._text_of(demand.address), limit_set.addresses, shares, now)


def _kinds(limit_set: LimitSet) -> tuple[str, str]:
    """What a set's users and addresses are called in the store."""
    name = limit_set.name
    return name, "address" if name == "user" else f"{name}-address"
