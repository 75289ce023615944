"""State of a breaker and the table by which it changes, which is also the source of its documentation page.

An event without a row for a state changes nothing in that state. ``FORCED_OPEN`` and ``DISABLED`` have rows
only for operator commands, local or of the fleet. So time, results and a Retry-After of the dependency never
end an operator's decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import (
    BreakerCause,
    BreakerMode,
    BreakerState,
    BreakerTransition,
    RemoteBreakerState,
)


class BreakerEvent(StrEnum):
    """Events of a breaker; the value is the text on its documentation page."""

    FAILURES = "the number of consecutive failures reached its limit"
    FAILURE_RATE = "the failure rate reached its limit"
    SLOW_RATE = "the rate of slow calls reached its limit"
    RETRY_AFTER = "the dependency sent a Retry-After"
    WAITED = "the open period ended and a call arrives"
    PROBE_FAILED = "a probe failed or was slow"
    PROBES_SUCCEEDED = "enough probes succeeded"
    PROBES_SUCCEEDED_RAMP = "enough probes succeeded, with a ramp configured"
    RAMP_DONE = "the last ramp step ended and a call arrives"
    FORCE = "an operator opens it"
    DISABLE = "an operator disables it"
    RESET = "an operator resets it"
    METRICS_ONLY = "an operator sets it to metrics only"
    REMOTE_OPEN = "another process opened it"
    REMOTE_HALF_OPEN = "other processes send probes"
    REMOTE_CLOSED = "another process closed it"
    REMOTE_CLOSED_RAMP = "another process closed it, with a ramp configured"
    REMOTE_FORCE = "an operator opened it in another process"
    REMOTE_DISABLE = "an operator disabled it in another process"
    REMOTE_RESET = "an operator reset it in another process"


class TransitionRow(NamedTuple):
    """One row of the table: an event with the same effect in several states."""

    states: tuple[BreakerState, ...]
    event: BreakerEvent
    to: BreakerState
    cause: BreakerCause  # reported cause, unless the event brings its own


OPERATOR_STATES: Final = (BreakerState.FORCED_OPEN, BreakerState.DISABLED)  # States set by an operator

# States from which an opening counts as a further round, with a longer wait.
REOPENING_STATES: Final = (BreakerState.HALF_OPEN, BreakerState.RAMPING)

_ANY: Final = tuple(BreakerState)
_OPEN: Final = (BreakerState.OPEN,)
_PROBING: Final = (BreakerState.HALF_OPEN,)
_RAMPING: Final = (BreakerState.RAMPING,)
_COUNTING: Final = (BreakerState.CLOSED, BreakerState.RAMPING)
_NOT_CLOSED: Final = (BreakerState.OPEN, BreakerState.HALF_OPEN)
_NOT_OPERATED: Final = (BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN, BreakerState.RAMPING)

TRANSITION_ROWS: Final = (  # All transitions, the most frequent first
    TransitionRow(_COUNTING, BreakerEvent.FAILURES, BreakerState.OPEN, BreakerCause.FAILURES),
    TransitionRow(_COUNTING, BreakerEvent.FAILURE_RATE, BreakerState.OPEN, BreakerCause.FAILURE_RATE),
    TransitionRow(_COUNTING, BreakerEvent.SLOW_RATE, BreakerState.OPEN, BreakerCause.SLOW_RATE),
    TransitionRow(_OPEN, BreakerEvent.WAITED, BreakerState.HALF_OPEN, BreakerCause.TRIAL),
    TransitionRow(_PROBING, BreakerEvent.PROBE_FAILED, BreakerState.OPEN, BreakerCause.TRIAL),
    TransitionRow(_PROBING, BreakerEvent.PROBES_SUCCEEDED, BreakerState.CLOSED, BreakerCause.TRIAL),
    TransitionRow(_PROBING, BreakerEvent.PROBES_SUCCEEDED_RAMP, BreakerState.RAMPING, BreakerCause.TRIAL),
    TransitionRow(_RAMPING, BreakerEvent.RAMP_DONE, BreakerState.CLOSED, BreakerCause.RAMP),
    TransitionRow(_NOT_OPERATED, BreakerEvent.RETRY_AFTER, BreakerState.OPEN, BreakerCause.RETRY_AFTER),
    TransitionRow(_ANY, BreakerEvent.FORCE, BreakerState.FORCED_OPEN, BreakerCause.OPERATOR),
    TransitionRow(_ANY, BreakerEvent.DISABLE, BreakerState.DISABLED, BreakerCause.OPERATOR),
    TransitionRow(_ANY, BreakerEvent.RESET, BreakerState.CLOSED, BreakerCause.OPERATOR),
    TransitionRow(_ANY, BreakerEvent.METRICS_ONLY, BreakerState.CLOSED, BreakerCause.OPERATOR),
    TransitionRow(_ANY, BreakerEvent.REMOTE_OPEN, BreakerState.OPEN, BreakerCause.REMOTE),
    TransitionRow(_ANY, BreakerEvent.REMOTE_HALF_OPEN, BreakerState.HALF_OPEN, BreakerCause.REMOTE),
    TransitionRow(_NOT_CLOSED, BreakerEvent.REMOTE_CLOSED, BreakerState.CLOSED, BreakerCause.REMOTE),
    TransitionRow(_NOT_CLOSED, BreakerEvent.REMOTE_CLOSED_RAMP, BreakerState.RAMPING, BreakerCause.REMOTE),
    TransitionRow(_ANY, BreakerEvent.REMOTE_FORCE, BreakerState.FORCED_OPEN, BreakerCause.REMOTE),
    TransitionRow(_ANY, BreakerEvent.REMOTE_DISABLE, BreakerState.DISABLED, BreakerCause.REMOTE),
    TransitionRow(_ANY, BreakerEvent.REMOTE_RESET, BreakerState.CLOSED, BreakerCause.REMOTE),
)

# The table as a mapping: one look-up per event.
TRANSITIONS: Final[Mapping[tuple[BreakerState, BreakerEvent], TransitionRow]] = {
    (state, row.event): row for row in TRANSITION_ROWS for state in row.states
}

_REMOTE_EVENTS: Final = {
    BreakerState.OPEN: BreakerEvent.REMOTE_OPEN,
    BreakerState.HALF_OPEN: BreakerEvent.REMOTE_HALF_OPEN,
    BreakerState.FORCED_OPEN: BreakerEvent.REMOTE_FORCE,
    BreakerState.DISABLED: BreakerEvent.REMOTE_DISABLE,
}


class BreakerStateMachine:
    """The state of one breaker. It changes only by the transition table, and each change starts a generation.

    The generation of a predecessor, from the parent process, goes on, and so do the commands of operators.
    """

    def __init__(
        self, name: str, settings: BreakerSettings, predecessor: BreakerStateMachine | None = None
    ) -> None:
        self.name: str = name
        self._settings = settings
        self.pending: list[BreakerTransition] = []  # transitions that were not yet published, oldest first
        self.state: BreakerState = BreakerState.CLOSED
        self.cause: BreakerCause | None = None  # cause of the newest transition
        # Cause of rejections while no call is admitted.
        self.rejection_cause: BreakerCause = BreakerCause.OPERATOR
        self.generation: int = 0
        self.opened_s: float | None = None  # time of the newest opening; None: never opened, or closed since
        self.wait_s: float  # length of the newest open period in seconds
        self.rounds: int = 0  # consecutive openings without a closing between them, less one
        # Whether calls are admitted and rejections only counted.
        self.metrics_only: bool = settings.mode is BreakerMode.METRICS_ONLY
        # Whether an operator opened or disabled it in this process, which only a command of one ends.
        self.is_commanded: bool = False
        if predecessor is None:
            self.state = BreakerState.DISABLED if settings.mode is BreakerMode.DISABLED else self.state
            return
        self.generation = predecessor.generation + 1
        self.metrics_only, self.is_commanded = predecessor.metrics_only, predecessor.is_commanded
        if predecessor.state in OPERATOR_STATES:
            self.state, self.cause = predecessor.state, predecessor.cause

    def transition(
        self, event: BreakerEvent, now: float, *, wait_s: float | None = None, rounds: int | None = None
    ) -> bool:
        """Apply the transition that the table has for an event; return whether it has one.

        A transition to the current state starts a generation, but is not published. ``wait_s`` is the length
        of this open period, None: as the settings say; ``rounds`` those of the fleet, None: counted here.
        """
        before = self.state
        row = TRANSITIONS.get((before, event))
        if row is None:
            return False
        self.state = after = row.to
        # Already in the state of the fleet: the local cause is the more precise one.
        is_repeated = after is before and row.cause is BreakerCause.REMOTE
        self.cause = cause = (is_repeated and self.cause) or row.cause
        self.generation += 1
        if rounds is not None:
            self.rounds = rounds
        elif after is BreakerState.OPEN and before is not BreakerState.OPEN:
            self.rounds = self.rounds + 1 if before in REOPENING_STATES else 0
        if after is BreakerState.OPEN:
            self.opened_s, self.rejection_cause = now, cause
            self.wait_s = self._settings.wait_s(self.rounds) if wait_s is None else wait_s
        else:
            self.opened_s = None if after is BreakerState.CLOSED else self.opened_s
            self.rejection_cause = BreakerCause.OPERATOR
        if after is not before:
            retry_s = self.wait_s if after is BreakerState.OPEN else 0.0
            self.pending.append(
                BreakerTransition(self.name, before, after, cause, now, self.generation, retry_s, self.rounds)
            )
        return True

    def remote_event(self, remote: RemoteBreakerState) -> BreakerEvent:
        """Translate a remote state into a local event.

        An operator's reset closes at once, and so does the end of an operator's decision. Otherwise a process
        closes by its own ramp.
        """
        if remote.state is not BreakerState.CLOSED:
            return _REMOTE_EVENTS[remote.state]
        if remote.cause is BreakerCause.OPERATOR or self.state in OPERATOR_STATES:
            return BreakerEvent.REMOTE_RESET
        return BreakerEvent.REMOTE_CLOSED_RAMP if self._settings.ramp else BreakerEvent.REMOTE_CLOSED

    def remaining_s(self, now: float) -> float:
        """Remaining seconds of the newest open period; zero or negative when it is over."""
        opened_s = self.opened_s
        if opened_s is None:
            return 0.0
        # A clock that stepped back must not lengthen the open period.
        return self.wait_s - (now - opened_s) if now > opened_s else self.wait_s

    def visible_state(self, now: float) -> BreakerState:
        """Return the state visible to callers: an open breaker reads half-open after its open period."""
        is_over = self.state is BreakerState.OPEN and self.remaining_s(now) <= 0.0
        return BreakerState.HALF_OPEN if is_over else self.state

    def retry_after_s(self, now: float) -> float:
        """Return the seconds until a call may be admitted; ``open_s`` in forced_open, which has no end."""
        if self.state is BreakerState.FORCED_OPEN:
            return self._settings.open_s
        return max(0.0, self.remaining_s(now)) if self.state is BreakerState.OPEN else 0.0

    def drain(self) -> list[BreakerTransition]:
        """Take the pending transitions."""
        pending, self.pending = self.pending, []
        return pending
