"""A feature's fallbacks for HTTP callers, with a cache that follows the rules of HTTP."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from autoglm_throttle.model import Cause, FallbackContext, GuardRefused, Level, Outcome, Refusal, Rung
from autoglm_throttle.resilience.coalesce import Flights
from autoglm_throttle.resilience.degradation import Choice
from autoglm_throttle.resilience.fallback import ERROR, LOAD, REFRESH, Answer, Check, Counted, Rungs
from autoglm_throttle.resilience.feature import UNSET, Feature
from autoglm_throttle.resilience.http.answer import HttpAnswer, Pairs
from autoglm_throttle.resilience.http.body import Keep
from autoglm_throttle.resilience.http.cache import HttpCache
from autoglm_throttle.resilience.http.stale import Ask, Kept, keeping, varies_by
from autoglm_throttle.resilience.seldom import Seldom
from autoglm_throttle.resilience.stale_cache import StaleCache

if TYPE_CHECKING:
    from autoglm_throttle.resilience.circuit import Circuit
    from autoglm_throttle.resilience.ladder_watch import Degradation

T = TypeVar("T")

Key = Callable[[Any], Hashable | None]
"""Computes the cache key of a request, instead of method and URL; None: do not cache."""


ALONE_S: Final = 10.0
"""Seconds without single flight after a response that could not be shared.

An unshared wait doubles the duration of a call. Once in 10 s, the default open period of a breaker, that is
acceptable, and a response that has become sharable is soon detected.
"""

ALONE_ENTRIES: Final = 256
"""Maximum number of such requests remembered; beyond it some wait once more without a result."""


def whole(value: object, rung: Rung) -> None:
    """Accept only an `HttpAnswer`, which every HTTP caller can send.

    Args:
        value: of a fallback.
        fallback_kind: of that fallback.

    Raises:
        TypeError: any other type.
    """
    if not isinstance(value, HttpAnswer):
        raise TypeError(f"the {rung} fallback of HTTP must give an HttpAnswer, not {type(value).__name__}")


@dataclass(frozen=True, slots=True)
class Landing:
    """Result of one live call, for all callers that waited for it."""

    ask: Ask
    response: object
    """For the caller that made the call only; None: it raised."""
    kept: Kept | None = None
    """For the other callers; None: nothing may be shared."""
    error: Exception | None = None
    outcome: Outcome = Outcome.NEUTRAL
    hurried: bool = False
    """Whether the caller's own time limit ended, which the others do not share."""
    trace: TracebackType | None = None
    """Traceback of the exception; each caller that raises it again starts with this one."""

    def fitting(self, ask: Ask) -> Kept | None:
        """Return the response if it answers this request too, else None."""
        kept = self.kept
        if kept is None:
            return None
        names = varies_by(kept.answer.headers) or ()
        return kept if ask.varied(names) == self.ask.varied(names) else None


