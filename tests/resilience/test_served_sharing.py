"""Single flight of a feature: one permit, one outcome, and an answer for each caller."""

from __future__ import annotations

import functools
import threading
import traceback
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from autoglm_throttle.resilience import stale
from autoglm_throttle.resilience.calls import CallResult, GuardedAttempt
from autoglm_throttle.resilience.classify import OutcomeClassifier
from autoglm_throttle.resilience.drive import Call, Steps, drive_async
from autoglm_throttle.resilience.fallback import Fallback
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import (
    BreakerCause,
    BreakerState,
    DegradationLevel,
    GuardRejected,
    GuardRejection,
    Outcome,
)
from tests.loops import run
from tests.resilience.degrading import Bench, Failed

FOR_S = 60.0


class Slow:
    """A dependency that answers when it is let go."""

    def __init__(self) -> None:
        self.calls = 0
        self.go = anyio.Event()
        self.error: Exception | None = None
        self.value: Callable[[], Any] = lambda: [self.calls]

    async def __call__(self, *args: Any) -> Any:
        self.calls += 1
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return self.value()


async def settle() -> None:
    """Let the other tasks go as far as they can."""
    for _ in range(20):
        await checkpoint()


class Callers:
    """Callers of one feature."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.slow = Slow()
        self.answers: list[Any] = []

    async def want(self, *args: Any) -> None:
        """Call it; an error is an answer."""
        try:
            self.answers.append(await self.bench.served.call_async(self.slow, args, {}))
        except Exception as error:  # noqa: BLE001 - it is looked at
            self.answers.append(error)

    async def come(self, number: int, meanwhile: Callable[[], Awaitable[None]] | None = None) -> None:
        """Have so many callers, and then the end of the call."""
        async with anyio.create_task_group() as group:
            for _ in range(number):
                group.start_soon(self.want)
            await settle()
            if meanwhile is not None:
                await meanwhile()
            self.slow.go.set()


ALWAYS = Fallback(stale=True, coalesce="always")


def test_waiters_share_one_call_and_one_record(backend: str) -> None:
    async def task() -> None:
        callers = Callers(Bench(ALWAYS))
        await callers.come(10)
        assert callers.slow.calls == 1
        assert callers.answers == [[1]] * 10
        assert len({id(answer) for answer in callers.answers}) == 10
        assert callers.bench.circuit.view().calls == 1
        assert callers.bench.counted() == {}

    run(backend, task)


def test_calls_are_shared_from_the_level_stale_on(backend: str) -> None:
    async def task() -> None:
        for level, calls in (
            (DegradationLevel.FULL, 4),
            (DegradationLevel.SHED, 4),
            (DegradationLevel.STALE, 1),
            (DegradationLevel.STATIC, 1),
        ):
            callers = Callers(Bench(Fallback(stale=True)).at(level))
            await callers.come(4)
            assert callers.slow.calls == calls
            assert len(callers.answers) == 4

    run(backend, task)


def test_nothing_is_shared_without_a_key_or_without_keeping(backend: str) -> None:
    async def task() -> None:
        for fallback in (Fallback(stale=True, key=lambda: None), Fallback(dynamic=str), None):
            callers = Callers(Bench(fallback).at(DegradationLevel.STATIC))
            await callers.come(4)
            assert callers.slow.calls == 4

    run(backend, task)


def test_caller_with_usable_result_does_not_wait(backend: str) -> None:
    async def task() -> None:
        callers = Callers(Bench(ALWAYS))
        await callers.come(1)
        callers.slow.go = anyio.Event()

        async def meanwhile() -> None:
            assert callers.answers == [[1], [1], [1]]

        await callers.come(3, meanwhile)
        assert callers.answers == [[1], [1], [1], [2]]
        assert callers.bench.counted() == {("stale", "refresh"): 2}
        callers.bench.now += 61.0
        callers.answers.clear()
        callers.slow.go = anyio.Event()
        await callers.come(3)
        assert callers.answers == [[3]] * 3

    run(backend, task)


def test_shared_failure_counts_once_with_separate_answers(backend: str) -> None:
    async def task() -> None:
        notified: list[Any] = []
        bench = Bench(Fallback(stale=True, coalesce="always", dynamic=lambda why: notified.append(why.cause)))
        callers = Callers(bench)
        callers.slow.error = Failed("x")
        await callers.come(5)
        assert callers.slow.calls == 1
        assert bench.circuit.view().streak == 1
        assert notified == ["error"] * 5
        assert bench.counted() == {("dynamic", "error"): 5}

    run(backend, task)


def test_an_error_that_all_have_does_not_grow_with_each_of_them(backend: str) -> None:
    async def task() -> None:
        callers = Callers(Bench(ALWAYS))
        callers.slow.error = Failed("x")
        lengths: list[int] = []
        errors: list[Failed] = []

        async def want() -> None:
            with pytest.raises(Failed) as caught:
                await callers.bench.served.call_async(callers.slow, (), {})
            errors.append(caught.value)
            lengths.append(len(traceback.extract_tb(caught.value.__traceback__)))

        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(want)
            await settle()
            callers.slow.go.set()
        assert len(lengths) == 10
        assert max(lengths) <= min(lengths) + 3
        assert callers.slow.calls == 1
        assert errors[0] is callers.slow.error
        assert len({id(error) for error in errors}) == 10

    run(backend, task)


def test_rejection_is_shared_by_all(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guard that requests its fleet first may reject after others began to wait."""
    rejection = GuardRejection("related", BreakerState.OPEN, BreakerCause.REMOTE, 5.0)

    async def reject(*_: Any) -> GuardedAttempt:
        await settle()
        return GuardedAttempt(rejection=rejection)

    monkeypatch.setattr(stale, "attempt_async", reject)

    async def task() -> None:
        callers = Callers(Bench(ALWAYS))
        await callers.come(4)
        assert callers.slow.calls == 0
        assert all(isinstance(answer, GuardRejected) for answer in callers.answers)
        assert {answer.rejection for answer in callers.answers} == {rejection}
        assert len({id(answer) for answer in callers.answers}) == 4

    run(backend, task)


