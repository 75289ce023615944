"""Whether a shared store can be asked, and how large a share each process takes while it cannot.

| state   | entered                                  | left by                                 |
|---------|------------------------------------------|-----------------------------------------|
| remote  | at the start; by a probe's answer        | failures in a row, or one that is final |
| local   | from remote; by a probe's failure        | the end of an interval                  |
| probing | by the first who asks after its end      | the probe's result, or a lack of it     |
| probing | from remote, by another's suspicion      | the same; an answer makes it no outage  |

The interval does not grow: the service is to be back on its store within 1.5 s, and one small question
a second from each process burdens no server.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from autoglm_throttle.limiting.shared.store import Trouble
from autoglm_throttle.model import EXACT_AT_MOST, UserLimit

FAILURES = 3
"""In a row: one late answer is no outage, and three deadlines of 50 ms are soon over."""

PROBE_S = 1.0
"""Between probes: with the jitter and the probe itself below the 1.5 s in which recovery is promised."""

JITTER = 0.2
"""Share of the interval by which it varies, so that the processes do not all ask in one instant."""

PROBE_LOST_S = 3.0
"""A probe without a result for so long counts as failed: it went down with its event loop.
Above the second or so for which a client waits for a connection and an answer."""

AT_ONCE = frozenset({Trouble.UNREACHABLE, Trouble.FORBIDDEN, Trouble.LOOP})
"""Nobody is hurt by the wait, and the next call would find the same: one is enough."""

NO_EVIDENCE = frozenset({Trouble.QUEUE_FULL, Trouble.FOREIGN})
"""They tell of our own queue and of one key: the store itself may be well."""


class State(StrEnum):
    """Who decides on user limits."""

    REMOTE = "remote"
    """The store."""
    LOCAL = "local"
    """Each process for itself."""
    PROBING = "probing"
    """Each process for itself, while the store is asked whether it answers again."""


@dataclass(frozen=True, slots=True)
class Change:
    """The store was lost, or has come back: what one line of the log says."""

    state: State
    """``LOCAL`` or ``REMOTE``."""
    trouble: Trouble | None
    """What it was lost to, or had last failed with."""
    at_s: float
    lasted_s: float
    """Seconds that the state before it lasted; an outage lasts from the loss to the probe that succeeded."""


def _about_one() -> float:
    return random.uniform(1.0 - JITTER, 1.0 + JITTER)


class Outage:
    """Follows one store. Its callers hold one lock; it reads no clock.

    Args:
        failures: calls in a row that must fail, >= 1, before the store is left alone.
        probe_s: seconds from the loss, or from a failed probe, to the next probe.
        jitter: factor of each such interval.
        now: monotonic seconds.
    """

    def __init__(
        self,
        failures: int = FAILURES,
        probe_s: float = PROBE_S,
        jitter: Callable[[], float] = _about_one,
        now: float = 0.0,
    ) -> None:
        self._failures = failures
        self._probe_s = probe_s
        self._jitter = jitter
        self.forget(now)

    def forget(self, now: float) -> None:
        """Begin anew, as in a forked process: what the parent has met is not ours."""
        self.state: State = State.REMOTE
        self.since_s: float = now
        """When the store was lost, or came back."""
        self.why: Trouble | None = None
        """What it last failed with; None while it answers."""
        self.next_probe_s: float = math.inf
        """When it may be asked again; infinite while it answers."""
        self._in_a_row = 0
        self._probing_s = now
        self._suspected = False
        """Whether the store has not been asked since another found it silent."""

    def __repr__(self) -> str:
        why = f" because of {self.why}" if self.why else ""
        return f"Outage({self.state} since {self.since_s:.3f}{why})"

    def heard(self, trouble: Trouble | None, now: float) -> Change | None:
        """Take in how a call went, or that the deadline of some has passed; None: it was answered.

        What is heard of earlier calls while the store is left alone changes nothing.
        """
        if self.state is not State.REMOTE or trouble in NO_EVIDENCE:
            return None
        self.why = trouble
        if trouble is None:
            self._in_a_row = 0
            return None
        self._in_a_row += 1
        if self._in_a_row < self._failures and trouble not in AT_ONCE:
            return None
        self._wait(now)
        return self._change(State.LOCAL, now)

    def suspect(self, now: float) -> bool:
        """Somebody else who asks the same store found it silent: nobody waits for it until a probe has told.

        Returns:
            Whether the caller should have that probe sent, now. Its word is not yet an outage: no `Change`.
        """
        if self.state is not State.REMOTE:
            return False
        self.state, self.why, self._suspected = State.PROBING, Trouble.TIMEOUT, True
        self.next_probe_s = self._probing_s = now
        return True

    def due(self, now: float) -> bool:
        """Whether to send a probe now: True once for each, and then `probed` is awaited."""
        if self.state is State.PROBING and now >= self._probing_s + PROBE_LOST_S:
            self.state = State.LOCAL
            self._wait(self._probing_s + PROBE_LOST_S)
        if self.state is not State.LOCAL or now < self.next_probe_s:
            return False
        self.state = State.PROBING
        self._probing_s = now
        return True

    def probed(self, trouble: Trouble | None, now: float) -> Change | None:
        """Take in the result of a probe; one that had been given up changes nothing."""
        if self.state is not State.PROBING:
            return None
        suspected, self._suspected = self._suspected, False
        if trouble is not None:
            self.why = trouble
            self.state = State.LOCAL
            self._wait(now)
            return self._change(State.LOCAL, now) if suspected else None
        change = None if suspected else self._change(State.REMOTE, now)
        self.forget(self.since_s)
        return change

    def _wait(self, since_s: float) -> None:
        self.next_probe_s = since_s + self._probe_s * self._jitter()

    def _change(self, state: State, now: float) -> Change:
        change = Change(state, self.why, now, now - self.since_s)
        self.state, self.since_s = state, now
        return change


@dataclass(frozen=True, slots=True)
class Share(UserLimit):
    """The part of a user limit that one process takes for itself."""

    of: int
    """Units of the whole limit, which decide on the form it is kept in."""

    @property
    def exact(self) -> bool:
        """As for the whole limit: a share does not change its form with the number of processes."""
        return self.of <= EXACT_AT_MOST


def fair_share(limits: tuple[UserLimit, ...], processes: int) -> tuple[UserLimit, ...]:
    """What each of several processes may give a user; together they stay below limit + processes.

    Args:
        limits: as they are configured.
        processes: >= 1; for one, the limits stay as they are.
    """
    if processes <= 1:
        return limits
    return tuple(
        Share(limit.name, -(-limit.limit // processes), limit.window_s, limit.limit) for limit in limits
    )
