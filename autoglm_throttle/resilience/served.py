"""Executes a feature's calls: live, by fallback, or rejected, depending on load and breaker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from autoglm_throttle.model import Cause, FallbackContext, GuardRefused, Level, Outcome, Refusal, Rung
from autoglm_throttle.resilience.calls import Attempt, attempt, attempt_async
from autoglm_throttle.resilience.coalesce import Flights, own
from autoglm_throttle.resilience.degradation import Choice
from autoglm_throttle.resilience.fallback import ERROR, LOAD, REFRESH, Answer, Counted, Rungs
from autoglm_throttle.resilience.feature import UNSET, Feature
from autoglm_throttle.resilience.seldom import Seldom
from autoglm_throttle.resilience.settling import Settling
from autoglm_throttle.resilience.shelf import Shelf

if TYPE_CHECKING:
    from autoglm_throttle.resilience.circuit import Circuit
    from autoglm_throttle.resilience.http.served import HttpServed
    from autoglm_throttle.resilience.ladder_watch import Degradation
    from autoglm_throttle.resilience.stale_cache import StaleCache

FALLBACK_TIMEOUT_S: Final = 1.0
"""Default time limit of a fallback in seconds (``DEGRADE_FALLBACK_TIMEOUT_S``)."""

MAX_STALE_S: Final = 60.0
"""Default maximum age of a cached result in seconds (``DEGRADE_MAX_STALE_S``)."""

_KEPT: Final = frozenset({Outcome.SUCCESS, Outcome.SLOW})

Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Landing:
    """Result of one live call, for all callers that waited for it."""

    attempt: Attempt
    copy: object
    """Copy of the returned value, which the first caller may change; `UNSET` if it cannot be copied."""
    trace: TracebackType | None
    """Traceback of the exception; each caller that raises it again starts with this one."""


class Served:
    """Executes the calls of one feature, for functions.

    Args:
        circuit: the guard of the same name.
        feature: declares the fallbacks.
        degradation: the level of the process.
        cache: results of this feature only; None: nothing is cached.
        on_degraded: called with each degraded answer.
        fallback_timeout_s: time limit of an asynchronous dynamic fallback in seconds.
        max_stale_s: maximum age of a cached result in seconds, unless the feature sets it.

    Raises:
        ValueError: the feature's ``shed_above`` is not above the margin of the degradation levels, or it
            caches results and has no cache.
    """

    __slots__ = (
        *("_above", "_always", "_circuit", "_counted", "_degradation", "_flights", "_on_value", "_rungs"),
        *("_shelf", "feature", "http"),
    )

    def __init__(  # noqa: PLR0913 - its parts
        self,
        circuit: Circuit,
        feature: Feature,
        degradation: Degradation,
        *,
        cache: StaleCache[object] | None,
        counted: Counted,
        fallback_timeout_s: float | None = FALLBACK_TIMEOUT_S,
        max_stale_s: float = MAX_STALE_S,
    ) -> None:
        log = Seldom(feature.name, circuit.clock)
        fallback = feature.fallback
        self.feature: Feature = feature
        self.http: HttpServed | None = None
        """Executor of the same feature for HTTP callers; None: they have no fallback."""
        self._circuit = circuit
        self._degradation = degradation
        self._counted = counted
        self._above = feature.shed_above
        self._on_value = fallback is not None and bool(fallback.on_value)
        self._always = fallback is not None and fallback.coalesce == "always"
        self._rungs = Rungs(feature, counted, fallback_timeout_s, log)
        self._flights: Flights[_Landing] = Flights(_for_all)
        self._shelf: Shelf | None = None
        if fallback is not None and fallback.stale:
            if cache is None:
                raise ValueError(f"Feature {feature.name!r} keeps answers: it needs a cache")
            self._shelf = Shelf(fallback, cache, max_stale_s, circuit.clock, log)
        degradation.watch(feature)

    def __repr__(self) -> str:
        return f"<Served {self.feature.name!r} {self._degradation!r} {self._shelf or 'keeps nothing'}>"

    def call(self, fn: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:  # noqa: ANN401
        """Execute one call of a plain function.

        Returns:
            Its value, or that of a fallback.

        Raises:
            TypeError: the dynamic fallback is a coroutine function; or there is a fallback and the function
                returned an awaitable, which only a coroutine function's fallback could replace.
            GuardRejected: the call was not made, and no fallback answered.
            Exception: the function's own.
        """
        self.fit(asynchronous=False)
        key = None if self._shelf is None else self._shelf.key(fn, args, kwargs)
        choice = self._choice(key)
        if choice is not Choice.SERVE:
            context = FallbackContext(self.feature.name, LOAD, None, args, kwargs)
            answer = self._rungs.answer(context, partial(self._kept, key), choice)
            if answer is not None or choice is Choice.SHED:
                return self._shed_or(answer)
        if key is None:
            made = attempt(self._circuit, fn, args, kwargs)
        else:
            made = self._attempt(key, fn, args, kwargs)
        if made.error is None and made.outcome in _KEPT:
            return made.value
        if isinstance(made.value, Settling):
            self._fit_awaitable(fn, made.value)
        fault = self._fault(made, args, kwargs)
        try:
            if fault is not None:
                answer = self._rungs.answer(fault, partial(self._kept, key))
                if answer is not None:
                    return answer.value
            return _ended(made, fault)
        finally:
            del made, fault  # breaks the reference cycle: traceback, frame, exception

    async def call_async(self, fn: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:  # noqa: ANN401
        """Execute one call of a coroutine function.

        Returns:
            Its value, or that of a fallback.

        Raises:
            GuardRejected: the call was not made, and no fallback answered.
            Exception: the function's own.
        """
        key = None if self._shelf is None else self._shelf.key(fn, args, kwargs)
        choice = self._choice(key)
        if choice is not Choice.SERVE:
            context = FallbackContext(self.feature.name, LOAD, None, args, kwargs)
            answer = await self._rungs.answer_async(context, partial(self._kept, key), choice)
            if answer is not None or choice is Choice.SHED:
                return self._shed_or(answer)
        if key is None:
            made = await attempt_async(self._circuit, fn, args, kwargs)
        else:
            made = await self._attempt_async(key, fn, args, kwargs)
        if made.error is None and made.outcome in _KEPT:
            return made.value
        fault = self._fault(made, args, kwargs)
        try:
            if fault is not None:
                answer = await self._rungs.answer_async(fault, partial(self._kept, key))
                if answer is not None:
                    return answer.value
            return _ended(made, fault)
        finally:
            del made, fault  # breaks the reference cycle: traceback, frame, exception

    def fit(self, *, asynchronous: bool) -> None:
        """Check that a function of this kind can use the fallback; decorators call it early.

        Raises:
            TypeError: a plain function cannot await a dynamic fallback that is a coroutine function.
        """
        if self._rungs.asynchronous and not asynchronous:
            raise TypeError(
                f"the dynamic fallback of {self.feature.name!r} is a coroutine function: give a plain one, "
                "or guard coroutine functions only"
            )

    def _fit_awaitable(self, fn: Callable[..., Any], value: Settling) -> None:
        if self.feature.fallback is None:
            return
        value.close()
        raise TypeError(
            f"{getattr(fn, '__qualname__', type(fn).__name__)} has returned an awaitable, and the fallback "
            f"of {self.feature.name!r} answers with values: make it a coroutine function (async def), or "
            "guard it under another name"
        )

    def shed(self) -> Refusal | None:
        """Return the rejection of a shed call and count it, or None; for callers without a fallback."""
        refusal = self.would_shed()
        if refusal is not None:
            self._counted(self.feature.name, Rung.SHED, LOAD)
        return refusal

    def would_shed(self) -> Refusal | None:
        """Return the rejection that `reject_if_shed` would return, without counting it."""
        return self._refusal() if self._degradation.sheds(self.feature) else None

    def reset_after_fork(self) -> None:
        """Reset in a forked child: shared calls of the parent's threads are dropped, cached results stay."""
        self._flights.reset_after_fork()
        if self._shelf is not None:
            self._shelf.reset_after_fork()
        if self.http is not None:
            self.http.reset_after_fork()

    def _choice(self, key: Hashable | None) -> Choice:
        degradation = self._degradation
        if degradation.level() is Level.FULL and self._above is None:
            return Choice.SERVE
        shelf = self._shelf
        usable = shelf is not None and key is not None and shelf.find(key) is not None
        return degradation.choice(self.feature, usable)

    def _kept(self, key: Hashable | None) -> object:
        return UNSET if self._shelf is None else self._shelf.take(key)

    def _refusal(self) -> Refusal:
        after_s = self._degradation.retry_after_s
        return Refusal(self.feature.name, self._circuit.state(), Cause.SHED, after_s)

    def _shed_or(self, answer: Answer | None) -> Any:  # noqa: ANN401
        if answer is not None:
            return answer.value
        self._counted(self.feature.name, Rung.SHED, LOAD)
        raise GuardRefused(self._refusal())

    def _fault(self, made: Attempt, args: Args, kwargs: Kwargs) -> FallbackContext | None:
        """Return the context for a fallback if the attempt was rejected or failed, else None."""
        error: Exception | None = made.error
        if made.refusal is not None:
            error = GuardRefused(made.refusal)
        if isinstance(error, GuardRefused):
            cause = error.refusal.cause.value
        elif made.outcome is Outcome.FAILURE and (error is not None or self._on_value):
            cause = ERROR
        else:
            return None
        return FallbackContext(self.feature.name, cause, error, args, kwargs)

    # Live calls with a cached result, shared with concurrent callers of the same key.

    def _attempt(self, key: Hashable, fn: Callable[..., Any], args: Args, kwargs: Kwargs) -> Attempt:
        if not self._together():
            return self._live(key, fn, args, kwargs).attempt
        # Another caller refreshes this key already: use the cached result, do not wait.
        if self._flights.under_way(key):
            found = self._refreshed(key)
            if found is not None:
                return found
        landing, ours = self._flights.share(key, partial(self._live, key, fn, args, kwargs))
        return landing.attempt if ours else self._joined(landing) or attempt(self._circuit, fn, args, kwargs)

    async def _attempt_async(
        self, key: Hashable, fn: Callable[..., Any], args: Args, kwargs: Kwargs
    ) -> Attempt:
        if not self._together():
            return (await self._live_async(key, fn, args, kwargs)).attempt
        if self._flights.under_way_async(key):
            found = self._refreshed(key)
            if found is not None:
                return found
        call: Callable[[], Awaitable[_Landing]] = partial(self._live_async, key, fn, args, kwargs)
        landing, ours = await self._flights.share_async(key, call, self._circuit.rules.timeout_s)
        if ours:
            return landing.attempt
        return self._joined(landing) or await attempt_async(self._circuit, fn, args, kwargs)

    def _together(self) -> bool:
        return self._always or self._degradation.level() >= Level.STALE

    def _live(self, key: Hashable, fn: Callable[..., Any], args: Args, kwargs: Kwargs) -> _Landing:
        return self._landed(key, attempt(self._circuit, fn, args, kwargs))

    async def _live_async(
        self, key: Hashable, fn: Callable[..., Any], args: Args, kwargs: Kwargs
    ) -> _Landing:
        return self._landed(key, await attempt_async(self._circuit, fn, args, kwargs))

    def _landed(self, key: Hashable, made: Attempt) -> _Landing:
        shelf = self._shelf
        if made.error is not None or made.refusal is not None or shelf is None:
            return _Landing(made, UNSET, None if made.error is None else made.error.__traceback__)
        if isinstance(made.value, Settling):  # not finished: nothing to cache or share
            return _Landing(made, UNSET, None)
        copy = shelf.copied(made.value)
        if copy is not UNSET and made.outcome in _KEPT:
            shelf.keep(key, copy)
        return _Landing(made, copy, None)

    def _refreshed(self, key: Hashable) -> Attempt | None:
        value = self._kept(key)
        if value is UNSET:
            return None
        self._counted(self.feature.name, Rung.STALE, REFRESH)
        return Attempt(value, None, Outcome.SUCCESS, None)

    def _joined(self, landing: _Landing) -> Attempt | None:
        """Return the attempt that another caller's live call stands for; None: its value cannot be shared."""
        made = landing.attempt
        if made.refusal is not None:
            return made
        if made.error is not None:
            return Attempt(None, own(made.error, landing.trace), made.outcome, None)
        shelf = self._shelf
        value = UNSET if shelf is None or landing.copy is UNSET else shelf.copied(landing.copy)
        return None if value is UNSET else Attempt(value, None, made.outcome, None)


def _for_all(landing: _Landing) -> bool:
    """Whether other callers may use the result: not after a time-out, since their limits differ."""
    return not isinstance(landing.attempt.error, TimeoutError)


def _ended(made: Attempt, fault: FallbackContext | None) -> Any:  # noqa: ANN401
    """Return the value, or raise the exception, of a call that no fallback replaced."""
    error = made.error if fault is None else fault.error
    if error is None:
        return made.value
    try:
        raise error
    finally:
        del error, made, fault