def test_single_probe_refreshes_for_all(backend: str) -> None:
    async def task() -> None:
        bench = Bench(ALWAYS, rules=BreakerSettings(failures=1, open_s=10.0))
        callers = Callers(bench)
        bench.circuit.open_for(10.0)
        bench.now += 10.0
        await callers.come(6)
        assert callers.slow.calls == 1
        assert callers.answers == [[1]] * 6
        assert bench.circuit.state() is BreakerState.CLOSED

    run(backend, task)


def test_a_cancelled_leader_is_replaced_and_counts_as_nothing(backend: str) -> None:
    async def task() -> None:
        bench = Bench(ALWAYS, rules=BreakerSettings(half_open_max=1, open_s=10.0))
        bench.circuit.open_for(10.0)
        bench.now += 10.0
        callers = Callers(bench)
        leader = anyio.CancelScope()

        async def lead() -> None:
            with leader:
                await callers.want()

        async def replaced() -> None:
            assert callers.slow.calls == 1
            leader.cancel()
            await settle()
            assert callers.slow.calls == 2

        async with anyio.create_task_group() as group:
            group.start_soon(lead)
            await settle()
            await callers.come(3, replaced)
        assert callers.answers == [[2]] * 3
        assert bench.circuit.state() is BreakerState.CLOSED

    run(backend, task)


def test_uncopyable_result_is_not_shared(backend: str) -> None:
    async def task() -> None:
        callers = Callers(Bench(ALWAYS))
        callers.slow.value = threading.Lock
        await callers.come(3)
        assert callers.slow.calls == 3
        assert len({id(answer) for answer in callers.answers}) == 3

    run(backend, task)


def test_a_copy_that_fails_for_one_is_not_shared_with_him(backend: str) -> None:
    class Once:
        copies = 0

        def __deepcopy__(self, _: object) -> Once:
            Once.copies += 1
            if Once.copies == 2:
                raise RuntimeError("no more")
            return Once()

    async def task() -> None:
        callers = Callers(Bench(ALWAYS))
        callers.slow.value = Once
        await callers.come(3)
        assert callers.slow.calls == 2
        assert len(callers.answers) == 3

    run(backend, task)


def always(outcome: Outcome, _: object) -> Outcome:
    """A classifier that has one answer."""
    return outcome


def test_unsuccessful_values_are_shared_and_not_cached(backend: str) -> None:
    async def task() -> None:
        for outcome in (Outcome.NEUTRAL, Outcome.FAILURE):
            bench = Bench(ALWAYS, classifier=OutcomeClassifier(classify=functools.partial(always, outcome)))
            callers = Callers(bench)
            await callers.come(3)
            assert callers.slow.calls == 1
            assert callers.answers == [[1]] * 3
            assert bench.circuit.view().streak == (1 if outcome is Outcome.FAILURE else 0)
            await callers.come(1)
            assert callers.answers[-1] == [2]

    run(backend, task)


def test_the_first_caller_may_change_his_answer_at_once(backend: str) -> None:
    async def task() -> None:
        callers = Callers(Bench(ALWAYS))

        async def spoil() -> None:
            answer = await callers.bench.served.call_async(callers.slow, (), {})
            answer.append("mine")

        async with anyio.create_task_group() as group:
            group.start_soon(spoil)
            await settle()
            await callers.come(3)
        assert callers.answers == [[1]] * 3

    run(backend, task)


# Threads.


class Worker:
    """A plain dependency that answers when it is let go."""

    def __init__(self) -> None:
        self.calls = 0
        self.begun = threading.Event()
        self.go = threading.Event()
        self.error: Exception | None = None
        self.value: Callable[[], Any] = lambda: [self.calls]

    def __call__(self) -> Any:
        self.calls += 1
        self.begun.set()
        self.go.wait(FOR_S)
        if self.error is not None:
            raise self.error
        return self.value()


