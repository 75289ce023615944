"""Health of a shared store, and the share of each process while it is unavailable.

| state   | entered                                  | left by                                 |
|---------|------------------------------------------|-----------------------------------------|
| remote  | at the start; by a probe's answer        | failures in a row, or one that is final |
| local   | from remote; by a probe's failure        | the end of an interval                  |
| probing | by the first request after its end       | the probe's result, or its absence      |
| probing | from remote, by a reported failure       | the same; an answer makes it no outage  |

The interval does not grow: the service is to be back on its store within 1.5 s, and one small call
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
"""In a row: one late answer is no outage, and three deadlines of 50 ms pass quickly."""

PROBE_S = 1.0
"""Between probes: with the jitter and the probe itself below the promised recovery time of 1.5 s."""

JITTER = 0.2
"""Share of the interval by which it varies, so that the processes do not probe at the same instant."""

PROBE_LOST_S = 3.0
"""Seconds after which a probe without a result counts as failed: it was lost with its event loop.
Above the second or so that a client waits for a connection and an answer.
"""

AT_ONCE = frozenset({Trouble.UNREACHABLE, Trouble.FORBIDDEN, Trouble.LOOP})
"""Errors for which one failure is enough: the next call would fail in the same way."""

NO_EVIDENCE = frozenset({Trouble.QUEUE_FULL, Trouble.FOREIGN})
"""Errors of our own queue or of one key: the store itself may be healthy."""


class State(StrEnum):
    """Source of the decisions on user limits."""

    REMOTE = "remote"
    """The store."""
    LOCAL = "local"
    """Each process decides alone."""
    PROBING = "probing"
    """Each process decides alone, while a probe checks the store."""


@dataclass(frozen=True, slots=True)
class Change:
    """A loss or recovery of the store: one log event."""

    state: State
    """``LOCAL`` or ``REMOTE``."""
    trouble: Trouble | None
    """Cause of the loss, or the last failure before the recovery."""
    at_s: float
    lasted_s: float
    """Seconds that the previous state lasted; an outage lasts from the loss to the successful probe."""


def _about_one() -> float:
    return random.uniform(1.0 - JITTER, 1.0 + JITTER)


class Outage:
    """Tracks the health of one store. Its callers hold one lock; it reads no clock.

    Args:
        failures: consecutive failures, >= 1, before the store counts as unavailable.
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
        """Reset, as in a forked process: failures of the parent do not count."""
        self.state: State = State.REMOTE
        self.since_s: float = now
        """Time of the loss, or of the recovery."""
        self.why: Trouble | None = None
        """Last failure; None while the store answers."""
        self.next_probe_s: float = math.inf
        """Time of the next probe; infinite while the store answers."""
        self._in_a_row = 0
        self._probing_s = now
        self._suspected = False
        """Whether no call was made since a timeout was reported by another user of the store."""

    def __repr__(self) -> str:
        why = f" because of {self.why}" if self.why else ""
        return f"Outage({self.state} since {self.since_s:.3f}{why})"

    def heard(self, trouble: Trouble | None, now: float) -> Change | None:
        """Record the result of a call, or a missed deadline; None: it was answered.

        Results of earlier calls change nothing while the store is unavailable.
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
        """Record a timeout of another user of the same store: decide locally until a probe ends.

        Returns:
            Whether the caller should send that probe now. The report is not yet an outage: no `HealthChange`.
        """
        if self.state is not State.REMOTE:
            return False
        self.state, self.why, self._suspected = State.PROBING, Trouble.TIMEOUT, True
        self.next_probe_s = self._probing_s = now
        return True

    def due(self, now: float) -> bool:
        """Begin a probe if one is due. True once for each probe; `record_probe` must follow."""
        if self.state is State.PROBING and now >= self._probing_s + PROBE_LOST_S:
            self.state = State.LOCAL
            # Counted from the end of the lost probe: the next one may be due at once.
            self._wait(self._probing_s + PROBE_LOST_S)
        if self.state is not State.LOCAL or now < self.next_probe_s:
            return False
        self.state = State.PROBING
        self._probing_s = now
        return True

    def probed(self, trouble: Trouble | None, now: float) -> Change | None:
        """Record the result of a probe; the result of an abandoned one changes nothing."""
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
    """The part of a user limit that one process applies alone."""

    of: int
    """Units of the whole limit, which decide on its layout."""

    @property
    def exact(self) -> bool:
        """Whether the whole limit is exact: a share keeps its layout with any number of processes."""
        return self.of <= EXACT_AT_MOST


def fair_share(limits: tuple[UserLimit, ...], processes: int) -> tuple[UserLimit, ...]:
    """Return the share of each of several processes; together they stay below limit + processes.

    Args:
        limits: the configured limits.
        processes: >= 1; for one, the limits stay as they are.
    """
    if processes <= 1:
        return limits
    return tuple(
        Share(limit.name, -(-limit.limit // processes), limit.window_s, limit.limit) for limit in limits
    )
