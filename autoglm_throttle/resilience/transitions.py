"""Which state follows which: the table that the breaker moves by, and that its page is made from.

An event that has no row for a state changes nothing there. So time, results and the dependency's own word do
not move a breaker that an operator has decided on: ``FORCED_OPEN`` and ``DISABLED`` have rows only of
operators, and of a fleet in which an operator has decided anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from autoglm_throttle.model import Cause, State


class Event(StrEnum):
    """What can happen to a breaker; the value is how its page says it."""

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
    """Where an event leads, and what is given as the reason."""

    to: State
    cause: Cause


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: an event that does the same in several states."""

    states: tuple[State, ...]
    event: Event
    move: Move


OPERATED: Final = (State.FORCED_OPEN, State.DISABLED)
"""An operator's decisions."""

OPENED_AGAIN: Final = (State.HALF_OPEN, State.RAMPING)
"""An opening out of these is a further round of the same trouble, and waits longer."""

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
"""All that can happen, the everyday first."""

MOVES: Final[Mapping[tuple[State, Event], Move]] = {
    (state, row.event): row.move for row in ROWS for state in row.states
}
"""The same for the machine: one look-up per event."""