def caller_threads(bench: Bench, worker: Worker, waiting: int) -> list[Any]:
    """Return the answers of a leader and of its waiters."""
    answers: list[Any] = []

    def want() -> None:
        try:
            answers.append(bench.served.call(worker, (), {}))
        except (Failed, TypeError) as error:
            answers.append(error)

    threads = [threading.Thread(target=want) for _ in range(waiting + 1)]
    threads[0].start()
    assert worker.begun.wait(FOR_S)
    for thread in threads[1:]:
        thread.start()
    pause = threading.Event()
    for _ in range(int(FOR_S / 0.001)):
        if bench.served.single_flight.waiting == waiting:
            break
        pause.wait(0.001)
    worker.go.set()
    for thread in threads:
        thread.join(FOR_S)
    return answers


def test_threads_share_one_call() -> None:
    bench, worker = Bench(ALWAYS), Worker()
    assert caller_threads(bench, worker, 5) == [[1]] * 6
    assert (worker.calls, bench.circuit.view().calls) == (1, 1)


def test_threads_share_a_failure() -> None:
    bench, worker = Bench(ALWAYS), Worker()
    worker.error = Failed("x")
    answers = caller_threads(bench, worker, 3)
    assert [repr(answer) for answer in answers] == ["Failed('x')"] * 4
    assert len({id(answer) for answer in answers}) == 4
    assert (worker.calls, bench.circuit.view().streak) == (1, 1)


def test_threads_do_not_share_uncopyable_results() -> None:
    bench, worker = Bench(ALWAYS), Worker()
    worker.value = threading.Lock
    assert len({id(answer) for answer in caller_threads(bench, worker, 2)}) == 3
    assert worker.calls == 3


def test_a_thread_with_a_usable_answer_does_not_wait() -> None:
    bench, worker = Bench(ALWAYS), Worker()
    worker.go.set()
    assert bench.served.call(worker, (), {}) == [1]
    worker.go.clear()
    worker.begun.clear()
    refreshing = threading.Thread(target=bench.served.call, args=(worker, (), {}))
    refreshing.start()
    try:
        assert worker.begun.wait(FOR_S)
        assert bench.served.call(worker, (), {}) == [1]
    finally:
        worker.go.set()
        refreshing.join(FOR_S)
    assert bench.counted() == {("stale", "refresh"): 1}


async def later() -> int:
    """Values that a plain function may return."""
    await checkpoint()
    return 7


@pytest.mark.parametrize("fallback", [ALWAYS, Fallback(stale=True), Fallback(static=[])])
def test_an_awaitable_of_a_plain_function_cannot_be_replaced(
    fallback: Fallback, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(fallback, rules=BreakerSettings(max_in_flight=1))
    for _ in range(2):
        with pytest.raises(TypeError, match=r"^later has returned an awaitable.*'related'.*async def"):
            bench.served.call(later, (), {})
        assert bench.circuit.view().in_flight == 0
    assert (bench.circuit.view().streak, bench.counted(), caplog.messages) == (0, {}, [])


def test_threads_share_no_awaitable() -> None:
    bench, worker = Bench(ALWAYS), Worker()
    worker.value = later
    answers = caller_threads(bench, worker, 2)
    assert [str(answer).split()[1:5] for answer in answers] == [["has", "returned", "an", "awaitable,"]] * 3


def test_without_a_fallback_an_awaitable_is_the_caller_s(backend: str) -> None:
    async def task() -> None:
        assert await Bench(None).served.call(later, (), {}) == 7

    run(backend, task)


# Time limits are one's own.


def test_leader_timeout_fails_no_other(backend: str) -> None:
    async def task() -> None:
        bench, timed = Bench(ALWAYS, rules=BreakerSettings(failures=100)), Slow()
        timed.error = TimeoutError("mine")

        async def limited() -> Any:
            if timed.calls == 0:
                return await timed()
            await settle()
            return [7]

        answers: list[Any] = []

        async def want() -> None:
            try:
                answers.append(await bench.served.call_async(limited, (), {}))
            except TimeoutError as error:
                answers.append(error)

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(want)
            await settle()
            timed.go.set()
        assert answers[1:] == [[7], [7]]
        assert answers[0] is timed.error
        assert bench.circuit.view().calls == 2

    run(backend, task)


def test_waiter_waits_until_its_limit_and_then_calls(backend: str) -> None:
    async def task() -> None:
        bench = Bench(ALWAYS, rules=BreakerSettings(timeout_s=0.01))
        slow, done = Slow(), anyio.Event()
        slow.go.set()
        late = CallResult(GuardedAttempt(error=TimeoutError()), limits=(0.0,))
        stored = bench.served.results
        assert stored is not None
        key = stored.key(slow, (), {})
        assert key is not None

        def hang() -> Steps[CallResult]:
            yield Call(done.wait, done.wait)
            return late

        async with anyio.create_task_group() as group:
            group.start_soon(drive_async, bench.served.single_flight.run(key, hang, (inf,)))
            await settle()
            with anyio.fail_after(FOR_S):
                assert await bench.served.call_async(slow, (), {}) == [1]
            done.set()

    run(backend, task)
