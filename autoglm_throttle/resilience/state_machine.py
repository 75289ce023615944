"""Current state of a breaker: since when, for how long, and the transitions to publish."""

from __future__ import annotations

from typing import Final

from autoglm_throttle.resilience.store import RemoteBreakerState
from autoglm_throttle.resilience.transitions import (
    OPERATOR_STATES,
    REOPENING_STATES,
    TRANSITION_EFFECTS,
    BreakerEvent,
)
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import BreakerCause, BreakerState, BreakerTransition

_REMOTE_EVENTS: Final = {
    BreakerState.OPEN: BreakerEvent.REMOTE_OPEN,
    BreakerState.HALF_OPEN: BreakerEvent.REMOTE_HALF_OPEN,
    BreakerState.FORCED_OPEN: BreakerEvent.REMOTE_FORCE,
    BreakerState.DISABLED: BreakerEvent.REMOTE_DISABLE,
}


class BreakerStateMachine:
    """The state of one breaker. It changes only by the transition table, and each change starts a generation.

    Args:
        name: of the guard.
        settings: complete and validated.
        state: the initial state.
    """

    __slots__ = (
        *(
            "_pending_transitions",
            "_settings",
            "cause",
            "generation",
            "name",
            "opened_s",
            "rounds",
            "rejection_cause",
            "state",
        ),
        "wait_s",
    )

    def __init__(self, name: str, settings: BreakerSettings, state: BreakerState) -> None:
        self.name: str = name
        self._settings = settings
        self.state: BreakerState = state
        self.cause: BreakerCause | None = None
        """Cause of the newest transition."""
        self.rejection_cause: BreakerCause = BreakerCause.OPERATOR
        """Cause of rejections while no call is admitted."""
        self.generation: int = 0
        self.opened_s: float | None = None
        """Time of the newest opening; None: never opened, or closed since."""
        self.wait_s: float
        """Length of the newest open period in seconds."""
        self.rounds: int = 0
        """Consecutive openings without a closing between them, less one."""
        self._pending_transitions: list[BreakerTransition] = []

    def successor(self) -> BreakerStateMachine:
        """Return a machine of the next generation: closed, unless an operator opened or disabled this one."""
        is_operated = self.state in OPERATOR_STATES
        machine = BreakerStateMachine(
            self.name, self._settings, self.state if is_operated else BreakerState.CLOSED
        )
        machine.cause = self.cause if is_operated else None
        machine.generation = self.generation + 1
        return machine

    def transition(
        self,
        event: BreakerEvent,
        now: float,
        *,
        wait_s: float | None = None,
        cause: BreakerCause | None = None,
        rounds: int | None = None,
    ) -> bool:
        """Apply the transition that the table has for an event.

        Args:
            event: the event.
            now: monotonic seconds.
            wait_s: length of this open period; None: as the settings say.
            cause: replaces the cause of the table.
            rounds: counted by the fleet; None: counted here.

        Returns:
            Whether the table has such a transition. A transition to the current state counts, but is not
            published.
        """
        before = self.state
        effect = TRANSITION_EFFECTS.get((before, event))
        if effect is None:
            return False
        self.state = after = effect.to
        self.cause = cause = cause or effect.cause
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
            self._queue_transition(before, cause, now)
        return True

    def record_remote(self, remote: RemoteBreakerState) -> BreakerEvent:
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
        if self.state is BreakerState.OPEN and self.remaining_s(now) <= 0.0:
            return BreakerState.HALF_OPEN
        return self.state

    def retry_after_s(self, now: float) -> float:
        """Return the seconds until a call may be admitted; ``open_s`` in forced_open, which has no end."""
        if self.state is BreakerState.FORCED_OPEN:
            return self._settings.open_s
        return max(0.0, self.remaining_s(now)) if self.state is BreakerState.OPEN else 0.0

    def drain(self) -> list[BreakerTransition]:
        """Take the transitions that were not yet published, oldest first."""
        pending, self._pending_transitions = self._pending_transitions, []
        return pending

    def _queue_transition(self, before: BreakerState, cause: BreakerCause, now: float) -> None:
        wait_s = self.wait_s if self.state is BreakerState.OPEN else 0.0
        self._pending_transitions.append(
            BreakerTransition(self.name, before, self.state, cause, now, self.generation, wait_s, self.rounds)
        )
