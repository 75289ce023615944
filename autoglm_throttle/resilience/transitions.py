"""Transition table of the breaker, also the source of its documentation page.

An event without a row for a state changes nothing in that state. ``FORCED_OPEN`` and ``DISABLED`` have rows
only for operator commands, local or of the fleet. So time, results and a Retry-After of the dependency never
end an operator's decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from autoglm_throttle.model import Cause, State


class Event(StrEnum):
    """Events of a breaker; the value is the text on its documentation page."""

    FAILURES = "as many failures in a row as are allowed"
    FAILURE_RATE = "too large a share of the calls failed"
    SLOW_RATE = "too large a share of the calls was slow"
    RETRY_AFTER = "the dependency says when to come back"
    WAITED = "the open period is over and somebody calls"
    TRIAL_FAILED = "a trial failed, or was slow"
    TRIALS_WON = "enough trials succeeded"
    TRIALS_WON_RAMP = "enough trials succeeded, and a ramp is set"
    RAMP_DONE = "the last step of the ramp is over and somebody calls"
    FORCE = "an operator opens it"
    DISABLE = "an operator turns it off"
    RESET = "an operator resets it"
    WATCH = "an operator has it count only"
    REMOTE_OPEN = "another process has opened"
    REMOTE_HALF_OPEN = "other processes make trials"
    REMOTE_CLOSED = "another process has closed"
    REMOTE_CLOSED_RAMP = "another process has closed, and a ramp is set"
    REMOTE_FORCE = "an operator has opened it elsewhere"
    REMOTE_DISABLE = "an operator has turned it off elsewhere"
    REMOTE_RESET = "an operator has reset it elsewhere"


@dataclass(frozen=True, slots=True)
class Move:
    """Effect of an event: the new state and the cause reported for it."""

    to: State
    cause: Cause


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table: an event with the same effect in several states."""

    states: tuple[State, ...]
    event: Event
    move: Move


OPERATED: Final = (State.FORCED_OPEN, State.DISABLED)
"""States set by an operator."""

OPENED_AGAIN: Final = (State.HALF_OPEN, State.RAMPING)
"""States from which an opening counts as a further round, with a longer wait."""

_ANY: Final = tuple(State)
_COUNTING: Final = (State.CLOSED, State.RAMPING)
_AWAY: Final = (State.OPEN, State.HALF_OPEN)
_OWN: Final = (State.CLOSED, State.OPEN, State.HALF_OPEN, State.RAMPING)

ROWS: Final = (
    Row(_COUNTING, Event.FAILURES, Move(State.OPEN, Cause.FAILURES)),
    Row(_COUNTING, Event.FAILURE_RATE, Move(State.OPEN, Cause.FAILURE_RATE)),
    Row(_COUNTING, Event.SLOW_RATE, Move(State.OPEN, Cause.SLOW_RATE)),
    Row((State.OPEN,), Event.WAITED, Move(State.HALF_OPEN, Cause.TRIAL)),
    Row((State.HALF_OPEN,), Event.TRIAL_FAILED, Move(State.OPEN, Cause.TRIAL)),
    Row((State.HALF_OPEN,), Event.TRIALS_WON, Move(State.CLOSED, Cause.TRIAL)),
    Row((State.HALF_OPEN,), Event.TRIALS_WON_RAMP, Move(State.RAMPING, Cause.TRIAL)),
    Row((State.RAMPING,), Event.RAMP_DONE, Move(State.CLOSED, Cause.RAMP)),
    Row(_OWN, Event.RETRY_AFTER, Move(State.OPEN, Cause.RETRY_AFTER)),
    Row(_ANY, Event.FORCE, Move(State.FORCED_OPEN, Cause.OPERATOR)),
    Row(_ANY, Event.DISABLE, Move(State.DISABLED, Cause.OPERATOR)),
    Row(_ANY, Event.RESET, Move(State.CLOSED, Cause.OPERATOR)),
    Row(_ANY, Event.WATCH, Move(State.CLOSED, Cause.OPERATOR)),
    Row(_ANY, Event.REMOTE_OPEN, Move(State.OPEN, Cause.REMOTE)),
    Row(_ANY, Event.REMOTE_HALF_OPEN, Move(State.HALF_OPEN, Cause.REMOTE)),
    Row(_AWAY, Event.REMOTE_CLOSED, Move(State.CLOSED, Cause.REMOTE)),
    Row(_AWAY, Event.REMOTE_CLOSED_RAMP, Move(State.RAMPING, Cause.REMOTE)),
    Row(_ANY, Event.REMOTE_FORCE, Move(State.FORCED_OPEN, Cause.REMOTE)),
    Row(_ANY, Event.REMOTE_DISABLE, Move(State.DISABLED, Cause.REMOTE)),
    Row(_ANY, Event.REMOTE_RESET, Move(State.CLOSED, Cause.REMOTE)),
)
"""All transitions, the most frequent first."""

MOVES: Final[Mapping[tuple[State, Event], Move]] = {
    (state, row.event): row.move for row in ROWS for state in row.states
}
"""The table as a mapping: one look-up per event."""
