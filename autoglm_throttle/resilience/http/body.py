"""An answer whose body is still to come, and what becomes of the call's pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from autoglm_throttle.model import Outcome, Pass, State, StreamSettle
from autoglm_throttle.resilience.circuit import Circuit


@dataclass(slots=True)
class Keep:
    """Where a body goes that may be kept."""

    put: Callable[[bytes], None]
    """Is given the whole body, as it came over the wire, once it is complete."""
    body_bytes: int
    """Longest body that is kept."""
    parts: list[bytes] = field(default_factory=list)


class BodyWatch:
    """The pass of one call from the answer's headers to the end of its body.

    Only the dependency's time can be slow: what the reader takes between two parts does not count. A response
    that is dropped unread gives its place back.

    Args:
        circuit: that let the call through.
        pass_: what let it through.
        begun_s: monotonic, when the call began.
        length: bytes that the body will have; None: not known before its end.
        keep: where a complete body goes; None: nowhere.
    """

    __slots__ = (
        *("_asked_s", "_begun_s", "_circuit", "_got", "_keep", "_length", "_pass", "_slow", "_slow_call_s"),
        *("_spent_s", "_waiting", "outcome"),
    )

    def __init__(
        self, circuit: Circuit, pass_: Pass, begun_s: float, length: int | None, keep: Keep | None = None
    ) -> None:
        rules = circuit.rules
        first = rules.first_item_s is not None or rules.stream_settle is StreamSettle.FIRST_ITEM
        self._circuit = circuit
        self._pass: Pass | None = pass_
        self._begun_s = begun_s
        self._length = length
        self._keep = keep
        self.outcome: Outcome = Outcome.NEUTRAL
        """Of a body that broke."""
        self._got = 0
        self._slow = False
        self._waiting = first
        self._slow_call_s = rules.slow_call_s if rules.first_item_s is None else None
        self._asked_s = begun_s
        self._spent_s = 0.0
        self._spend()

    def __del__(self) -> None:
        self._leave(Outcome.NEUTRAL)

    def asking(self) -> None:
        """The reader wants the next part."""
        if self._slow_call_s is not None:
            self._asked_s = self._circuit.clock()

    def came(self, part: bytes) -> None:
        """A part of the body is there."""
        self._spend()
        if not part:
            return
        self._first()
        self._got += len(part)
        keep = self._keep
        if keep is None:
            return
        if self._got > keep.body_bytes:
            self._keep = None
        else:
            keep.parts.append(part)

    def whole(self, body: bytes | None) -> None:
        """The body was there with the headers; None: it is gone, and not as it came over the wire."""
        if body is None:
            self._keep = None
        else:
            self.came(body)
        self.ended()

    def ended(self) -> None:
        """The body is complete."""
        self._spend()
        self._first()
        late = self._slow_call_s is not None and self._spent_s > self._slow_call_s
        self._leave(Outcome.SLOW if late or self._slow else Outcome.SUCCESS)
        keep, self._keep = self._keep, None
        if keep is not None:
            keep.put(b"".join(keep.parts))

    def broke(self, error: BaseException) -> None:
        """The body ended in an error, or its reader was cancelled."""
        self._keep = None
        pass_, self._pass = self._pass, None
        if pass_ is not None:
            self.outcome = self._circuit.settle(pass_, error, raised=True)

    def left(self) -> None:
        """The reader wants no more of it. Who leaves after the last byte has missed nothing."""
        if self._length is not None and self._got >= self._length:
            self.ended()
        else:
            self._keep = None
            self._leave(Outcome.NEUTRAL)

    def _first(self) -> None:
        """The first part, or the end of a body that has none: it may be all that a trial has to show."""
        if not self._waiting:
            return
        self._waiting = False
        circuit, rules = self._circuit, self._circuit.rules
        limit_s = rules.first_item_s
        self._slow = limit_s is not None and circuit.clock() - self._begun_s > limit_s
        if rules.stream_settle is StreamSettle.FIRST_ITEM and self._is_trial():
            self._leave(Outcome.SLOW if self._slow else Outcome.SUCCESS)

    def _is_trial(self) -> bool:
        pass_ = self._pass
        return pass_ is not None and pass_.serial > 0 and self._circuit.state() is State.HALF_OPEN

    def _leave(self, outcome: Outcome) -> None:
        pass_, self._pass = self._pass, None
        if pass_ is not None:
            self._circuit.leave(pass_, outcome)

    def _spend(self) -> None:
        if self._slow_call_s is not None:
            now = self._circuit.clock()
            self._spent_s += now - self._asked_s
            self._asked_s = now
