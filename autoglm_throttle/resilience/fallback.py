"""Fallback chain of a feature: answers if the call was rejected, has failed or is not made."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from autoglm_throttle.model import FallbackContext, Rung
from autoglm_throttle.resilience.degradation import Choice
from autoglm_throttle.resilience.feature import UNSET, Fallback, Feature

if TYPE_CHECKING:
    from autoglm_throttle.resilience.seldom import Seldom

LOAD: Final = "load"
"""Cause of a fallback used because of the degradation level."""

ERROR: Final = "error"
"""Cause of a fallback used after a failure."""

REFRESH: Final = "refresh"
"""Cause of a cached answer while another caller's live call fetches a newer one."""

Counted = Callable[[str, Rung, str], None]
"""Callback for each degraded answer: guard, kind of fallback, cause."""

Kept = Callable[[], object]
"""Returns the cached value of this call, or `UNSET`."""

_NOTE_CHARS: Final = 500
"""Maximum characters of an exception note about a failed fallback: one line of a log."""

Check = Callable[[object, Rung], None]
"""Raises for a value that the caller cannot use; never called with `UNSET`."""

_AT_LOAD: Final = (Rung.DYNAMIC, Rung.STATIC, Rung.STALE)

_ORDER: Final[Mapping[Choice, tuple[Rung, ...]]] = {
    Choice.SERVE: (Rung.STALE, Rung.DYNAMIC, Rung.STATIC),
    Choice.STALE: (Rung.STALE,),
    Choice.STATIC: _AT_LOAD,
    Choice.SHED: _AT_LOAD,
}
"""Order of the fallbacks per action.

After a rejection or failure: a recent value, a computed one, a static one. Under load: the dynamic fallback
if declared cheap, then the cheapest.
"""


def nothing() -> object:
    """Return `UNSET`: no value is cached."""
    return UNSET


def anything(value: object, rung: Rung) -> None:
    """Accept any value."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A degraded answer."""

    value: Any
    rung: Rung


class Rungs:
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

    __slots__ = ("_counted", "_fallback", "_log", "_name", "_orders", "_timeout_s", "asynchronous")

    def __init__(self, feature: Feature, counted: Counted, timeout_s: float | None, log: Seldom) -> None:
        fallback = feature.fallback
        self._name = feature.name
        self._fallback = fallback
        self._counted = counted
        self._timeout_s = timeout_s
        self._log = log
        self._orders = {choice: _there(order, fallback, choice) for choice, order in _ORDER.items()}
        self.asynchronous: bool = fallback is not None and fallback.asynchronous
        """Whether the dynamic fallback is a coroutine function, usable by asynchronous callers only."""

    def answer(
        self,
        context: FallbackContext,
        kept: Kept = nothing,
        choice: Choice = Choice.SERVE,
        check: Check = anything,
    ) -> Answer | None:
        """Answer without the call.

        Args:
            context: cause and error; passed to the dynamic fallback.
            lookup: returns the cached value of this call.
            action: from the degradation level; ``SERVE`` after a rejection or a failure.
            check: accepts each value before it counts as an answer; raising rejects the value.

        Returns:
            The first available answer. None: no fallback has one, and the original result stands.
        """
        for rung in self._orders[choice]:
            try:
                value = self._value(rung, context, kept)
                if rung is Rung.DYNAMIC:
                    _refuse_awaitable(value)
                if value is not UNSET:
                    check(value, rung)
            except Exception as error:  # noqa: BLE001 - a user's fallback may raise anything
                self._failed(rung, error, context.error)
            else:
                if value is not UNSET:
                    return self._answered(rung, value, context)
        return None

    async def answer_async(
        self,
        context: FallbackContext,
        kept: Kept = nothing,
        choice: Choice = Choice.SERVE,
        check: Check = anything,
    ) -> Answer | None:
        """Answer without the call, as `answer` does; awaits an asynchronous dynamic fallback."""
        for rung in self._orders[choice]:
            try:
                value = self._value(rung, context, kept)
                if rung is Rung.DYNAMIC and inspect.isawaitable(value):
                    value = await self._limited(value)
                if value is not UNSET:
                    check(value, rung)
            except Exception as error:  # noqa: BLE001 - a user's fallback may raise anything
                self._failed(rung, error, context.error)
            else:
                if value is not UNSET:
                    return self._answered(rung, value, context)
        return None

    def _value(self, rung: Rung, context: FallbackContext, kept: Kept) -> object:
        fallback = self._fallback
        if rung is Rung.STALE or fallback is None:
            return kept()
        if rung is Rung.STATIC:
            return fallback.static if fallback.shared_value else copy.deepcopy(fallback.static)
        return UNSET if fallback.dynamic is None else fallback.dynamic(context)

    async def _limited(self, value: Awaitable[object]) -> object:
        import anyio

        with anyio.fail_after(self._timeout_s):
            return await value

    def _answered(self, rung: Rung, value: object, context: FallbackContext) -> Answer:
        self._counted(self._name, rung, context.cause)
        return Answer(value, rung)

    def _failed(self, rung: Rung, error: Exception, original: BaseException | None) -> None:
        self._log.say(rung.value, f"the {rung} fallback has raised {type(error).__name__}", error)
        if original is None or error is original:
            return
        what = f"the {rung} fallback of {self._name!r} has raised "
        with suppress(Exception):  # a user's exception class may raise
            if not any(note.startswith(what) for note in getattr(original, "__notes__", ())):
                # An exception may be raised again and again: one note per kind of fallback.
                original.add_note(f"{what}{error!r}"[:_NOTE_CHARS])


def _there(order: tuple[Rung, ...], fallback: Fallback | None, choice: Choice) -> tuple[Rung, ...]:
    if fallback is None:
        return ()
    there = {
        Rung.STALE: fallback.stale,
        Rung.DYNAMIC: fallback.dynamic is not None and (choice is Choice.SERVE or fallback.under_load),
        Rung.STATIC: fallback.static is not UNSET,
    }
    return tuple(rung for rung in order if there[rung])


def _refuse_awaitable(value: object) -> None:
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise TypeError("the dynamic fallback of a synchronous call must not be asynchronous")
