"""A response body in transfer, and the permit of its call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from autoglm_throttle.resilience.guard_state import GuardState
from autoglm_throttle.types import BreakerState, GuardPermit, Outcome, StreamSettleMode


@dataclass(slots=True)
class CachePolicy:
    """Destination of a body that may be cached."""

    put: Callable[[bytes], None]
    """Called with the complete body, as received."""
    max_body_bytes: int
    """Maximum length of a cached body."""
    parts: list[bytes] = field(default_factory=list)


class BodyObserver:
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
        *(
            "_read_started_s",
            "_begun_s",
            "_circuit",
            "_received_bytes",
            "_cache_policy",
            "_length",
            "_permit",
            "_slow",
            "_slow_call_s",
        ),
        *("_spent_s", "_awaits_first_part", "outcome"),
    )

    def __init__(
        self,
        circuit: GuardState,
        permit: GuardPermit,
        begun_s: float,
        length: int | None,
        cache_policy: CachePolicy | None = None,
    ) -> None:
        rules = circuit.rules
        first = rules.first_item_s is not None or rules.stream_settle is StreamSettleMode.FIRST_ITEM
        self._circuit = circuit
        self._permit: GuardPermit | None = permit
        self._begun_s = begun_s
        self._length = length
        self._cache_policy = cache_policy
        self.outcome: Outcome = Outcome.NEUTRAL
        """Outcome of a body that failed."""
        self._received_bytes = 0
        self._slow = False
        self._awaits_first_part = first
        self._slow_call_s = rules.slow_call_s if rules.first_item_s is None else None
        self._read_started_s = begun_s
        self._spent_s = 0.0
        self._add_elapsed()

    # A response dropped unread is settled by the garbage collector, so its slot is not lost.
    def __del__(self) -> None:
        self._record(Outcome.NEUTRAL)

    def reading(self) -> None:
        """Record that the reader waits for the next part."""
        if self._slow_call_s is not None:
            self._read_started_s = self._circuit.clock()

    def received(self, part: bytes) -> None:
        """Record a part of the body."""
        self._add_elapsed()
        if not part:
            return
        self._record_first_part()
        self._received_bytes += len(part)
        cache_policy = self._cache_policy
        if cache_policy is None:
            return
        # Too long for the cache: drop the parts at once, do not hold them until the end.
        if self._received_bytes > cache_policy.max_body_bytes:
            self._cache_policy = None
        else:
            cache_policy.parts.append(part)

    def complete(self, body: bytes | None) -> None:
        """Record a body that arrived with the headers; None: it was consumed or decoded already."""
        if body is None:
            self._cache_policy = None
        else:
            self.received(body)
        self.finished()

    def finished(self) -> None:
        """Record that the body is complete."""
        self._add_elapsed()
        self._record_first_part()
        late = self._slow_call_s is not None and self._spent_s > self._slow_call_s
        self._record(Outcome.SLOW if late or self._slow else Outcome.SUCCESS)
        cache_policy, self._cache_policy = self._cache_policy, None
        if cache_policy is not None:
            cache_policy.put(b"".join(cache_policy.parts))

    def failed(self, error: BaseException) -> None:
        """Record that the body ended in an error, or its reader was cancelled."""
        self._cache_policy = None
        permit, self._permit = self._permit, None
        if permit is not None:
            self.outcome = self._circuit.settle(permit, error, raised=True)

    def abandoned(self) -> None:
        """Record that the reader stopped; after the last byte this counts as complete."""
        if self._length is not None and self._received_bytes >= self._length:
            self.finished()
        else:
            self._cache_policy = None
            self._record(Outcome.NEUTRAL)

    def _record_first_part(self) -> None:
        """Record the first part, or the end of an empty body: it may settle a probe."""
        if not self._awaits_first_part:
            return
        self._awaits_first_part = False
        circuit, rules = self._circuit, self._circuit.rules
        limit_s = rules.first_item_s
        self._slow = limit_s is not None and circuit.clock() - self._begun_s > limit_s
        if rules.stream_settle is StreamSettleMode.FIRST_ITEM and self._is_probe():
            self._record(Outcome.SLOW if self._slow else Outcome.SUCCESS)

    def _is_probe(self) -> bool:
        permit = self._permit
        # A serial above 0 also marks a bounded ordinary call, so the state decides too.
        return permit is not None and permit.serial > 0 and self._circuit.state() is BreakerState.HALF_OPEN

    def _record(self, outcome: Outcome) -> None:
        permit, self._permit = self._permit, None
        if permit is not None:
            self._circuit.record(permit, outcome)

    def _add_elapsed(self) -> None:
        if self._slow_call_s is not None:
            now = self._circuit.clock()
            self._spent_s += now - self._read_started_s
            self._read_started_s = now
