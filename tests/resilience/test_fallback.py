"""The chain of a fallback: order, copies, and failures."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from autoglm_throttle.resilience.drive import drive_async, drive_sync
from autoglm_throttle.resilience.fallback import (
    UNSET,
    DegradationAction,
    Fallback,
    FallbackAnswer,
    ValueCheck,
)
from autoglm_throttle.types import FallbackContext, FallbackKind
from tests.loops import run
from tests.resilience.degrading import context, fallback_kinds

FACES = ("sync", "asyncio", "trio")


class Broken(Exception):
    """Exception of a fallback."""


class Climb:
    """Runs the chain of a fallback in one way of calling, and records the counts."""

    def __init__(self, face: str) -> None:
        self.face = face
        self.counts: list[tuple[str, FallbackKind, str]] = []

    def __call__(
        self,
        fallback: Fallback | None,
        *,
        error: BaseException | None = None,
        kept: object = UNSET,
        choice: DegradationAction = DegradationAction.SERVE,
        cause: str = "error",
        timeout_s: float | None = None,
        check: ValueCheck | None = None,
    ) -> FallbackAnswer | None:
        ladder = fallback_kinds(fallback, lambda *answer: self.counts.append(answer), timeout_s)
        notified = context(error, cause)
        if self.face == "sync":
            return drive_sync(ladder.answer(notified, lambda _: kept, choice, check))
        answers: list[FallbackAnswer | None] = []

        async def climb() -> None:
            answers.append(await drive_async(ladder.answer(notified, lambda _: kept, choice, check)))

        run(self.face, climb)
        return answers[0]


@pytest.fixture(params=FACES)
def climb(request: pytest.FixtureRequest) -> Climb:
    """The rungs, in each face."""
    return Climb(str(request.param))


def raising(error: Exception) -> Callable[[FallbackContext], object]:
    """A fallback that raises."""

    def dynamic(_: FallbackContext) -> object:
        raise error

    return dynamic


ALL = Fallback(static="static", dynamic=lambda _: "dynamic", stale=True, under_load=True)
COSTLY = Fallback(static="static", dynamic=lambda _: "dynamic", stale=True)
NO_STATIC = Fallback(dynamic=lambda _: "dynamic", stale=True)


@pytest.mark.parametrize(
    ("fallback", "choice", "kept", "value"),
    [
        (ALL, DegradationAction.SERVE, "stale", "stale"),
        (ALL, DegradationAction.SERVE, UNSET, "dynamic"),
        (Fallback(static="static", stale=True), DegradationAction.SERVE, UNSET, "static"),
        (COSTLY, DegradationAction.SERVE, UNSET, "dynamic"),
        (ALL, DegradationAction.STALE, "stale", "stale"),
        (ALL, DegradationAction.STALE, UNSET, None),
        (ALL, DegradationAction.STATIC, "stale", "dynamic"),
        (ALL, DegradationAction.SHED, "stale", "dynamic"),
        (COSTLY, DegradationAction.STATIC, "stale", "static"),
        (COSTLY, DegradationAction.SHED, "stale", "static"),
        (NO_STATIC, DegradationAction.SHED, "stale", "stale"),
        (NO_STATIC, DegradationAction.SHED, UNSET, None),
        (None, DegradationAction.SHED, "stale", None),
        (None, DegradationAction.SERVE, "stale", None),
        (Fallback(static="static"), DegradationAction.SERVE, "stale", "static"),
    ],
)
def test_first_fallback_with_a_value_wins(
    climb: Climb, fallback: Fallback | None, choice: DegradationAction, kept: object, value: str | None
) -> None:
    answer = climb(fallback, choice=choice, kept=kept, cause="load")
    if value is None:
        assert answer is None
        assert climb.counts == []
    else:
        assert answer == FallbackAnswer(value, FallbackKind(value), "load")
        assert climb.counts == [("related", FallbackKind(value), "load")]


def test_results_are_cached_only_if_configured() -> None:
    ladder = fallback_kinds(Fallback(static="static", stale=True), lambda *_: None)
    assert drive_sync(ladder.answer(context(), lambda _: UNSET)) == FallbackAnswer(
        "static", FallbackKind.STATIC, "error"
    )


def test_none_is_an_answer(climb: Climb) -> None:
    assert climb(Fallback(static=None)) == FallbackAnswer(None, FallbackKind.STATIC, "error")
    assert climb(Fallback(static=1, dynamic=lambda _: None)) == FallbackAnswer(
        None, FallbackKind.DYNAMIC, "error"
    )
    assert climb(Fallback(static=1, stale=True), kept=None) == FallbackAnswer(
        None, FallbackKind.STALE, "error"
    )


def test_a_static_value_is_copied_for_each_unless_it_is_shared(climb: Climb) -> None:
    value = {"hits": [1]}
    first, second = climb(Fallback(static=value)), climb(Fallback(static=value))
    assert first is not None
    assert second is not None
    first.value["hits"].append(2)
    assert (value, second.value) == ({"hits": [1]}, {"hits": [1]})
    shared = climb(Fallback(static=value, shared_value=True))
    assert shared is not None
    assert shared.value is value


def test_dynamic_fallback_receives_the_cause(climb: Climb) -> None:
    notified: list[FallbackContext] = []
    error = OSError("away")
    climb(Fallback(dynamic=notified.append), error=error, cause="failures")
    assert notified == [FallbackContext("related", "failures", error, (1,), {"two": 2})]


def test_raising_fallback_is_logged_and_the_next_tried(
    climb: Climb, caplog: pytest.LogCaptureFixture
) -> None:
    answer = climb(Fallback(static=5, dynamic=raising(Broken("x"))), error=OSError("away"))
    assert answer == FallbackAnswer(5, FallbackKind.STATIC, "error")
    assert caplog.messages == ["related: the dynamic fallback has raised Broken"]
    assert climb.counts == [("related", FallbackKind.STATIC, "error")]


NOTE = "the dynamic fallback of 'related' has raised "


def test_fallback_error_is_a_note_of_the_raised_error(climb: Climb, caplog: pytest.LogCaptureFixture) -> None:
    original = OSError("away")
    assert climb(Fallback(dynamic=raising(Broken("x"))), error=original) is None
    assert original.__notes__ == [NOTE + "Broken('x')"]
    assert original.__cause__ is None
    assert climb.counts == []
    assert caplog.messages == ["related: the dynamic fallback has raised Broken"]


def test_an_error_that_is_raised_again_and_again_has_one_note(climb: Climb) -> None:
    original = OSError("away")
    for _ in range(3):
        climb(Fallback(dynamic=raising(Broken("x" * 1000))), error=original)
    assert [len(note) for note in original.__notes__] == [500]


def test_error_without_notes_is_raised_unchanged(climb: Climb) -> None:
    class Silent(Exception):
        def add_note(self, _: str) -> None:
            raise RuntimeError("no notes")

    class Unspeakable(Exception):
        def __repr__(self) -> str:
            raise RuntimeError("no words")

    original = OSError("away")
    assert climb(Fallback(dynamic=raising(Broken("x"))), error=Silent()) is None
    assert climb(Fallback(dynamic=raising(Unspeakable())), error=original) is None
    assert not hasattr(original, "__notes__")


def test_static_value_that_became_uncopyable_is_skipped(climb: Climb) -> None:
    value: list[object] = []
    fallback = Fallback(static=value)
    value.append(threading.Lock())
    original = OSError("away")
    assert climb(fallback, error=original) is None
    assert original.__notes__[0].startswith("the static fallback of 'related' has raised TypeError")


def numbers_only(value: object, fallback_kind: FallbackKind) -> None:
    """Accept numbers only."""
    if not isinstance(value, int):
        raise TypeError(f"{fallback_kind}: no number")


def test_a_value_that_does_not_fit_is_no_answer_and_not_counted(
    climb: Climb, caplog: pytest.LogCaptureFixture
) -> None:
    fallback = Fallback(static=5, dynamic=lambda _: "dynamic", stale=True)
    original = OSError("away")
    assert climb(fallback, error=original, kept="kept", check=numbers_only) == FallbackAnswer(
        5, FallbackKind.STATIC, "error"
    )
    assert climb.counts == [("related", FallbackKind.STATIC, "error")]
    assert [message.split()[2] for message in caplog.messages] == ["stale", "dynamic"]
    climb.counts.clear()
    assert climb(Fallback(static="5"), error=original, check=numbers_only) is None
    assert climb.counts == []
    assert (
        original.__notes__[-1] == "the static fallback of 'related' has raised TypeError('static: no number')"
    )


def test_missing_fallback_is_not_validated(climb: Climb, caplog: pytest.LogCaptureFixture) -> None:
    assert climb(Fallback(static=5, stale=True), check=numbers_only) == FallbackAnswer(
        5, FallbackKind.STATIC, "error"
    )
    assert caplog.messages == []


def test_fallback_raising_the_original_error_keeps_it(climb: Climb) -> None:
    original = OSError("away")
    assert climb(Fallback(dynamic=raising(original)), error=original) is None
    assert original.__cause__ is None
    assert not hasattr(original, "__notes__")


def test_without_an_original_error_nothing_is_raised(climb: Climb, caplog: pytest.LogCaptureFixture) -> None:
    fallback = Fallback(dynamic=raising(Broken("x")), under_load=True)
    assert climb(fallback, choice=DegradationAction.SHED) is None
    assert len(caplog.messages) == 1


def test_base_exception_passes_at_once(climb: Climb) -> None:
    class Stop(BaseException):
        pass

    def dynamic(_: FallbackContext) -> object:
        raise Stop

    # trio and anyio hand it on as it is, since no task group is between
    with pytest.raises(Stop):
        climb(Fallback(static=1, dynamic=dynamic))
    assert climb.counts == []


def test_errors_of_fallbacks_keep_no_frames_alive(caplog: pytest.LogCaptureFixture) -> None:
    gone = []

    def failing(_: FallbackContext) -> object:
        error = Broken("x")
        gone.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error

    caplog.set_level(logging.CRITICAL, "autoglm_throttle")  # or pytest keeps the error
    gc.collect()
    gc.disable()
    try:
        Climb("sync")(Fallback(dynamic=failing), error=OSError("away"))
        assert gone[0]() is None
    finally:
        gc.enable()


# Asynchronous dynamic fallbacks.


async def computed(notified: FallbackContext) -> str:
    """An answer that takes a moment."""
    await anyio.lowlevel.checkpoint()
    return f"computed for {notified.name}"


def in_secret(notified: FallbackContext) -> object:
    """A plain function that gives an awaitable: only its answer shows it."""
    return computed(notified)


@pytest.mark.parametrize("dynamic", [computed, in_secret])
def test_an_asynchronous_fallback_is_waited_for(backend: str, dynamic: Any) -> None:
    climb = Climb(backend)
    assert climb(Fallback(dynamic=dynamic)) == FallbackAnswer(
        "computed for related", FallbackKind.DYNAMIC, "error"
    )


def test_an_asynchronous_fallback_that_raises_gives_way(backend: str) -> None:
    async def broken(_: FallbackContext) -> object:
        await anyio.lowlevel.checkpoint()
        raise Broken("x")

    assert Climb(backend)(Fallback(static=1, dynamic=broken)) == FallbackAnswer(
        1, FallbackKind.STATIC, "error"
    )


def test_an_asynchronous_fallback_has_a_time_limit(backend: str) -> None:
    left = []

    async def slow(_: FallbackContext) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            left.append(True)

    assert Climb(backend)(Fallback(static=1, dynamic=slow), timeout_s=0.001) == FallbackAnswer(
        1, FallbackKind.STATIC, "error"
    )
    original = OSError("away")
    assert Climb(backend)(Fallback(dynamic=slow), timeout_s=0.001, error=original) is None
    assert original.__notes__ == [NOTE + "TimeoutError()"]
    assert left == [True, True]


def test_cancellation_in_a_fallback_skips_the_next_one(backend: str) -> None:
    counts: list[tuple[Any, ...]] = []
    scopes: list[anyio.CancelScope] = []

    async def slow(_: FallbackContext) -> None:
        scopes[0].cancel()
        await anyio.sleep_forever()

    async def cancelled() -> None:
        ladder = fallback_kinds(Fallback(static=1, dynamic=slow), lambda *answer: counts.append(answer), 60.0)
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            await drive_async(ladder.answer(context(OSError("away")), lambda _: UNSET))
            scopes.clear()
        assert scope.cancelled_caught

    run(backend, cancelled)
    assert (len(scopes), counts) == (1, [])


async def test_a_task_that_is_cancelled_in_a_fallback_ends_cancelled() -> None:
    begun = asyncio.Event()

    async def slow(_: FallbackContext) -> None:
        begun.set()
        await asyncio.sleep(3600)

    ladder = fallback_kinds(Fallback(static=1, dynamic=slow), lambda *_: None, 60.0)
    task = asyncio.ensure_future(drive_async(ladder.answer(context(OSError("away")), lambda _: UNSET)))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# A plain call cannot wait.


def test_a_plain_call_does_not_take_an_awaitable_for_an_answer() -> None:
    original = OSError("away")
    assert Climb("sync")(Fallback(dynamic=in_secret), error=original) is None
    assert "must not be asynchronous" in original.__notes__[0]
    assert Climb("sync")(Fallback(static=1, dynamic=in_secret)) == FallbackAnswer(
        1, FallbackKind.STATIC, "error"
    )


def test_an_awaitable_that_is_no_coroutine_is_none_either() -> None:
    class Later:
        def __await__(self) -> Any:
            yield

    original = OSError("away")
    assert Climb("sync")(Fallback(dynamic=lambda _: Later()), error=original) is None
    assert "must not be asynchronous" in original.__notes__[0]


def test_a_static_value_may_be_anything_even_an_awaitable() -> None:
    coroutine = computed(context())
    try:
        answer = Climb("sync")(Fallback(static=coroutine, shared_value=True))
        assert answer is not None
        assert answer.value is coroutine
    finally:
        coroutine.close()
