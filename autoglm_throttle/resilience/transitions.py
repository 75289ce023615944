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

from autoglm_throttle.types import BreakerCause, BreakerState


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

    to: BreakerState
    cause: BreakerCause


@dataclass(frozen=True, slots=True)
class TransitionRow:
    """One row of the table: an event with the same effect in several states."""

    states: tuple[BreakerState, ...]
    event: BreakerEvent
    effect: TransitionEffect


OPERATOR_STATES: Final = (BreakerState.FORCED_OPEN, BreakerState.DISABLED)
"""States set by an operator."""

REOPENING_STATES: Final = (BreakerState.HALF_OPEN, BreakerState.RAMPING)
"""States from which an opening counts as a further round, with a longer wait."""

_ANY: Final = tuple(BreakerState)
_COUNTING: Final = (BreakerState.CLOSED, BreakerState.RAMPING)
_NOT_CLOSED: Final = (BreakerState.OPEN, BreakerState.HALF_OPEN)
_NOT_OPERATED: Final = (BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN, BreakerState.RAMPING)

TRANSITION_ROWS: Final = (
    TransitionRow(
        _COUNTING, BreakerEvent.FAILURES, TransitionEffect(BreakerState.OPEN, BreakerCause.FAILURES)
    ),
    TransitionRow(
        _COUNTING, BreakerEvent.FAILURE_RATE, TransitionEffect(BreakerState.OPEN, BreakerCause.FAILURE_RATE)
    ),
    TransitionRow(
        _COUNTING, BreakerEvent.SLOW_RATE, TransitionEffect(BreakerState.OPEN, BreakerCause.SLOW_RATE)
    ),
    TransitionRow(
        (BreakerState.OPEN,),
        BreakerEvent.WAITED,
        TransitionEffect(BreakerState.HALF_OPEN, BreakerCause.TRIAL),
    ),
    TransitionRow(
        (BreakerState.HALF_OPEN,),
        BreakerEvent.PROBE_FAILED,
        TransitionEffect(BreakerState.OPEN, BreakerCause.TRIAL),
    ),
    TransitionRow(
        (BreakerState.HALF_OPEN,),
        BreakerEvent.PROBES_SUCCEEDED,
        TransitionEffect(BreakerState.CLOSED, BreakerCause.TRIAL),
    ),
    TransitionRow(
        (BreakerState.HALF_OPEN,),
        BreakerEvent.PROBES_SUCCEEDED_RAMP,
        TransitionEffect(BreakerState.RAMPING, BreakerCause.TRIAL),
    ),
    TransitionRow(
        (BreakerState.RAMPING,),
        BreakerEvent.RAMP_DONE,
        TransitionEffect(BreakerState.CLOSED, BreakerCause.RAMP),
    ),
    TransitionRow(
        _NOT_OPERATED, BreakerEvent.RETRY_AFTER, TransitionEffect(BreakerState.OPEN, BreakerCause.RETRY_AFTER)
    ),
    TransitionRow(
        _ANY, BreakerEvent.FORCE, TransitionEffect(BreakerState.FORCED_OPEN, BreakerCause.OPERATOR)
    ),
    TransitionRow(_ANY, BreakerEvent.DISABLE, TransitionEffect(BreakerState.DISABLED, BreakerCause.OPERATOR)),
    TransitionRow(_ANY, BreakerEvent.RESET, TransitionEffect(BreakerState.CLOSED, BreakerCause.OPERATOR)),
    TransitionRow(
        _ANY, BreakerEvent.METRICS_ONLY, TransitionEffect(BreakerState.CLOSED, BreakerCause.OPERATOR)
    ),
    TransitionRow(_ANY, BreakerEvent.REMOTE_OPEN, TransitionEffect(BreakerState.OPEN, BreakerCause.REMOTE)),
    TransitionRow(
        _ANY, BreakerEvent.REMOTE_HALF_OPEN, TransitionEffect(BreakerState.HALF_OPEN, BreakerCause.REMOTE)
    ),
    TransitionRow(
        _NOT_CLOSED, BreakerEvent.REMOTE_CLOSED, TransitionEffect(BreakerState.CLOSED, BreakerCause.REMOTE)
    ),
    TransitionRow(
        _NOT_CLOSED,
        BreakerEvent.REMOTE_CLOSED_RAMP,
        TransitionEffect(BreakerState.RAMPING, BreakerCause.REMOTE),
    ),
    TransitionRow(
        _ANY, BreakerEvent.REMOTE_FORCE, TransitionEffect(BreakerState.FORCED_OPEN, BreakerCause.REMOTE)
    ),
    TransitionRow(
        _ANY, BreakerEvent.REMOTE_DISABLE, TransitionEffect(BreakerState.DISABLED, BreakerCause.REMOTE)
    ),
    TransitionRow(
        _ANY, BreakerEvent.REMOTE_RESET, TransitionEffect(BreakerState.CLOSED, BreakerCause.REMOTE)
    ),
)
"""All transitions, the most frequent first."""

TRANSITION_EFFECTS: Final[Mapping[tuple[BreakerState, BreakerEvent], TransitionEffect]] = {
    (state, row.event): row.effect for row in TRANSITION_ROWS for state in row.states
}
"""The table as a mapping: one look-up per event."""
