"""Executes a feature's calls: live, by fallback, or rejected, depending on load and breaker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from autoglm_throttle.events import RateLimitedLogger
from autoglm_throttle.resilience.calls import GuardedAttempt, attempt, attempt_async
from autoglm_throttle.resilience.degradation import DegradationAction
from autoglm_throttle.resilience.fallback import (
    ERROR,
    LOAD,
    REFRESH,
    DegradedCallback,
    FallbackAnswer,
    FallbackChain,
)
from autoglm_throttle.resilience.feature import UNSET, Feature
from autoglm_throttle.resilience.feature_cache import FeatureStaleCache
from autoglm_throttle.resilience.settling_awaitable import SettlingAwaitable
from autoglm_throttle.resilience.single_flight import SingleFlight, copy_exception
from autoglm_throttle.types import (
    BreakerCause,
    DegradationLevel,
    FallbackContext,
    FallbackKind,
    GuardRejected,
    GuardRejection,
    Outcome,
)

if TYPE_CHECKING:
    from autoglm_throttle.resilience.degradation_controller import DegradationController
    from autoglm_throttle.resilience.guard_state import GuardState
    from autoglm_throttle.resilience.http.feature_executor import HttpFeatureExecutor
    from autoglm_throttle.resilience.stale_cache import StaleCache

FALLBACK_TIMEOUT_S: Final = 1.0
"""Default time limit of a fallback in seconds (``degrade_fallback_timeout_s``)."""

MAX_STALE_S: Final = 60.0
"""Default maximum age of a cached result in seconds (``degrade_max_stale_s``)."""

_CACHEABLE_OUTCOMES: Final = frozenset({Outcome.SUCCESS, Outcome.SLOW})

Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CallResult:
    """Result of one live call, for all callers that waited for it."""

    attempt: GuardedAttempt
    copy: object
    """Copy of the returned value, which the first caller may change; `UNSET` if it cannot be copied."""
    trace: TracebackType | None
    """Traceback of the exception; each caller that raises it again starts with this one."""


class FeatureExecutor:
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
        "_circuit",
        "_degradation",
        "_fallback_chain",
        "_on_degraded",
        "cache",
        "feature",
        "http",
        "single_flight",
    )

    def __init__(  # noqa: PLR0913 - its parts
        self,
        circuit: GuardState,
        feature: Feature,
        degradation: DegradationController,
        *,
        cache: StaleCache[object] | None,
        on_degraded: DegradedCallback,
        fallback_timeout_s: float | None = FALLBACK_TIMEOUT_S,
        max_stale_s: float = MAX_STALE_S,
    ) -> None:
        log = RateLimitedLogger(feature.name, circuit.clock)
        fallback = feature.fallback
        self.feature: Feature = feature
        self.http: HttpFeatureExecutor | None = None
        """Executor of the same feature for HTTP callers; None: they have no fallback."""
        self._circuit = circuit
        self._degradation = degradation
        self._on_degraded = on_degraded
        self._fallback_chain = FallbackChain(feature, on_degraded, fallback_timeout_s, log)
        self.single_flight: SingleFlight[CallResult] = SingleFlight(_is_shareable)
        """Live calls that other callers may share."""
        self.cache: FeatureStaleCache | None = None
        """Cached results; None: nothing is cached."""
        if fallback is not None and fallback.stale:
            if cache is None:
                raise ValueError(f"Feature {feature.name!r} caches results: it needs a cache")
            self.cache = FeatureStaleCache(fallback, cache, max_stale_s, circuit.clock, log)
        degradation.register(feature)

    def __repr__(self) -> str:
        return f"<FeatureExecutor {self.feature.name!r} {self._degradation!r} {self.cache or 'no cache'}>"

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
        self.check_function(asynchronous=False)
        key = None if self.cache is None else self.cache.key(fn, args, kwargs)
        action = self._action(key)
        if action is not DegradationAction.SERVE:
            context = FallbackContext(self.feature.name, LOAD, None, args, kwargs)
            answer = self._fallback_chain.answer(context, partial(self._cached_value, key), action)
            if answer is not None or action is DegradationAction.SHED:
                return self._answer_or_shed(answer)
        if key is None:
            attempted = attempt(self._circuit, fn, args, kwargs)
        else:
            attempted = self._attempt(key, fn, args, kwargs)
        if attempted.error is None and attempted.outcome in _CACHEABLE_OUTCOMES:
            return attempted.value
        if isinstance(attempted.value, SettlingAwaitable):
            self._reject_awaitable(fn, attempted.value)
        failure = self._fallback_context(attempted, args, kwargs)
        try:
            if failure is not None:
                answer = self._fallback_chain.answer(failure, partial(self._cached_value, key))
                if answer is not None:
                    return answer.value
            return _unwrap(attempted, failure)
        finally:
            del attempted, failure  # breaks the reference cycle: traceback, frame, exception

    async def call_async(self, fn: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:  # noqa: ANN401
        """Execute one call of a coroutine function.

        Returns:
            Its value, or that of a fallback.

        Raises:
            GuardRejected: the call was not made, and no fallback answered.
            Exception: the function's own.
        """
        key = None if self.cache is None else self.cache.key(fn, args, kwargs)
        action = self._action(key)
        if action is not DegradationAction.SERVE:
            context = FallbackContext(self.feature.name, LOAD, None, args, kwargs)
            answer = await self._fallback_chain.answer_async(
                context, partial(self._cached_value, key), action
            )
            if answer is not None or action is DegradationAction.SHED:
                return self._answer_or_shed(answer)
        if key is None:
            attempted = await attempt_async(self._circuit, fn, args, kwargs)
        else:
            attempted = await self._attempt_async(key, fn, args, kwargs)
        if attempted.error is None and attempted.outcome in _CACHEABLE_OUTCOMES:
            return attempted.value
        failure = self._fallback_context(attempted, args, kwargs)
        try:
            if failure is not None:
                answer = await self._fallback_chain.answer_async(failure, partial(self._cached_value, key))
                if answer is not None:
                    return answer.value
            return _unwrap(attempted, failure)
        finally:
            del attempted, failure  # breaks the reference cycle: traceback, frame, exception

    def check_function(self, *, asynchronous: bool) -> None:
        """Check that a function of this kind can use the fallback; decorators call it early.

        Raises:
            TypeError: a plain function cannot await a dynamic fallback that is a coroutine function.
        """
        if self._fallback_chain.asynchronous and not asynchronous:
            raise TypeError(
                f"the dynamic fallback of {self.feature.name!r} is a coroutine function: give a plain one, "
                "or guard coroutine functions only"
            )

    def _reject_awaitable(self, fn: Callable[..., Any], value: SettlingAwaitable) -> None:
        if self.feature.fallback is None:
            return
        value.close()
        raise TypeError(
            f"{getattr(fn, '__qualname__', type(fn).__name__)} has returned an awaitable, and the fallback "
            f"of {self.feature.name!r} answers with values: make it a coroutine function (async def), or "
            "guard it under another name"
        )

    def reject_if_shed(self) -> GuardRejection | None:
        """Return the rejection of a shed call and count it, or None; for callers without a fallback."""
        rejection = self.would_shed()
        if rejection is not None:
            self._on_degraded(self.feature.name, FallbackKind.SHED, LOAD)
        return rejection

    def would_shed(self) -> GuardRejection | None:
        """Return the rejection that `reject_if_shed` would return, without counting it."""
        return self._shed_rejection() if self._degradation.sheds(self.feature) else None

    def _action(self, key: Hashable | None) -> DegradationAction:
        degradation = self._degradation
        if degradation.level() is DegradationLevel.FULL and self.feature.shed_above is None:
            return DegradationAction.SERVE
        cache = self.cache
        usable = cache is not None and key is not None and cache.find(key) is not None
        return degradation.action(self.feature, usable)

    def _cached_value(self, key: Hashable | None) -> object:
        return UNSET if self.cache is None else self.cache.get_copy(key)

    def _shed_rejection(self) -> GuardRejection:
        after_s = self._degradation.retry_after_s
        return GuardRejection(self.feature.name, self._circuit.state(), BreakerCause.SHED, after_s)

    def _answer_or_shed(self, answer: FallbackAnswer | None) -> Any:  # noqa: ANN401
        if answer is not None:
            return answer.value
        self._on_degraded(self.feature.name, FallbackKind.SHED, LOAD)
        raise GuardRejected(self._shed_rejection())

    def _fallback_context(
        self, attempted: GuardedAttempt, args: Args, kwargs: Kwargs
    ) -> FallbackContext | None:
        """Return the context for a fallback if the attempt was rejected or failed, else None."""
        error: Exception | None = attempted.error
        if attempted.rejection is not None:
            error = GuardRejected(attempted.rejection)
        if isinstance(error, GuardRejected):
            cause = error.rejection.cause.value
        elif attempted.outcome is Outcome.FAILURE and (error is not None or self._replaces_values()):
            cause = ERROR
        else:
            return None
        return FallbackContext(self.feature.name, cause, error, args, kwargs)

    def _replaces_values(self) -> bool:
        fallback = self.feature.fallback
        return fallback is not None and bool(fallback.on_value)

    # Live calls with a cached result, shared with concurrent callers of the same key.

    def _attempt(self, key: Hashable, fn: Callable[..., Any], args: Args, kwargs: Kwargs) -> GuardedAttempt:
        if not self._coalesces():
            return self._run_call(key, fn, args, kwargs).attempt
        # Another caller refreshes this key already: use the cached result, do not wait.
        if self.single_flight.in_flight(key):
            cached = self._cached_attempt(key)
            if cached is not None:
                return cached
        call_result, is_own = self.single_flight.run(key, partial(self._run_call, key, fn, args, kwargs))
        return (
            call_result.attempt
            if is_own
            else self._shared_attempt(call_result) or attempt(self._circuit, fn, args, kwargs)
        )

    async def _attempt_async(
        self, key: Hashable, fn: Callable[..., Any], args: Args, kwargs: Kwargs
    ) -> GuardedAttempt:
        if not self._coalesces():
            return (await self._run_call_async(key, fn, args, kwargs)).attempt
        if self.single_flight.in_flight_async(key):
            cached = self._cached_attempt(key)
            if cached is not None:
                return cached
        call: Callable[[], Awaitable[CallResult]] = partial(self._run_call_async, key, fn, args, kwargs)
        call_result, is_own = await self.single_flight.run_async(key, call, self._circuit.timeout_s)
        if is_own:
            return call_result.attempt
        return self._shared_attempt(call_result) or await attempt_async(self._circuit, fn, args, kwargs)

    def _coalesces(self) -> bool:
        fallback = self.feature.fallback
        always = fallback is not None and fallback.coalesce == "always"
        return always or self._degradation.level() >= DegradationLevel.STALE

    def _run_call(self, key: Hashable, fn: Callable[..., Any], args: Args, kwargs: Kwargs) -> CallResult:
        return self._store_result(key, attempt(self._circuit, fn, args, kwargs))

    async def _run_call_async(
        self, key: Hashable, fn: Callable[..., Any], args: Args, kwargs: Kwargs
    ) -> CallResult:
        return self._store_result(key, await attempt_async(self._circuit, fn, args, kwargs))

    def _store_result(self, key: Hashable, attempted: GuardedAttempt) -> CallResult:
        cache = self.cache
        if attempted.error is not None or attempted.rejection is not None or cache is None:
            return CallResult(
                attempted, UNSET, None if attempted.error is None else attempted.error.__traceback__
            )
        if isinstance(attempted.value, SettlingAwaitable):  # not finished: nothing to cache or share
            return CallResult(attempted, UNSET, None)
        copy = cache.copy_value(attempted.value)
        if copy is not UNSET and attempted.outcome in _CACHEABLE_OUTCOMES:
            cache.store(key, copy)
        return CallResult(attempted, copy, None)

    def _cached_attempt(self, key: Hashable) -> GuardedAttempt | None:
        value = self._cached_value(key)
        if value is UNSET:
            return None
        self._on_degraded(self.feature.name, FallbackKind.STALE, REFRESH)
        return GuardedAttempt(value, None, Outcome.SUCCESS, None)

    def _shared_attempt(self, call_result: CallResult) -> GuardedAttempt | None:
        """Return the attempt that another caller's live call stands for; None: its value cannot be shared."""
        attempted = call_result.attempt
        if attempted.rejection is not None:
            return attempted
        if attempted.error is not None:
            return GuardedAttempt(
                None, copy_exception(attempted.error, call_result.trace), attempted.outcome, None
            )
        cache = self.cache
        value = UNSET if cache is None or call_result.copy is UNSET else cache.copy_value(call_result.copy)
        return None if value is UNSET else GuardedAttempt(value, None, attempted.outcome, None)


def _is_shareable(call_result: CallResult) -> bool:
    """Whether other callers may use the result: not after a time-out, since their limits differ."""
    return not isinstance(call_result.attempt.error, TimeoutError)


def _unwrap(attempted: GuardedAttempt, failure: FallbackContext | None) -> Any:  # noqa: ANN401
    """Return the value, or raise the exception, of a call that no fallback replaced."""
    error = attempted.error if failure is None else failure.error
    if error is None:
        return attempted.value
    try:
        raise error
    finally:
        del error, attempted, failure
