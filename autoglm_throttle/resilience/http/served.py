"""A feature's fallback, for faces that know HTTP: what is kept follows the rules of HTTP caches."""

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
"""What stands for a request in place of its method and URL; None: keep nothing of it."""


ALONE_S: Final = 10.0
"""Seconds for which nobody waits for a call like one whose answer could not be shared.

Waiting in vain doubles the time of a call. Once in 10 s, as long as a breaker stays open by default, that is
little, and answers that have become ones to be shared are soon found to be.
"""

ALONE_ENTRIES: Final = 256
"""Requests of which that is remembered; beyond them some wait in vain once more."""


def whole(value: object, rung: Rung) -> None:
    """Take an `HttpAnswer`, which every face for HTTP can give.

    Args:
        value: of a fallback.
        rung: whose it is.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(value, HttpAnswer):
        raise TypeError(f"the {rung} fallback of HTTP must give an HttpAnswer, not {type(value).__name__}")


@dataclass(frozen=True, slots=True)
class Landing:
    """What one live call means to all who waited for it."""

    ask: Ask
    response: object
    """For the one who made the call alone; None: it has raised."""
    kept: Kept | None = None
    """For the others; None: there is nothing that may be shared."""
    error: Exception | None = None
    outcome: Outcome = Outcome.NEUTRAL
    hurried: bool = False
    """Whether the caller's own time was over: the others have their own."""
    trace: TracebackType | None = None
    """Of what was raised: each who raises it again begins with this one."""

    def fitting(self, ask: Ask) -> Kept | None:
        """The answer, if it is one to this request, too."""
        kept = self.kept
        if kept is None:
            return None
        names = varies_by(kept.answer.headers) or ()
        return kept if ask.varied(names) == self.ask.varied(names) else None


class HttpServed:
    """What may be answered in place of one feature's HTTP calls.

    Args:
        circuit: the guard of the same name.
        feature: what may be answered in its place.
        degradation: the level of the process; it watches the feature already.
        cache: of this feature alone; None: it keeps nothing.
        counted: is told of each degraded answer.
        fallback_timeout_s: seconds that an asynchronous dynamic fallback may take; None: any.
        max_stale_s: seconds beyond its lifetime for which a kept answer is of use, where neither the answer
            nor the feature says.
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
        """Whether a failing status is replaced, too."""
        self.flights: Flights[Landing] = Flights(lambda landing: not landing.hurried)
        """The live calls that others may wait for."""
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
        self.forget()

    def __repr__(self) -> str:
        return f"<HttpServed {self.feature.name!r} {self._degradation!r} {self._cache or 'keeps nothing'}>"

    def forget(self) -> None:
        """In a fork: a new lock, as the parent's may have been taken, and no calls; what is kept stays."""
        self.flights.forget()
        # Re-entrant: the garbage collector may run under it, and a finalizer may make a guarded call.
        self._lock = threading.RLock()
        self._inside = False

    def asked(self, method: str, url: str, headers: Pairs, request: object, key: Key | None) -> Ask | None:
        """A request, as far as what is kept depends on it; None: it has no part in what is kept.

        Args:
            method: in upper case.
            url: without a fragment.
            headers: of the request.
            request: what the key is made of.
            key: the face's own; None: the fallback's, if it has one.
        """
        if self._cache is None:
            return None
        make = self._key if key is None else key
        if make is None:
            return Ask(method, url, headers)
        try:
            own = make(request)
            hash(own)
        except Exception as error:  # noqa: BLE001 - whatever the user's function raises
            self._log.say("key", f"a request has no key, its answer is not kept ({error!r})")
            return None
        return None if own is None else Ask(method, url, headers, own)

    def choice(self, ask: Ask | None) -> Choice:
        """What is done with a call under the load of now."""
        if self._degradation.level() is Level.FULL and self.feature.shed_above is None:
            return Choice.SERVE
        return self._degradation.choice(self.feature, self._find(ask) is not None)

    def shares(self, ask: Ask | None) -> bool:
        """Whether calls like this one wait for one that is under way."""
        if ask is None or not (self._always or self._degradation.level() >= Level.STALE):
            return False
        return ask.keepable and not self._is_alone(ask)

    def alone(self, ask: Ask) -> None:
        """The answer to a call could not be shared: for a while nobody waits for one like it."""
        self._within(lambda: self._alone.put(ask.own, None, self._circuit.clock()))

    def _is_alone(self, ask: Ask) -> bool:
        return self._within(lambda: self._alone.get(ask.own, self._circuit.clock(), ALONE_S)) is not None

    def refreshed(self, ask: Ask) -> HttpAnswer | None:
        """What is kept, counted; for a call like one that is under way."""
        found = self._find(ask)
        if found is None:
            return None
        self._counted(self.feature.name, Rung.STALE, REFRESH)
        return found.answering(self._circuit.clock(), REFRESH)

    def loaded(self, request: object) -> FallbackContext:
        """Why there is no answer: the load."""
        return FallbackContext(self.feature.name, LOAD, None, (request,))

    def fault(self, request: object, error: Exception | None, outcome: Outcome) -> FallbackContext | None:
        """Why there is no answer, if a fallback may replace what there is: a refusal, or a failure.

        Args:
            request: told to a dynamic fallback.
            error: what was raised; None: a failing status was received.
            outcome: of the call, as it was recorded.
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
        """Answer without the call, as `Rungs.answer` does.

        Args:
            context: why, and what is told to a dynamic fallback.
            ask: what is asked for.
            choice: what the ladder says; ``SERVE`` after a refusal or a failure.
            check: of what the face can answer with.
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
        """Answer without the call, as `Rungs.answer_async` does."""
        kept = partial(self._kept, ask, context.cause)
        return await self._rungs.answer_async(context, kept, choice, check)

    def shed(self) -> Refusal:
        """The refusal of a call that is shed, counted."""
        self._counted(self.feature.name, Rung.SHED, LOAD)
        after_s = self._degradation.retry_after_s
        return Refusal(self.feature.name, self._circuit.state(), Cause.SHED, after_s)

    def keep(self, ask: Ask | None, status: int, headers: Pairs, asked_s: float) -> Keep | None:
        """Where the body of an answer goes, if the answer may be kept.

        Args:
            ask: the request.
            status: of the answer.
            headers: of the answer.
            asked_s: monotonic, when the request was sent.
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
        """Do something to a cache under the lock; nothing, if this thread is at it already."""
        with self._lock:
            if self._inside:
                return None
            self._inside = True
            try:
                return deed()
            finally:
                self._inside = False
