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


@dataclass(frozen=True, slots=True)
class TransitionEffect:
    """Effect of an event: the new state and the cause reported for it."""

    to: State
    cause: Cause


@dataclass(frozen=True, slots=True)
class TransitionRow:
    """One row of the table: an event with the same effect in several states."""

    states: tuple[State, ...]
    event: BreakerEvent
    effect: TransitionEffect


OPERATOR_STATES: Final = (State.FORCED_OPEN, State.DISABLED)
"""States set by an operator."""

REOPENING_STATES: Final = (State.HALF_OPEN, State.RAMPING)
"""States from which an opening counts as a further round, with a longer wait."""

_ANY: Final = tuple(State)
_COUNTING: Final = (State.CLOSED, State.RAMPING)
_NOT_CLOSED: Final = (State.OPEN, State.HALF_OPEN)
_NOT_OPERATED: Final = (State.CLOSED, State.OPEN, State.HALF_OPEN, State.RAMPING)

TRANSITION_ROWS: Final = (
    TransitionRow(_COUNTING, BreakerEvent.FAILURES, TransitionEffect(State.OPEN, Cause.FAILURES)),
    TransitionRow(_COUNTING, BreakerEvent.FAILURE_RATE, TransitionEffect(State.OPEN, Cause.FAILURE_RATE)),
    TransitionRow(_COUNTING, BreakerEvent.SLOW_RATE, TransitionEffect(State.OPEN, Cause.SLOW_RATE)),
    TransitionRow((State.OPEN,), BreakerEvent.WAITED, TransitionEffect(State.HALF_OPEN, Cause.TRIAL)),
    TransitionRow((State.HALF_OPEN,), BreakerEvent.PROBE_FAILED, TransitionEffect(State.OPEN, Cause.TRIAL)),
    TransitionRow(
        (State.HALF_OPEN,), BreakerEvent.PROBES_SUCCEEDED, TransitionEffect(State.CLOSED, Cause.TRIAL)
    ),
    TransitionRow(
        (State.HALF_OPEN,), BreakerEvent.PROBES_SUCCEEDED_RAMP, TransitionEffect(State.RAMPING, Cause.TRIAL)
    ),
    TransitionRow((State.RAMPING,), BreakerEvent.RAMP_DONE, TransitionEffect(State.CLOSED, Cause.RAMP)),
    TransitionRow(_NOT_OPERATED, BreakerEvent.RETRY_AFTER, TransitionEffect(State.OPEN, Cause.RETRY_AFTER)),
    TransitionRow(_ANY, BreakerEvent.FORCE, TransitionEffect(State.FORCED_OPEN, Cause.OPERATOR)),
    TransitionRow(_ANY, BreakerEvent.DISABLE, TransitionEffect(State.DISABLED, Cause.OPERATOR)),
    TransitionRow(_ANY, BreakerEvent.RESET, TransitionEffect(State.CLOSED, Cause.OPERATOR)),
    TransitionRow(_ANY, BreakerEvent.METRICS_ONLY, TransitionEffect(State.CLOSED, Cause.OPERATOR)),
    TransitionRow(_ANY, BreakerEvent.REMOTE_OPEN, TransitionEffect(State.OPEN, Cause.REMOTE)),
    TransitionRow(_ANY, BreakerEvent.REMOTE_HALF_OPEN, TransitionEffect(State.HALF_OPEN, Cause.REMOTE)),
    TransitionRow(_NOT_CLOSED, BreakerEvent.REMOTE_CLOSED, TransitionEffect(State.CLOSED, Cause.REMOTE)),
    TransitionRow(
        _NOT_CLOSED, BreakerEvent.REMOTE_CLOSED_RAMP, TransitionEffect(State.RAMPING, Cause.REMOTE)
    ),
    TransitionRow(_ANY, BreakerEvent.REMOTE_FORCE, TransitionEffect(State.FORCED_OPEN, Cause.REMOTE)),
    TransitionRow(_ANY, BreakerEvent.REMOTE_DISABLE, TransitionEffect(State.DISABLED, Cause.REMOTE)),
    TransitionRow(_ANY, BreakerEvent.REMOTE_RESET, TransitionEffect(State.CLOSED, Cause.REMOTE)),
)
"""All transitions, the most frequent first."""

TRANSITION_EFFECTS: Final[Mapping[tuple[State, BreakerEvent], TransitionEffect]] = {
    (state, row.event): row.effect for row in TRANSITION_ROWS for state in row.states
}
"""The table as a mapping: one look-up per event."""
