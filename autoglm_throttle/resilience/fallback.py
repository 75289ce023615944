"""What is answered where the call was refused, has failed, or is not made: one rung after the other."""

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
"""The cause of an answer that the ladder asked for."""

ERROR: Final = "error"
"""The cause of an answer in place of a failure."""

REFRESH: Final = "refresh"
"""The cause of an answer from memory while a newer one is on its way to somebody else."""

Counted = Callable[[str, Rung, str], None]
"""Is told of each degraded answer: guard, rung, cause."""

Kept = Callable[[], object]
"""Gives what is kept of this call, or `UNSET`."""

_NOTE_CHARS: Final = 500
"""Characters of a note about a fallback that has raised: enough for one line of a log."""

Check = Callable[[object, Rung], None]
"""Raises for a value that the face cannot give to its caller; is never asked about `UNSET`."""

_AT_LOAD: Final = (Rung.DYNAMIC, Rung.STATIC, Rung.STALE)

_ORDER: Final[Mapping[Choice, tuple[Rung, ...]]] = {
    Choice.SERVE: (Rung.STALE, Rung.DYNAMIC, Rung.STATIC),
    Choice.STALE: (Rung.STALE,),
    Choice.STATIC: _AT_LOAD,
    Choice.SHED: _AT_LOAD,
}
"""The rungs in their order. After a refusal or a failure: what was true lately, what can be computed, what is
better than nothing. Under load: what the user said may be computed then, and what costs least."""


def nothing() -> object:
    """Gives `UNSET`: nothing is kept."""
    return UNSET


def anything(value: object, rung: Rung) -> None:
    """Take any value."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A degraded answer."""

    value: Any
    rung: Rung


class Rungs:
    """The fallback of one feature, for every face.

    Each answer is counted. A rung that raises, or whose value does not fit, is logged and the next one is
    tried; the error that it stands in for has a note of it. Only what is no `Exception`, a cancellation above
    all, passes through at once.

    Args:
        feature: whose fallback it is; without one there are no answers.
        counted: is told of each answer.
        timeout_s: seconds for which an asynchronous dynamic fallback may run; None: for ever.
        log: is told of rungs that raise.
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
        """Whether the dynamic fallback can only be used by asynchronous faces."""

    def answer(
        self,
        context: FallbackContext,
        kept: Kept = nothing,
        choice: Choice = Choice.SERVE,
        check: Check = anything,
    ) -> Answer | None:
        """Answer without the call.

        Args:
            context: why, and what is told to the dynamic fallback.
            kept: gives what is kept of this call.
            choice: what the ladder says; ``SERVE`` after a refusal or a failure.
            check: of each value before it counts as an answer; a rung whose value it raises for has raised.

        Returns:
            The answer of the first rung that has one; None if there is none: what the context says, and what
            would be without a fallback, stands.
        """
        for rung in self._orders[choice]:
            try:
                value = self._value(rung, context, kept)
                if rung is Rung.DYNAMIC:
                    _refuse_awaitable(value)
                if value is not UNSET:
                    check(value, rung)
            except Exception as error:  # noqa: BLE001 - whatever the user's fallback raises
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
        """Answer without the call, as `answer` does; waits for an asynchronous dynamic fallback."""
        for rung in self._orders[choice]:
            try:
                value = self._value(rung, context, kept)
                if rung is Rung.DYNAMIC and inspect.isawaitable(value):
                    value = await self._limited(value)
                if value is not UNSET:
                    check(value, rung)
            except Exception as error:  # noqa: BLE001 - whatever the user's fallback raises
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
        with suppress(Exception):  # whatever the user's classes raise
            if not any(note.startswith(what) for note in getattr(original, "__notes__", ())):
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
