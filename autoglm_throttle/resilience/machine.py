"""Where a breaker stands: its state, since when, for how long, and the changes still to be told."""

from __future__ import annotations

from typing import Final

from autoglm_throttle.model import Cause, State, Transition
from autoglm_throttle.resilience.rules import Rules
from autoglm_throttle.resilience.store import Remote
from autoglm_throttle.resilience.transitions import MOVES, OPENED_AGAIN, OPERATED, Event

_TOLD: Final = {
    State.OPEN: Event.REMOTE_OPEN,
    State.HALF_OPEN: Event.REMOTE_HALF_OPEN,
    State.FORCED_OPEN: Event.REMOTE_FORCE,
    State.DISABLED: Event.REMOTE_DISABLE,
}


class Machine:
    """The state of one breaker. It moves by the table alone, and each move begins a generation.

    Args:
        name: of the guard.
        rules: complete and checked.
        state: the first.
    """

    __slots__ = (
        *("_outbox", "cause", "generation", "name", "opened_s", "rounds", "rules", "shut_by", "state"),
        "wait_s",
    )

    def __init__(self, name: str, rules: Rules, state: State) -> None:
        self.name: str = name
        self.rules: Rules = rules
        self.state: State = state
        self.cause: Cause | None = None
        """Of the newest move."""
        self.shut_by: Cause = Cause.OPERATOR
        """Why nothing is let through, while that is so."""
        self.generation: int = 0
        self.opened_s: float | None = None
        """Of the newest opening; None: never opened, or closed since."""
        self.wait_s: float
        """How long the newest opening lasts."""
        self.rounds: int = 0
        """Openings in a row without a closing between them, less one."""
        self._outbox: list[Transition] = []

    def go(
        self,
        event: Event,
        now: float,
        *,
        wait_s: float | None = None,
        cause: Cause | None = None,
        rounds: int | None = None,
    ) -> bool:
        """Make the move that the table has for an event.

        Args:
            event: what has happened.
            now: monotonic seconds.
            wait_s: how long to stay open this once; None: as the rules say.
            cause: said in place of the table's.
            rounds: counted by somebody else; None: to be counted here.

        Returns:
            Whether there is such a move. One to the present state is a move too, but not told.
        """
        before = self.state
        move = MOVES.get((before, event))
        if move is None:
            return False
        self.state = after = move.to
        self.cause = cause = cause or move.cause
        self.generation += 1
        if rounds is not None:
            self.rounds = rounds
        elif after is State.OPEN and before is not State.OPEN:
            self.rounds = self.rounds + 1 if before in OPENED_AGAIN else 0
        if after is State.OPEN:
            self.opened_s, self.shut_by = now, cause
            self.wait_s = self.rules.wait_s(self.rounds) if wait_s is None else wait_s
        else:
            self.opened_s = None if after is State.CLOSED else self.opened_s
            self.shut_by = Cause.OPERATOR
        if after is not before:
            self._tell(before, cause, now)
        return True

    def heard(self, remote: Remote) -> Event:
        """What it means here that the fleet has gone to a state.

        An operator's reset closes at once, and so does whatever lifts an operator's decision; else a process
        closes by its own ramp.
        """
        if remote.state is not State.CLOSED:
            return _TOLD[remote.state]
        if remote.cause is Cause.OPERATOR or self.state in OPERATED:
            return Event.REMOTE_RESET
        return Event.REMOTE_CLOSED_RAMP if self.rules.ramp else Event.REMOTE_CLOSED

    def left_s(self, now: float) -> float:
        """What is left of the newest opening; not positive when it is over."""
        opened_s = self.opened_s
        if opened_s is None:
            return 0.0
        return self.wait_s - (now - opened_s) if now > opened_s else self.wait_s

    def seen(self, now: float) -> State:
        """What a caller would meet: an open breaker whose time is over reads half-open."""
        if self.state is State.OPEN and self.left_s(now) <= 0.0:
            return State.HALF_OPEN
        return self.state

    def retry_after_s(self, now: float) -> float:
        """How long nothing is let through; of an operator's opening nobody knows, it is ``open_s``."""
        if self.state is State.FORCED_OPEN:
            return self.rules.open_s
        return max(0.0, self.left_s(now)) if self.state is State.OPEN else 0.0

    def drain(self) -> list[Transition]:
        """Take the changes of state that nobody has been told of, the oldest first."""
        outbox, self._outbox = self._outbox, []
        return outbox

    def _tell(self, before: State, cause: Cause, now: float) -> None:
        wait_s = self.wait_s if self.state is State.OPEN else 0.0
        self._outbox.append(
            Transition(self.name, before, self.state, cause, now, self.generation, wait_s, self.rounds)
        )
