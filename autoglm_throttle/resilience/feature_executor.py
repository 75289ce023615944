"""Executes a feature's calls: live, by fallback, or rejected, depending on load and breaker."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Hashable
from contextlib import suppress
from operator import le
from typing import TYPE_CHECKING, Any, Final

from autoglm_throttle.events import RateLimitedLogger
from autoglm_throttle.resilience.calls import (
    Args,
    CallResult,
    GuardedAttempt,
    Kwargs,
    SettlingAwaitable,
    attempt,
    attempt_async,
)
from autoglm_throttle.resilience.degradation import DegradationController
from autoglm_throttle.resilience.drive import Call, Steps, drive_async, drive_sync
from autoglm_throttle.resilience.fallback import (
    ERROR,
    LOAD,
    REFRESH,
    UNSET,
    CacheLookup,
    DegradationAction,
    DegradedCallback,
    Fallback,
    FallbackAnswer,
    Feature,
    ValueCheck,
    available_kinds,
)
from autoglm_throttle.resilience.http.cache import ResponseCache
from autoglm_throttle.resilience.single_flight import SingleFlight, copy_exception
from autoglm_throttle.resilience.stale import CACHEABLE_OUTCOMES, FunctionCall, ResultCache
from autoglm_throttle.resilience.state import GuardState
from autoglm_throttle.settings.groups.breaker import DegradationSettings
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
    from autoglm_throttle.resilience.http.call import HttpCall

_NOTE_CHARS: Final = 500  # Maximum characters of an exception note about a failed fallback: one line of a log


class FeatureExecutor:
    """Executes the calls of one feature, for functions and HTTP alike.

    Each answer of a fallback is counted. If a fallback raises or its value is not accepted, this is logged
    and the next one is tried; the original error gets a note about it.
    """

    def __init__(
        self,
        circuit: GuardState,
        feature: Feature,
        degradation: DegradationController,
        on_degraded: DegradedCallback,
        settings: DegradationSettings,
        max_stale_s: float | None = None,
    ) -> None:
        log = RateLimitedLogger(feature.name, circuit.clock)
        fallback = feature.fallback
        self.circuit: GuardState = circuit
        self.feature: Feature = feature
        self._degradation = degradation
        self._on_degraded = on_degraded
        self._log = log
        self._timeout_s = settings.fallback_timeout_s
        # Whether the dynamic fallback is a coroutine function, usable by asynchronous callers only.
        self._is_async = fallback is not None and fallback.asynchronous
        self._always_shares = fallback is not None and fallback.coalesce == "always"
        # Live calls that other callers may share.
        self.single_flight: SingleFlight[CallResult] = SingleFlight(
            lambda result, limits: all(map(le, limits, result.limits))
        )
        self.results: ResultCache | None = None  # Cached results of functions; None: nothing is cached
        self.responses: ResponseCache | None = None  # Cached responses of HTTP calls; None: nothing is cached
        if fallback is not None and fallback.stale:
            limits_s = (fallback.max_stale_s, max_stale_s, settings.max_stale_s)
            age_s = next(limit_s for limit_s in limits_s if limit_s is not None)
            self.results = ResultCache(fallback, settings, age_s, circuit.clock, log)
            self.responses = ResponseCache(fallback.key, settings, age_s, circuit.clock, log)
        degradation.register(feature)

    @property
    def replaces_status(self) -> bool:
        """Whether a failing status of HTTP is replaced too."""
        fallback = self.feature.fallback
        return fallback is not None and fallback.on_value is not False

    def call(self, fn: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:  # noqa: ANN401
        """Execute one call of a plain function: return its value or that of a fallback, or raise.

        TypeError is raised for a fallback that only a coroutine function could await.
        """
        if self._is_async:
            self.check_function(asynchronous=False)
        results = self.results
        key = None if results is None else results.key(fn, args, kwargs)
        first = attempt(self.circuit, fn, args, kwargs) if self._is_direct(key) else None
        if first is not None and first.error is None and first.outcome in CACHEABLE_OUTCOMES:
            if results is not None and key is not None:
                results.store(key, first)
            return first.value
        call = FunctionCall(self.circuit, results, self.feature.fallback, key, (fn, args, kwargs))
        try:
            return self._value_of(fn, drive_sync(self.serve(call, first)))
        finally:
            del first  # breaks the reference cycle: exception, traceback, frame

    async def call_async(self, fn: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:  # noqa: ANN401
        """Execute one call of a coroutine function, as `call` does of a plain one."""
        results = self.results
        key = None if results is None else results.key(fn, args, kwargs)
        first = await attempt_async(self.circuit, fn, args, kwargs) if self._is_direct(key) else None
        if first is not None and first.error is None and first.outcome in CACHEABLE_OUTCOMES:
            if results is not None and key is not None:
                results.store(key, first)
            return first.value
        call = FunctionCall(self.circuit, results, self.feature.fallback, key, (fn, args, kwargs))
        try:
            return (await drive_async(self.serve(call, first))).unwrap()
        finally:
            del first  # breaks the reference cycle: exception, traceback, frame

    def serve(
        self, call: FunctionCall | HttpCall, attempted: GuardedAttempt | None = None
    ) -> Steps[GuardedAttempt | FallbackAnswer]:
        """Execute one call: live, shared with others, by a fallback, or rejected."""
        if attempted is None:
            unmade = yield from self._serve_by_load(call)
            if unmade is not None:
                return unmade
            served = yield from self._attempt(call)
            if isinstance(served, FallbackAnswer):
                return served
            attempted = served
        return (yield from self._replace_failure(call, attempted))

    def answer(
        self,
        context: FallbackContext,
        lookup: CacheLookup,
        action: DegradationAction = DegradationAction.SERVE,
        check: ValueCheck | None = None,
    ) -> Steps[FallbackAnswer | None]:
        """Answer by the first available fallback, without the call; None: none has an answer."""
        fallback = self.feature.fallback
        if fallback is None:
            return None
        for kind in available_kinds(fallback, action):
            try:
                if kind is FallbackKind.STALE:
                    value: object = lookup(context.cause)
                else:
                    value = yield from self._made_value(kind, fallback, context)
                if value is not UNSET and check is not None:
                    check(value, kind)
            except Exception as error:  # noqa: BLE001 - a user's fallback may raise anything
                self._record_failure(kind, error, context.error)
            else:
                if value is not UNSET:
                    self._on_degraded(self.feature.name, kind, context.cause)
                    return FallbackAnswer(value, kind, context.cause)
        return None

    def action(self, has_cached: Callable[[], bool]) -> DegradationAction:
        """Return the action for a call under the current load; ``has_cached``: whether a result is cached."""
        if self._degradation.level() is DegradationLevel.FULL and self.feature.shed_above is None:
            return DegradationAction.SERVE
        return self._degradation.action(self.feature, has_cached())

    def check_function(self, *, asynchronous: bool) -> None:
        """Raise TypeError if a plain function would have to await the dynamic fallback."""
        if self._is_async and not asynchronous:
            raise TypeError(
                f"the dynamic fallback of {self.feature.name!r} is a coroutine function: give a plain one, "
                "or guard coroutine functions only"
            )

    def shed_rejection(self, *, counted: bool) -> GuardRejection | None:
        """Return the rejection of a call that is shed now, or None; for callers without a fallback."""
        if not self._degradation.sheds(self.feature):
            return None
        return self.reject_shed() if counted else self._shed_rejection()

    def reject_shed(self) -> GuardRejection:
        """Return the rejection of a shed call, and count it."""
        self._on_degraded(self.feature.name, FallbackKind.SHED, LOAD)
        return self._shed_rejection()

    def _shed_rejection(self) -> GuardRejection:
        after_s = self._degradation.retry_after_s
        return GuardRejection(self.feature.name, self.circuit.state(), BreakerCause.SHED, after_s)

    def _made_value(self, kind: FallbackKind, fallback: Fallback, context: FallbackContext) -> Steps[object]:
        if kind is FallbackKind.DYNAMIC:
            return (yield Call(self._compute, self._compute_async, (fallback.dynamic, context)))
        return fallback.static if fallback.shared_value else copy.deepcopy(fallback.static)

    def _compute(self, dynamic: Callable[[FallbackContext], object], context: FallbackContext) -> object:
        value = dynamic(context)
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            raise TypeError("the dynamic fallback of a synchronous call must not be asynchronous")
        return value

    async def _compute_async(
        self, dynamic: Callable[[FallbackContext], object], context: FallbackContext
    ) -> object:
        value = dynamic(context)
        if not inspect.isawaitable(value):
            return value
        import anyio

        with anyio.fail_after(self._timeout_s):
            return await value

    def _record_failure(self, kind: FallbackKind, error: Exception, original: BaseException | None) -> None:
        self._log.warn(kind.value, f"the {kind} fallback has raised {type(error).__name__}", error=error)
        if original is None or error is original:
            return
        prefix = f"the {kind} fallback of {self.feature.name!r} has raised "
        with suppress(Exception):  # a user's exception class may raise
            if not any(note.startswith(prefix) for note in getattr(original, "__notes__", ())):
                # An exception may be raised again and again: one note per kind of fallback.
                original.add_note(f"{prefix}{error!r}"[:_NOTE_CHARS])

    def _is_direct(self, key: Hashable | None) -> bool:
        """Whether a function is called without a look at load, cache and other callers."""
        if self.feature.shed_above is not None or (key is not None and self._always_shares):
            return False
        return self._degradation.level() is DegradationLevel.FULL

    def _value_of(self, fn: Callable[..., Any], served: GuardedAttempt | FallbackAnswer) -> Any:  # noqa: ANN401
        value = served.value
        if isinstance(value, SettlingAwaitable) and self.feature.fallback is not None:
            value.close()
            raise TypeError(
                f"{getattr(fn, '__qualname__', type(fn).__name__)} has returned an awaitable, and the "
                f"fallback of {self.feature.name!r} answers with values: make it a coroutine function "
                "(async def), or guard it under another name"
            )
        try:
            return served.unwrap()
        finally:
            del served  # breaks the reference cycle: exception, traceback, frame

    def _serve_by_load(self, call: FunctionCall | HttpCall) -> Steps[GuardedAttempt | FallbackAnswer | None]:
        """Answer or shed a call that the current load does not permit; None: it may be made."""
        action = self.action(call.has_cached)
        if action is DegradationAction.SERVE:
            return None
        context = FallbackContext(self.feature.name, LOAD, None, call.args, call.kwargs)
        answer = yield from self.answer(context, call.cached, action, call.check)
        if answer is None and action is DegradationAction.SHED:
            return GuardedAttempt(error=call.rejected(self.reject_shed()))
        return answer

    def _attempt(self, call: FunctionCall | HttpCall) -> Steps[GuardedAttempt | FallbackAnswer]:
        """Make the call, or share that of another caller."""
        key = call.flight_key
        if key is None or not (self._always_shares or self._degradation.level() >= DegradationLevel.STALE):
            return (yield from call.run())
        # Another caller refreshes this key already: use the cached result, do not wait.
        if (yield from self.single_flight.in_flight(key)):
            value = call.cached(REFRESH)
            if value is not UNSET:
                self._on_degraded(self.feature.name, FallbackKind.STALE, REFRESH)
                return FallbackAnswer(value, FallbackKind.STALE, REFRESH)
        found = yield from self.single_flight.run(key, call.run_shared, call.limits)
        if found is None:
            return GuardedAttempt(error=call.timed_out(), outcome=Outcome.FAILURE)
        result, is_own = found
        if is_own:
            return result.attempt
        return _shared_attempt(call, result) or (yield from call.run())

    def _replace_failure(
        self, call: FunctionCall | HttpCall, attempted: GuardedAttempt
    ) -> Steps[GuardedAttempt | FallbackAnswer]:
        """Answer by a fallback if the call was rejected or failed; without one its result stands."""
        error: Exception | None = attempted.error
        if attempted.rejection is not None:
            error = call.rejected(attempted.rejection)
            attempted = GuardedAttempt(error=error)
        rejected = GuardRejected.find(error)
        if rejected is not None:
            cause = rejected.rejection.cause.value
        elif attempted.outcome is Outcome.FAILURE and (error is not None or call.replaces_values):
            cause = ERROR
        else:
            return attempted
        context = FallbackContext(self.feature.name, cause, error, call.args, call.kwargs)
        answer = yield from self._answer_failure(call, attempted, context)
        if answer is None and attempted.value is UNSET:
            return (yield from call.run())
        return answer or attempted

    def _answer_failure(
        self, call: FunctionCall | HttpCall, attempted: GuardedAttempt, context: FallbackContext
    ) -> Steps[FallbackAnswer | None]:
        """Answer after a failure, and release the value that the answer replaces."""
        closing = call.closing(attempted)
        try:
            answer = yield from self.answer(context, call.cached, check=call.check)
        except BaseException:
            if closing is not None:
                yield closing
            raise
        if answer is not None and closing is not None:
            yield closing
        return answer


def _shared_attempt(call: FunctionCall | HttpCall, result: CallResult) -> GuardedAttempt | None:
    """Return the attempt that another caller's live call stands for; None: its value cannot be shared."""
    shared = result.attempt
    if shared.rejection is not None:
        return shared
    if shared.error is not None:
        return GuardedAttempt(error=copy_exception(shared.error, result.trace), outcome=shared.outcome)
    value = UNSET if result.copy is UNSET else call.copy_of(result.copy)
    if value is UNSET and not (shared.outcome is Outcome.FAILURE and call.replaces_values):
        return None
    # A failure without a value: the fallbacks are asked first.
    return GuardedAttempt(value, outcome=shared.outcome)
