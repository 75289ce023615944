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
from typing import TYPE_CHECKING

from autoglm_throttle.store.user_limit_store import StoreErrorKind
from autoglm_throttle.types import EXACT_AT_MOST, UserLimit

if TYPE_CHECKING:
    from autoglm_throttle.settings.groups.store import StoreSettings

JITTER = 0.2
"""Share of the interval by which it varies, so that the processes do not probe at the same instant."""

PROBE_LOST_S = 3.0
"""Seconds after which a probe without a result counts as failed: it was lost with its event loop.
Above the second or so that a client waits for a connection and an answer.
"""

IMMEDIATE_ERRORS = frozenset({StoreErrorKind.UNREACHABLE, StoreErrorKind.FORBIDDEN, StoreErrorKind.LOOP})
"""Errors for which one failure is enough: the next call would fail in the same way."""

IGNORED_ERRORS = frozenset({StoreErrorKind.QUEUE_FULL, StoreErrorKind.FOREIGN})
"""Errors of our own queue or of one key: the store itself may be healthy."""


class HealthState(StrEnum):
    """Source of the decisions on user limits."""

    REMOTE = "remote"
    """The store."""
    LOCAL = "local"
    """Each process decides alone."""
    PROBING = "probing"
    """Each process decides alone, while a probe checks the store."""


@dataclass(frozen=True, slots=True)
class HealthChange:
    """A loss or recovery of the store: one log event."""

    state: HealthState
    """``LOCAL`` or ``REMOTE``."""
    error_kind: StoreErrorKind | None
    """Cause of the loss, or the last failure before the recovery."""
    at_s: float
    lasted_s: float
    """Seconds that the previous state lasted; an outage lasts from the loss to the successful probe."""


def _jitter_factor() -> float:
    return random.uniform(1.0 - JITTER, 1.0 + JITTER)


class StoreHealth:
    """Tracks the health of one store. Its callers hold one lock; it reads no clock.

    Args:
        settings: the consecutive failures of a loss, and the time from one probe to the next.
        jitter: factor of each such interval.
        now: monotonic seconds.
    """

    def __init__(
        self,
        settings: StoreSettings,
        jitter: Callable[[], float] = _jitter_factor,
        now: float = 0.0,
    ) -> None:
        self._settings = settings
        self._jitter = jitter
        self.reset(now)

    def reset(self, now: float) -> None:
        """Count the store as available, without failures, since ``now``."""
        self.state: HealthState = HealthState.REMOTE
        self.since_s: float = now
        """Time of the loss, or of the recovery."""
        self.cause: StoreErrorKind | None = None
        """Last failure; None while the store answers."""
        self.next_probe_s: float = math.inf
        """Time of the next probe; infinite while the store answers."""
        self._consecutive_failures = 0
        self._probe_started_s = now
        self._failure_reported = False
        """Whether no call was made since a timeout was reported by another user of the store."""

    def __repr__(self) -> str:
        cause = f" because of {self.cause}" if self.cause else ""
        return f"StoreHealth({self.state} since {self.since_s:.3f}{cause})"

    def record_result(self, kind: StoreErrorKind | None, now: float) -> HealthChange | None:
        """Record the result of a call, or a missed deadline; None: it was answered.

        Results of earlier calls change nothing while the store is unavailable.
        """
        if self.state is not HealthState.REMOTE or kind in IGNORED_ERRORS:
            return None
        self.cause = kind
        if kind is None:
            self._consecutive_failures = 0
            return None
        self._consecutive_failures += 1
        if self._consecutive_failures < self._settings.redis_failures and kind not in IMMEDIATE_ERRORS:
            return None
        self._schedule_probe(now)
        return self._change(HealthState.LOCAL, now)

    def report_failure(self, now: float) -> bool:
        """Record a timeout of another user of the same store: decide locally until a probe ends.

        Returns:
            Whether the caller should send that probe now. The report is not yet an outage: no `HealthChange`.
        """
        if self.state is not HealthState.REMOTE:
            return False
        self.state, self.cause, self._failure_reported = HealthState.PROBING, StoreErrorKind.TIMEOUT, True
        self.next_probe_s = self._probe_started_s = now
        return True

    def try_begin_probe(self, now: float) -> bool:
        """Begin a probe if one is due. True once for each probe; `record_probe` must follow."""
        if self.state is HealthState.PROBING and now >= self._probe_started_s + PROBE_LOST_S:
            self.state = HealthState.LOCAL
            # Counted from the end of the lost probe: the next one may be due at once.
            self._schedule_probe(self._probe_started_s + PROBE_LOST_S)
        if self.state is not HealthState.LOCAL or now < self.next_probe_s:
            return False
        self.state = HealthState.PROBING
        self._probe_started_s = now
        return True

    def record_probe(self, kind: StoreErrorKind | None, now: float) -> HealthChange | None:
        """Record the result of a probe; the result of an abandoned one changes nothing."""
        if self.state is not HealthState.PROBING:
            return None
        reported, self._failure_reported = self._failure_reported, False
        if kind is not None:
            self.cause = kind
            self.state = HealthState.LOCAL
            self._schedule_probe(now)
            return self._change(HealthState.LOCAL, now) if reported else None
        change = None if reported else self._change(HealthState.REMOTE, now)
        self.reset(self.since_s)
        return change

    def _schedule_probe(self, since_s: float) -> None:
        self.next_probe_s = since_s + self._settings.redis_probe_s * self._jitter()

    def _change(self, state: HealthState, now: float) -> HealthChange:
        change = HealthChange(state, self.cause, now, now - self.since_s)
        self.state, self.since_s = state, now
        return change


@dataclass(frozen=True, slots=True)
class ReducedLimit(UserLimit):
    """The part of a user limit that one process applies alone."""

    full_limit: int
    """Units of the whole limit, which decide on its layout."""

    @property
    def exact(self) -> bool:
        """Whether the whole limit is exact: a share keeps its layout with any number of processes."""
        return self.full_limit <= EXACT_AT_MOST


def fair_share(limits: tuple[UserLimit, ...], processes: int) -> tuple[UserLimit, ...]:
    """Return the share of each of several processes; together they stay below limit + processes.

    Args:
        limits: the configured limits.
        processes: >= 1; for one, the limits stay as they are.
    """
    if processes <= 1:
        return limits
    return tuple(
        ReducedLimit(limit.name, -(-limit.limit // processes), limit.window_s, limit.limit)
        for limit in limits
    )
