"""Calls of a feature under load, after rejections and after failures, in each way of calling."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref

import anyio
import pytest

from autoglm_throttle.resilience.classify import OutcomeClassifier
from autoglm_throttle.resilience.fallback import UNSET, Fallback
from autoglm_throttle.resilience.stale import ResultCache
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import (
    BreakerCause,
    BreakerState,
    Criticality,
    DegradationLevel,
    FallbackContext,
    FallbackKind,
    GuardRejected,
    GuardRejection,
    Outcome,
)
from tests.loops import run
from tests.resilience.degrading import Bench, Dependency, Failed, face

__all__ = ["face"]

FULL, SHED, STALE, STATIC = (
    DegradationLevel.FULL,
    DegradationLevel.SHED,
    DegradationLevel.STALE,
    DegradationLevel.STATIC,
)
NON_CORE = Criticality.NON_CORE


def untouched(bench: Bench) -> tuple[int, int, int]:
    """State that a skipped call does not change."""
    view = bench.circuit.view()
    return view.calls, view.generation, view.streak


def test_a_call_that_succeeds_is_a_call(face: str) -> None:
    bench, dependency = Bench(Fallback(static="static")), Dependency(face)
    assert dependency(bench.served) == [1]
    assert bench.counted() == {}
    assert bench.circuit.view().calls == 1


# Under load.


@pytest.mark.parametrize("level", [SHED, STALE, STATIC])
def test_a_feature_that_is_not_core_is_shed(face: str, level: DegradationLevel) -> None:
    bench, dependency = Bench(None, NON_CORE).at(level), Dependency(face)
    before = untouched(bench)
    with pytest.raises(GuardRejected) as caught:
        dependency(bench.served)
    assert caught.value.rejection == GuardRejection("related", BreakerState.CLOSED, BreakerCause.SHED, 3.0)
    assert dependency.calls == 0
    assert untouched(bench) == before
    assert bench.counted() == {("shed", "load"): 1}


def test_shed_call_is_answered_if_possible(face: str) -> None:
    bench, dependency = Bench(Fallback(static="static"), NON_CORE).at(SHED), Dependency(face)
    assert dependency(bench.served) == "static"
    assert (dependency.calls, bench.counted()) == (0, {("static", "load"): 1})


def test_shed_call_is_answered_from_the_cache(face: str) -> None:
    bench, dependency = Bench(Fallback(stale=True), NON_CORE), Dependency(face)
    dependency(bench.served)
    bench.at(SHED)
    before = untouched(bench)
    assert dependency(bench.served) == [1]
    assert untouched(bench) == before
    bench.now += 61.0
    bench.at(SHED)
    with pytest.raises(GuardRejected):
        dependency(bench.served)
    assert bench.counted() == {("stale", "load"): 1, ("shed", "load"): 1}


def test_dynamic_fallback_under_load_must_be_cheap(face: str) -> None:
    for under_load in (False, True):
        notified: list[FallbackContext] = []
        fallback = Fallback(dynamic=notified.append, under_load=under_load)
        bench, dependency = Bench(fallback, NON_CORE).at(SHED), Dependency(face)
        if under_load:
            assert dependency(bench.served, 1, two=2) is None
            assert notified == [FallbackContext("related", "load", None, (1,), {"two": 2})]
        else:
            with pytest.raises(GuardRejected):
                dependency(bench.served)
            assert notified == []


def test_shed_call_with_raising_fallback_is_rejected(face: str) -> None:
    def broken(_: FallbackContext) -> object:
        raise Failed("fallback")

    bench, dependency = Bench(Fallback(dynamic=broken, under_load=True), NON_CORE).at(SHED), Dependency(face)
    with pytest.raises(GuardRejected):
        dependency(bench.served)
    assert bench.counted() == {("shed", "load"): 1}


def test_core_feature_uses_its_cache_before_the_call(face: str) -> None:
    bench, dependency = Bench(Fallback(static="static", stale=True)), Dependency(face)
    assert dependency(bench.served, "kept") == [1]
    bench.at(SHED)
    assert dependency(bench.served, "kept") == [2]
    bench.at(STALE)
    before = untouched(bench)
    assert dependency(bench.served, "kept") == [2]
    assert untouched(bench) == before
    assert dependency(bench.served, "other") == [3]
    bench.at(STATIC)
    assert dependency(bench.served, "kept") == "static"
    assert dependency(bench.served, "new") == "static"
    assert dependency.calls == 3
    assert bench.counted() == {("stale", "load"): 1, ("static", "load"): 2}


def test_a_core_feature_that_cannot_be_answered_is_called(face: str) -> None:
    def broken(_: FallbackContext) -> object:
        raise Failed("fallback")

    for fallback in (None, Fallback(stale=True), Fallback(dynamic=broken, under_load=True)):
        bench, dependency = Bench(fallback).at(STATIC), Dependency(face)
        assert dependency(bench.served) == [1]
        assert bench.counted() == {}


def test_an_entry_that_is_gone_when_it_is_wanted_is_no_answer(
    face: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, dependency = Bench(Fallback(stale=True)), Dependency(face)
    dependency(bench.served)
    bench.at(STALE)
    monkeypatch.setattr(ResultCache, "get_copy", lambda *_: UNSET)
    assert dependency(bench.served) == [2]


def test_a_threshold_of_its_own_sheds_earlier_or_later(face: str) -> None:
    early, late = Bench(None, NON_CORE, shed_above=0.5), Bench(None, NON_CORE, shed_above=0.98)
    dependency = Dependency(face)
    for bench, load in ((early, 0.6), (late, 0.97)):
        bench.load = load
        for _ in range(3):
            bench.now += 1.0
            bench.degradation.level()
    assert early.degradation.level() is FULL
    with pytest.raises(GuardRejected):
        dependency(early.served)
    assert late.degradation.level() is STATIC
    assert dependency(late.served) == [1]


def test_a_feature_comes_back_when_the_load_is_gone(face: str) -> None:
    bench, dependency = Bench(None, NON_CORE).at(STATIC).at(FULL), Dependency(face)
    assert dependency(bench.served) == [1]


# After a refusal.


def test_rejected_call_is_answered(face: str) -> None:
    notified: list[FallbackContext] = []
    bench, dependency = Bench(Fallback(dynamic=notified.append)).open(), Dependency(face)
    before = untouched(bench)
    assert dependency(bench.served, 1, two=2) is None
    assert (dependency.calls, untouched(bench)) == (0, before)
    (context,) = notified
    assert (context.name, context.cause, context.args, context.kwargs) == (
        "related",
        "retry_after",
        (1,),
        {"two": 2},
    )
    assert isinstance(context.error, GuardRejected)
    assert context.error.rejection.cause is BreakerCause.RETRY_AFTER
    assert bench.counted() == {("dynamic", "retry_after"): 1}


def test_rejected_call_without_fallback_is_rejected(face: str) -> None:
    bench, dependency = Bench(Fallback(stale=True)).open(), Dependency(face)
    with pytest.raises(GuardRejected) as caught:
        dependency(bench.served)
    assert caught.value.rejection.cause is BreakerCause.RETRY_AFTER
    assert bench.counted() == {}


def test_rejected_call_with_raising_fallback_carries_a_note(face: str) -> None:
    def broken(_: FallbackContext) -> object:
        raise Failed("fallback")

    bench, dependency = Bench(Fallback(dynamic=broken)).open(), Dependency(face)
    with pytest.raises(GuardRejected) as caught:
        dependency(bench.served)
    assert caught.value.__notes__ == ["the dynamic fallback of 'related' has raised Failed('fallback')"]


def test_rejection_by_an_inner_guard_is_answered_and_neutral(face: str) -> None:
    bench, dependency = Bench(Fallback(static="static")), Dependency(face)
    dependency.error = GuardRejected(GuardRejection("inner", BreakerState.OPEN, BreakerCause.FAILURES, 5.0))
    assert dependency(bench.served) == "static"
    assert bench.counted() == {("static", "failures"): 1}
    assert bench.circuit.view().streak == 0


# After a failure.


def test_a_failed_call_is_answered_and_counts_as_a_failure(face: str) -> None:
    bench, dependency = Bench(Fallback(static="static")), Dependency(face)
    dependency.error = Failed("x")
    assert [dependency(bench.served) for _ in range(3)] == ["static"] * 3
    assert dependency.calls == 2
    assert bench.circuit.state() is BreakerState.OPEN
    assert bench.counted() == {("static", "error"): 2, ("static", "failures"): 1}


def test_failure_is_recorded_once_before_the_fallback(face: str) -> None:
    seen: list[tuple[int, int]] = []
    bench = Bench(Fallback(dynamic=lambda _: seen.append((bench.circuit.view().streak, 0))))
    dependency = Dependency(face)
    dependency.error = Failed("x")
    dependency(bench.served)
    assert seen == [(1, 0)]
    assert bench.circuit.view().streak == 1


def test_failure_without_fallback_keeps_its_traceback(face: str) -> None:
    for fallback in (None, Fallback(stale=True)):
        bench, dependency = Bench(fallback), Dependency(face)
        dependency.error = error = Failed("x")
        with pytest.raises(Failed) as caught:
            dependency(bench.served)
        assert caught.value is error
        assert error.__cause__ is None
        names = [entry.name for entry in caught.traceback]
        assert names[-1] == "plain"


def test_failure_with_raising_fallback_is_raised_with_a_note(face: str) -> None:
    def broken(_: FallbackContext) -> object:
        raise KeyError("fallback")

    bench, dependency = Bench(Fallback(dynamic=broken)), Dependency(face)
    dependency.error = error = Failed("x")
    with pytest.raises(Failed) as caught:
        dependency(bench.served)
    assert caught.value is error
    assert error.__notes__ == ["the dynamic fallback of 'related' has raised KeyError('fallback')"]
    assert bench.circuit.view().streak == 1


@pytest.mark.parametrize(
    ("classifier", "streak"),
    [(OutcomeClassifier(ignore=(Failed,)), 1), (OutcomeClassifier(expected=(Failed,)), 0)],
)
def test_an_exception_that_is_no_failure_is_not_replaced(
    face: str, classifier: OutcomeClassifier, streak: int
) -> None:
    bench, dependency = Bench(Fallback(static="static", stale=True), classifier=classifier), Dependency(face)
    dependency(bench.served)
    dependency.error = KeyError("x")
    assert dependency(bench.served) == [1]
    dependency.error = Failed("x")
    with pytest.raises(Failed):
        dependency(bench.served)
    assert bench.circuit.view().streak == streak


def of_values(seen: object) -> Outcome | None:
    """Classify the values "bad" and "odd"."""
    return {"bad": Outcome.FAILURE, "odd": Outcome.NEUTRAL}.get(seen) if isinstance(seen, str) else None


@pytest.mark.parametrize(
    ("on_value", "value", "answer"),
    [(None, "bad", "bad"), (False, "bad", "bad"), (True, "bad", "static"), (True, "odd", "odd")],
)
def test_returned_failure_is_replaced_only_if_configured(
    face: str, on_value: bool | None, value: str, answer: str
) -> None:
    fallback = Fallback(static="static", on_value=on_value)
    bench, dependency = Bench(fallback, classifier=OutcomeClassifier(classify=of_values)), Dependency(face)
    dependency.value = lambda: value
    assert dependency(bench.served) == answer
    assert bench.circuit.view().streak == (1 if value == "bad" else 0)
    assert bench.counted() == ({("static", "error"): 1} if answer == "static" else {})


def test_returned_failure_with_raising_fallback_is_returned(face: str) -> None:
    def broken(notified: FallbackContext) -> object:
        assert notified.error is None
        raise KeyError("fallback")

    bench = Bench(Fallback(dynamic=broken, on_value=True), classifier=OutcomeClassifier(classify=of_values))
    dependency = Dependency(face)
    dependency.value = lambda: "bad"
    assert dependency(bench.served) == "bad"


def test_base_exception_is_not_replaced(face: str) -> None:
    class Stop(BaseException):
        pass

    bench, dependency = Bench(Fallback(static="static")), Dependency(face)
    dependency.error = Stop()
    with pytest.raises(Stop):
        dependency(bench.served)
    assert (bench.circuit.view().streak, bench.counted()) == (0, {})


async def test_a_cancelled_call_is_not_replaced() -> None:
    bench = Bench(Fallback(static="static", stale=True))
    begun = asyncio.Event()

    async def slow() -> None:
        begun.set()
        await asyncio.sleep(3600)

    task = asyncio.ensure_future(bench.served.call_async(slow, (), {}))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (bench.circuit.view().streak, bench.counted()) == (0, {})


def test_call_over_its_time_limit_fails_and_is_replaced(backend: str) -> None:
    bench = Bench(Fallback(static="static"), rules=BreakerSettings(timeout_s=0.001))

    async def slow() -> None:
        await anyio.sleep_forever()

    async def task() -> None:
        assert await bench.served.call_async(slow, (), {}) == "static"

    run(backend, task)
    assert (bench.circuit.view().streak, bench.counted()) == (1, {("static", "error"): 1})


def test_a_plain_function_cannot_have_an_asynchronous_fallback(backend: str) -> None:
    async def computed(_: FallbackContext) -> str:
        return "computed"

    bench = Bench(Fallback(dynamic=computed))
    plain, later = Dependency("sync"), Dependency(backend)
    with pytest.raises(TypeError, match="the dynamic fallback of 'related' is a coroutine function"):
        plain(bench.served)
    assert plain.calls == 0
    with pytest.raises(TypeError):
        bench.served.check_function(asynchronous=False)
    bench.served.check_function(asynchronous=True)
    later.error = Failed("x")
    assert later(bench.served) == "computed"


@pytest.mark.parametrize("fallback", [None, Fallback(stale=True), Fallback(static=1)])
def test_a_failing_call_keeps_no_frames_alive(fallback: Fallback | None, face: str) -> None:
    """Whatever a traceback's frames know must not know the exception again, or both live on."""
    bench, gone = Bench(fallback), []

    def failing() -> None:
        error = Failed("x")
        gone.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error

    async def failing_later() -> None:
        failing()

    gc.disable()
    try:
        if face == "sync":
            with contextlib.suppress(Failed):
                bench.served.call(failing, (), {})
        else:
            # by hand: loops keep what has passed through them
            with contextlib.suppress(Failed, StopIteration):
                bench.served.call_async(failing_later, (), {}).send(None)
        assert gone[0]() is None
    finally:
        gc.enable()


# For faces without fallback.


def test_blocks_are_rejected_while_the_feature_is_shed() -> None:
    bench = Bench(Fallback(static="static"), NON_CORE)
    assert bench.served.shed_rejection(counted=True) is None
    bench.at(SHED)
    rejection = GuardRejection("related", BreakerState.CLOSED, BreakerCause.SHED, 3.0)
    assert bench.served.shed_rejection(counted=False) == rejection
    assert bench.counted() == {}
    assert bench.served.shed_rejection(counted=True) == rejection
    assert bench.counted() == {("shed", "load"): 1}
    assert Bench(None).at(STATIC).served.shed_rejection(counted=True) is None


def test_each_answer_is_counted_under_the_guard_s_name(face: str) -> None:
    bench, dependency = Bench(Fallback(static=1)).open(), Dependency(face)
    dependency(bench.served)
    assert dict(bench.counts) == {("related", FallbackKind.STATIC, "retry_after"): 1}
