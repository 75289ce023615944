"""A response body in transfer, and the permit of its call."""

from __future__ import annotations

from autoglm_throttle.resilience.http.cache import CachePolicy
from autoglm_throttle.resilience.state import GuardState
from autoglm_throttle.types import BreakerState, Clock, GuardPermit, Outcome


class BodyTimer:
    """Time that a dependency took for a body, without the time of the reader between two parts.

    Args:
        clock: monotonic seconds.
        limit_s: duration above which a body is slow; None: nothing is measured.
        begun_s: monotonic seconds at the start of the call.
    """

    __slots__ = ("_clock", "_limit_s", "_spent_s", "_started_s")

    def __init__(self, clock: Clock, limit_s: float | None, begun_s: float) -> None:
        self._clock = clock
        self._limit_s = limit_s
        self._spent_s = 0.0
        self._started_s = begun_s

    def start(self) -> None:
        """Record that the reader waits for the dependency."""
        if self._limit_s is not None:
            self._started_s = self._clock()

    def stop(self) -> None:
        """Record that the dependency has sent something."""
        if self._limit_s is not None:
            now = self._clock()
            self._spent_s += now - self._started_s
            self._started_s = now

    @property
    def is_slow(self) -> bool:
        """Whether the dependency took longer than the limit."""
        return self._limit_s is not None and self._spent_s > self._limit_s


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
        "_awaits_first_part",
        "_begun_s",
        "_cache_policy",
        "_circuit",
        "_length",
        "_permit",
        "_received_bytes",
        "_slow",
        "_timer",
        "outcome",
    )

    def __init__(
        self,
        circuit: GuardState,
        permit: GuardPermit,
        begun_s: float,
        length: int | None,
        cache_policy: CachePolicy | None = None,
    ) -> None:
        self._circuit = circuit
        self._permit: GuardPermit | None = permit
        self._begun_s = begun_s
        self._length = length
        self._cache_policy = cache_policy
        self.outcome: Outcome = Outcome.NEUTRAL
        """Outcome of a body that failed."""
        self._received_bytes = 0
        self._slow = False
        self._awaits_first_part = circuit.first_item_s is not None or circuit.settles_at_first_item
        limit_s = circuit.slow_call_s if circuit.first_item_s is None else None
        self._timer = BodyTimer(circuit.clock, limit_s, begun_s)
        self._timer.stop()

    # A response that is dropped unread returns its slot.
    def __del__(self) -> None:
        self._record(Outcome.NEUTRAL)

    def reading(self) -> None:
        """Record that the reader waits for the next part."""
        self._timer.start()

    def received(self, part: bytes) -> None:
        """Record a part of the body."""
        self._timer.stop()
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
        self._timer.stop()
        self._record_first_part()
        self._record(Outcome.SLOW if self._timer.is_slow or self._slow else Outcome.SUCCESS)
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
        circuit, limit_s = self._circuit, self._circuit.first_item_s
        self._slow = limit_s is not None and circuit.clock() - self._begun_s > limit_s
        if circuit.settles_at_first_item and self._is_probe():
            self._record(Outcome.SLOW if self._slow else Outcome.SUCCESS)

    def _is_probe(self) -> bool:
        permit = self._permit
        # A serial above 0 also marks a bounded ordinary call, so the state decides too.
        return permit is not None and permit.serial > 0 and self._circuit.state() is BreakerState.HALF_OPEN

    def _record(self, outcome: Outcome) -> None:
        permit, self._permit = self._permit, None
        if permit is not None:
            self._circuit.record(permit, outcome)
