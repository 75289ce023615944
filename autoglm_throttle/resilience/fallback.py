"""Fallback chain of a feature: answers if the call was rejected, has failed or is not made."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from autoglm_throttle.resilience.degradation import DegradationAction
from autoglm_throttle.resilience.feature import UNSET, Fallback, Feature
from autoglm_throttle.types import FallbackContext, FallbackKind

if TYPE_CHECKING:
    from autoglm_throttle.events import RateLimitedLogger

LOAD: Final = "load"
"""Cause of a fallback used because of the degradation level."""

ERROR: Final = "error"
"""Cause of a fallback used after a failure."""

REFRESH: Final = "refresh"
"""Cause of a cached answer while another caller's live call fetches a newer one."""

DegradedCallback = Callable[[str, FallbackKind, str], None]
"""Callback for each degraded answer: guard, kind of fallback, cause."""

CacheLookup = Callable[[], object]
"""Returns the cached value of this call, or `UNSET`."""

_NOTE_CHARS: Final = 500
"""Maximum characters of an exception note about a failed fallback: one line of a log."""

ValueCheck = Callable[[object, FallbackKind], None]
"""Raises for a value that the caller cannot use; never called with `UNSET`."""

_UNDER_LOAD: Final = (FallbackKind.DYNAMIC, FallbackKind.STATIC, FallbackKind.STALE)

_ORDER: Final[Mapping[DegradationAction, tuple[FallbackKind, ...]]] = {
    DegradationAction.SERVE: (FallbackKind.STALE, FallbackKind.DYNAMIC, FallbackKind.STATIC),
    DegradationAction.STALE: (FallbackKind.STALE,),
    DegradationAction.STATIC: _UNDER_LOAD,
    DegradationAction.SHED: _UNDER_LOAD,
}
"""Order of the fallbacks per action.

After a rejection or failure: a recent value, a computed one, a static one. Under load: the dynamic fallback
if declared cheap, then the cheapest.
"""


def no_cached_value() -> object:
    """Return `UNSET`: no value is cached."""
    return UNSET


def accept_any(value: object, kind: FallbackKind) -> None:
    """Accept any value."""


@dataclass(frozen=True, slots=True)
class FallbackAnswer:
    """A degraded answer."""

    value: Any
    kind: FallbackKind


class FallbackChain:
    """Fallback chain of one feature, for functions and HTTP alike.

    Each answer is counted. If a fallback raises or its value is not accepted, this is logged and the next one
    is tried; the original error gets a note about it. A `BaseException` that is no `Exception`, such as a
    cancellation, propagates at once.

    Args:
        feature: declares the fallbacks; without them there are no answers.
        on_degraded: called with each answer.
        timeout_s: time limit of an asynchronous dynamic fallback in seconds; None: no limit.
        log: logs fallbacks that raise.
    """

    __slots__ = ("_fallback", "_log", "_name", "_on_degraded", "_orders", "_timeout_s", "asynchronous")

    def __init__(
        self,
        feature: Feature,
        on_degraded: DegradedCallback,
        timeout_s: float | None,
        log: RateLimitedLogger,
    ) -> None:
        fallback = feature.fallback
        self._name = feature.name
        self._fallback = fallback
        self._on_degraded = on_degraded
        self._timeout_s = timeout_s
        self._log = log
        self._orders = {action: _available_kinds(order, fallback, action) for action, order in _ORDER.items()}
        self.asynchronous: bool = fallback is not None and fallback.asynchronous
        """Whether the dynamic fallback is a coroutine function, usable by asynchronous callers only."""

    def answer(
        self,
        context: FallbackContext,
        lookup: CacheLookup = no_cached_value,
        action: DegradationAction = DegradationAction.SERVE,
        check: ValueCheck = accept_any,
    ) -> FallbackAnswer | None:
        """Answer without the call.

        Args:
            context: cause and error; passed to the dynamic fallback.
            lookup: returns the cached value of this call.
            action: from the degradation level; ``SERVE`` after a rejection or a failure.
            check: accepts each value before it counts as an answer; raising rejects the value.

        Returns:
            The first available answer. None: no fallback has one, and the original result stands.
        """
        for kind in self._orders[action]:
            try:
                value = self._value(kind, context, lookup)
                if kind is FallbackKind.DYNAMIC:
                    _reject_awaitable(value)
                if value is not UNSET:
                    check(value, kind)
            except Exception as error:  # noqa: BLE001 - a user's fallback may raise anything
                self._record_failure(kind, error, context.error)
            else:
                if value is not UNSET:
                    return self._record_answer(kind, value, context)
        return None

    async def answer_async(
        self,
        context: FallbackContext,
        lookup: CacheLookup = no_cached_value,
        action: DegradationAction = DegradationAction.SERVE,
        check: ValueCheck = accept_any,
    ) -> FallbackAnswer | None:
        """Answer without the call, as `answer` does; awaits an asynchronous dynamic fallback."""
        for kind in self._orders[action]:
            try:
                value = self._value(kind, context, lookup)
                if kind is FallbackKind.DYNAMIC and inspect.isawaitable(value):
                    value = await self._await_limited(value)
                if value is not UNSET:
                    check(value, kind)
            except Exception as error:  # noqa: BLE001 - a user's fallback may raise anything
                self._record_failure(kind, error, context.error)
            else:
                if value is not UNSET:
                    return self._record_answer(kind, value, context)
        return None

    def _value(self, kind: FallbackKind, context: FallbackContext, lookup: CacheLookup) -> object:
        fallback = self._fallback
        if kind is FallbackKind.STALE or fallback is None:
            return lookup()
        if kind is FallbackKind.STATIC:
            return fallback.static if fallback.shared_value else copy.deepcopy(fallback.static)
        return UNSET if fallback.dynamic is None else fallback.dynamic(context)

    async def _await_limited(self, value: Awaitable[object]) -> object:
        import anyio

        with anyio.fail_after(self._timeout_s):
            return await value

    def _record_answer(self, kind: FallbackKind, value: object, context: FallbackContext) -> FallbackAnswer:
        self._on_degraded(self._name, kind, context.cause)
        return FallbackAnswer(value, kind)

    def _record_failure(self, kind: FallbackKind, error: Exception, original: BaseException | None) -> None:
        self._log.warn(kind.value, f"the {kind} fallback has raised {type(error).__name__}", error=error)
        if original is None or error is original:
            return
        prefix = f"the {kind} fallback of {self._name!r} has raised "
        with suppress(Exception):  # a user's exception class may raise
            if not any(note.startswith(prefix) for note in getattr(original, "__notes__", ())):
                # An exception may be raised again and again: one note per kind of fallback.
                original.add_note(f"{prefix}{error!r}"[:_NOTE_CHARS])


def _available_kinds(
    order: tuple[FallbackKind, ...], fallback: Fallback | None, action: DegradationAction
) -> tuple[FallbackKind, ...]:
    if fallback is None:
        return ()
    available = {
        FallbackKind.STALE: fallback.stale,
        FallbackKind.DYNAMIC: fallback.dynamic is not None
        and (action is DegradationAction.SERVE or fallback.under_load),
        FallbackKind.STATIC: fallback.static is not UNSET,
    }
    return tuple(kind for kind in order if available[kind])


def _reject_awaitable(value: object) -> None:
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise TypeError("the dynamic fallback of a synchronous call must not be asynchronous")
