"""Health of a shared store, for everything that uses one: user limits, fleets, breakers and GPU samples.

| state   | entered                                  | left by                                 |
|---------|------------------------------------------|-----------------------------------------|
| up      | at the start; by a probe's answer        | failures in a row, or one that is final |
| down    | from up; by a probe's failure            | the end of a pause                      |
| probing | by the first request after the pause     | the probe's result, or its absence      |
| probing | from up, by a reported failure           | the same; an answer makes it no outage  |
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from enum import StrEnum

from autoglm_throttle.events import LOG_INTERVAL_S, LOGGER, plain
from autoglm_throttle.store.protocol import StoreErrorKind

JITTER = 0.2  # Share by which each pause varies, so that the processes do not probe at the same instant

# Seconds after which a probe without a result counts as failed: it was lost with its event loop. Above the
# second or so that a client waits for a connection and an answer.
PROBE_LOST_S = 3.0

# Errors for which one failure is enough: the next call would fail in the same way.
IMMEDIATE_ERRORS = frozenset({StoreErrorKind.UNREACHABLE, StoreErrorKind.FORBIDDEN, StoreErrorKind.LOOP})

# Errors of our own queue or of one key: the store itself may be healthy.
IGNORED_ERRORS = frozenset({StoreErrorKind.QUEUE_FULL, StoreErrorKind.FOREIGN})


class HealthState(StrEnum):
    """State of a store. Without it each process decides alone."""

    UP = "up"
    DOWN = "down"
    PROBING = "probing"  # Each process decides alone, while a probe checks the store


UP, DOWN, PROBING = HealthState


class StoreHealth:
    """Tracks the health of one store. Its callers hold one lock; it reads no clock.

    ``failures`` in a row are a loss. ``pauses_s`` are the seconds before the first probe, the second and so
    on; the last one holds for all later ones. ``jitter`` is the factor of each pause.
    """

    def __init__(
        self,
        failures: int,
        pauses_s: Sequence[float],
        jitter: Callable[[], float] = lambda: random.uniform(1.0 - JITTER, 1.0 + JITTER),
        now: float = 0.0,
    ) -> None:
        self._failures = failures
        self._pauses_s = pauses_s
        self._jitter = jitter
        # Seconds that the state before lasted: an outage lasts from the loss to the successful probe.
        self.lasted_s: float = 0.0
        self.reset(now)

    def reset(self, now: float) -> None:
        """Count the store as available, without failures, since ``now``."""
        self.state: HealthState = UP
        self.since_s: float = now  # Time of the loss, or of the recovery
        self.cause: StoreErrorKind | None = None  # Last failure; None while the store answers
        self.next_probe_s: float = math.inf  # Time of the next probe; infinite while the store answers
        self._consecutive_failures = 0
        self._pauses = 0
        self._probe_started_s = now
        # Whether no call was made since a timeout was reported by another user of the store.
        self._failure_reported = False

    def record_call(self, kind: StoreErrorKind | None, now: float) -> HealthState | None:
        """Record a call of a user with one connection: while the state is probing, the call is the probe."""
        return (self.record_probe if self.state is PROBING else self.record_result)(kind, now)

    def record_result(self, kind: StoreErrorKind | None, now: float) -> HealthState | None:
        """Record the result of a call, or a missed deadline, None: it was answered; return `DOWN` at a loss.

        Results of earlier calls change nothing while the store is unavailable.
        """
        if self.state is not UP or kind in IGNORED_ERRORS:
            return None
        self.cause = kind
        if kind is None:
            self._consecutive_failures = 0
            return None
        self._consecutive_failures += 1
        if self._consecutive_failures < self._failures and kind not in IMMEDIATE_ERRORS:
            return None
        self._schedule_probe(now)
        return self._change(DOWN, now)

    def report_failure(self, now: float) -> bool:
        """Record a timeout of another user of the same store: decide locally until a probe ends.

        Return whether the caller should send that probe now. The report is not yet an outage.
        """
        if self.state is not UP:
            return False
        self.state, self.cause, self._failure_reported = PROBING, StoreErrorKind.TIMEOUT, True
        self.next_probe_s = self._probe_started_s = now
        return True

    def try_begin_probe(self, now: float) -> bool:
        """Begin a probe if one is due. True once for each probe; `record_probe` must follow."""
        if self.state is PROBING and now >= self._probe_started_s + PROBE_LOST_S:
            self.state = DOWN
            # Counted from the end of the lost probe: the next one may be due at once.
            self._schedule_probe(self._probe_started_s + PROBE_LOST_S)
        if self.state is not DOWN or now < self.next_probe_s:
            return False
        self.state = PROBING
        self._probe_started_s = now
        return True

    def record_probe(self, kind: StoreErrorKind | None, now: float) -> HealthState | None:
        """Record the result of a probe that is not abandoned; return the state of a loss or a recovery."""
        if self.state is not PROBING:
            return None
        reported, self._failure_reported = self._failure_reported, False
        if kind is not None:
            self.cause = kind
            self.state = DOWN
            self._schedule_probe(now)
            return self._change(DOWN, now) if reported else None
        change = None if reported else self._change(UP, now)
        self.reset(self.since_s)
        return change

    def _schedule_probe(self, since_s: float) -> None:
        pause_s = self._pauses_s[min(self._pauses, len(self._pauses_s) - 1)]
        self._pauses += 1
        self.next_probe_s = since_s + pause_s * self._jitter()

    def _change(self, state: HealthState, now: float) -> HealthState:
        self.state, self.since_s, self.lasted_s = state, now, now - self.since_s
        return state


class OutageLog:
    """Logs the loss and the recovery of a store, at most a pair of lines in 30 s; its owner guards it."""

    def __init__(self, store: str) -> None:
        # Start of the present outage in monotonic seconds; None: the store is available.
        self.since_s: float | None = None
        self._store = store
        self._logged_s = -math.inf
        self._is_logged = False

    def record_loss(self, since_s: float, now: float, effect: str) -> None:
        """Record an outage since ``since_s``, with its consequence and cause. Idempotent."""
        if self.since_s is not None:
            return
        self.since_s = since_s
        self._is_logged = now - self._logged_s >= LOG_INTERVAL_S
        if self._is_logged:
            self._logged_s = now
            LOGGER.warning("%s is unavailable: %s", self._store, plain(effect))

    def record_recovery(self, now: float, effect: str = "") -> None:
        """Record the end of the outage, and log it if its begin was logged. Idempotent."""
        if self.since_s is not None and self._is_logged:
            LOGGER.warning("%s is available again after %.1f s%s", self._store, now - self.since_s, effect)
        self.since_s = None