class HttpServed:
    """Answers in place of one feature's HTTP calls.

    Args:
        circuit: the guard of the same name.
        feature: declares the fallbacks.
        degradation: the level of the process; the feature is registered there.
        cache: of this feature only; None: nothing is cached.
        on_degraded: called with each degraded answer.
        fallback_timeout_s: time limit of an asynchronous dynamic fallback in seconds; None: no limit.
        max_stale_s: seconds beyond its lifetime for which a cached response is used, unless the response or
            the feature declares it.
    """

    __slots__ = (
        *("_cache", "_circuit", "_counted", "_degradation", "_inside", "_key", "_lock", "_log"),
        *("_alone", "_always", "_max_stale_s", "_rungs", "feature", "flights", "on_value"),
    )

    def __init__(  # noqa: PLR0913 - its parts
        self,
        circuit: Circuit,
        feature: Feature,
        degradation: Degradation,
        *,
        cache: HttpCache | None,
        counted: Counted,
        fallback_timeout_s: float | None,
        max_stale_s: float,
    ) -> None:
        fallback = feature.fallback
        own_s = None if fallback is None else fallback.max_stale_s
        self.feature: Feature = feature
        self.on_value: bool = fallback is not None and fallback.on_value is not False
        """Whether a failing status is replaced too."""
        self.flights: Flights[Landing] = Flights(lambda landing: not landing.hurried)
        """Live calls that other callers may share."""
        self._alone: StaleCache[None] = StaleCache(ALONE_ENTRIES)
        self._always = fallback is not None and fallback.coalesce == "always"
        self._circuit = circuit
        self._degradation = degradation
        self._cache = cache if fallback is not None and fallback.stale else None
        self._key: Key | None = None if fallback is None else fallback.key
        self._counted = counted
        self._max_stale_s = max_stale_s if own_s is None else own_s
        self._log = Seldom(feature.name, circuit.clock)
        self._rungs = Rungs(feature, counted, fallback_timeout_s, self._log)
        self.reset_after_fork()

    def __repr__(self) -> str:
        return f"<HttpServed {self.feature.name!r} {self._degradation!r} {self._cache or 'keeps nothing'}>"

    def reset_after_fork(self) -> None:
        """Create a new lock in a forked child and drop calls in flight; cached responses stay."""
        self.flights.reset_after_fork()
        # Re-entrant: the garbage collector may run under it, and a finalizer may make a guarded call.
        self._lock = threading.RLock()
        self._inside = False

    def asked(self, method: str, url: str, headers: Pairs, request: object, key: Key | None) -> Ask | None:
        """Return the cache request of an HTTP request; None: it is not cached.

        Args:
            method: in upper case.
            url: without a fragment.
            headers: of the request.
            request: passed to the key function.
            key: the caller's key function; None: that of the fallback, if any.
        """
        if self._cache is None:
            return None
        make = self._key if key is None else key
        if make is None:
            return Ask(method, url, headers)
        try:
            own = make(request)
            hash(own)
        except Exception as error:  # noqa: BLE001 - a user's key function may raise anything
            self._log.say("key", f"a request has no key, its answer is not kept ({error!r})")
            return None
        return None if own is None else Ask(method, url, headers, own)

    def choice(self, ask: Ask | None) -> Choice:
        """Return the action for a call under the current load."""
        if self._degradation.level() is Level.FULL and self.feature.shed_above is None:
            return Choice.SERVE
        return self._degradation.choice(self.feature, self._find(ask) is not None)

    def shares(self, ask: Ask | None) -> bool:
        """Whether this request may wait for a call in flight."""
        if ask is None or not (self._always or self._degradation.level() >= Level.STALE):
            return False
        return ask.keepable and not self._is_alone(ask)

    def alone(self, ask: Ask) -> None:
        """Disable single flight for this request for a while: its response could not be shared."""
        self._within(lambda: self._alone.put(ask.own, None, self._circuit.clock()))

    def _is_alone(self, ask: Ask) -> bool:
        return self._within(lambda: self._alone.get(ask.own, self._circuit.clock(), ALONE_S)) is not None

    def refreshed(self, ask: Ask) -> HttpAnswer | None:
        """Return the cached response and count it; used while another caller fetches a newer one."""
        found = self._find(ask)
        if found is None:
            return None
        self._counted(self.feature.name, Rung.STALE, REFRESH)
        return found.answering(self._circuit.clock(), REFRESH)

    def loaded(self, request: object) -> FallbackContext:
        """Return the fallback context of a call not made because of the load."""
        return FallbackContext(self.feature.name, LOAD, None, (request,))

    def fault(self, request: object, error: Exception | None, outcome: Outcome) -> FallbackContext | None:
        """Return the fallback context of a rejection or a failure; None: no fallback may replace the result.

        Args:
            request: passed to a dynamic fallback.
            error: the exception; None: a failing status was received.
            outcome: of the call, as recorded.
        """
        if isinstance(error, GuardRefused):
            cause = error.refusal.cause.value
        elif outcome is Outcome.FAILURE and (error is not None or self.on_value):
            cause = ERROR
        else:
            return None
        return FallbackContext(self.feature.name, cause, error, (request,))

    def answer(
        self,
        context: FallbackContext,
        ask: Ask | None,
        choice: Choice = Choice.SERVE,
        check: Check = whole,
    ) -> Answer | None:
        """Answer without the call, as `FallbackChain.answer` does.

        Args:
            context: cause and error; passed to a dynamic fallback.
            cache_request: of the call.
            action: from the degradation level; ``SERVE`` after a rejection or a failure.
            check: accepts values that the caller can send.
        """
        kept = partial(self._kept, ask, context.cause)
        return self._rungs.answer(context, kept, choice, check)

    async def answer_async(
        self,
        context: FallbackContext,
        ask: Ask | None,
        choice: Choice = Choice.SERVE,
        check: Check = whole,
    ) -> Answer | None:
        """Answer without the call, as `FallbackChain.answer_async` does."""
        kept = partial(self._kept, ask, context.cause)
        return await self._rungs.answer_async(context, kept, choice, check)

    def shed(self) -> Refusal:
        """Return the rejection of a shed call, and count it."""
        self._counted(self.feature.name, Rung.SHED, LOAD)
        after_s = self._degradation.retry_after_s
        return Refusal(self.feature.name, self._circuit.state(), Cause.SHED, after_s)

    def keep(self, ask: Ask | None, status: int, headers: Pairs, asked_s: float) -> Keep | None:
        """Return the destination of a body, or None if the response must not be stored.

        Args:
            cache_request: the request.
            status: of the response.
            headers: of the response.
            requested_s: monotonic seconds at which the request was sent.
        """
        cache = self._cache
        if ask is None or cache is None:
            return None
        if not keeping(ask, status, headers):
            self._within(lambda: cache.outdated(ask, status, self._circuit.clock()))
            return None

        def put(body: bytes) -> None:
            self._within(lambda: cache.put(ask, status, headers, body, asked_s))

        return Keep(put, cache.body_bytes)

    def _kept(self, ask: Ask | None, cause: str) -> object:
        found = self._find(ask)
        return UNSET if found is None else found.answering(self._circuit.clock(), cause)

    def _find(self, ask: Ask | None) -> Kept | None:
        cache = self._cache
        if ask is None or cache is None:
            return None
        return self._within(lambda: cache.get(ask, self._circuit.clock(), self._max_stale_s))

    def _within(self, deed: Callable[[], T]) -> T | None:
        """Run an action on a cache under the lock; None if this thread already holds it."""
        with self._lock:
            # Re-entered by a finalizer of this thread in the middle of a change: treat as a miss.
            if self._inside:
                return None
            self._inside = True
            try:
                return deed()
            finally:
                self._inside = False
