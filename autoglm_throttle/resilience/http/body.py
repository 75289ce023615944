"""A response body in transfer, and the permit of its call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from autoglm_throttle.model import Outcome, Pass, State, StreamSettle
from autoglm_throttle.resilience.circuit import Circuit


@dataclass(slots=True)
class Keep:
    """Destination of a body that may be cached."""

    put: Callable[[bytes], None]
    """Called with the complete body, as received."""
    body_bytes: int
    """Maximum length of a cached body."""
    parts: list[bytes] = field(default_factory=list)


class BodyWatch:
    """Holds the permit of one call from the response headers to the end of its body.

    Only the dependency's time can be slow: the time that the reader takes between two parts does not count. A
    response that is dropped unread counts as neutral.

    Args:
        circuit: of the guard.
        permit: of the call.
        begun_s: monotonic seconds at the start of the call.
        length: bytes of the body; None: unknown before its end.
        cache_policy: destination of a complete body; None: it is not cached.
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
        """Outcome of a body that failed."""
        self._got = 0
        self._slow = False
        self._waiting = first
        self._slow_call_s = rules.slow_call_s if rules.first_item_s is None else None
        self._asked_s = begun_s
        self._spent_s = 0.0
        self._spend()

    # A response dropped unread is settled by the garbage collector, so its slot is not lost.
    def __del__(self) -> None:
        self._leave(Outcome.NEUTRAL)

    def asking(self) -> None:
        """Record that the reader waits for the next part."""
        if self._slow_call_s is not None:
            self._asked_s = self._circuit.clock()

    def came(self, part: bytes) -> None:
        """Record a part of the body."""
        self._spend()
        if not part:
            return
        self._first()
        self._got += len(part)
        keep = self._keep
        if keep is None:
            return
        # Too long for the cache: drop the parts at once, do not hold them until the end.
        if self._got > keep.body_bytes:
            self._keep = None
        else:
            keep.parts.append(part)

    def whole(self, body: bytes | None) -> None:
        """Record a body that arrived with the headers; None: it was consumed or decoded already."""
        if body is None:
            self._keep = None
        else:
            self.came(body)
        self.ended()

    def ended(self) -> None:
        """Record that the body is complete."""
        self._spend()
        self._first()
        late = self._slow_call_s is not None and self._spent_s > self._slow_call_s
        self._leave(Outcome.SLOW if late or self._slow else Outcome.SUCCESS)
        keep, self._keep = self._keep, None
        if keep is not None:
            keep.put(b"".join(keep.parts))

    def broke(self, error: BaseException) -> None:
        """Record that the body ended in an error, or its reader was cancelled."""
        self._keep = None
        pass_, self._pass = self._pass, None
        if pass_ is not None:
            self.outcome = self._circuit.settle(pass_, error, raised=True)

    def left(self) -> None:
        """Record that the reader stopped; after the last byte this counts as complete."""
        if self._length is not None and self._got >= self._length:
            self.ended()
        else:
            self._keep = None
            self._leave(Outcome.NEUTRAL)

    def _first(self) -> None:
        """Record the first part, or the end of an empty body: it may settle a probe."""
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
        # A serial above 0 also marks a bounded ordinary call, so the state decides too.
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
