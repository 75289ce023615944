"""Guarded generators: admitted at the first item, settled at the end, given back when the consumer leaves."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from functools import partial, wraps
from typing import Any

from autoglm_throttle.model import GuardRefused, Outcome, Pass, Refusal, State, StreamSettle
from autoglm_throttle.resilience.calls import within
from autoglm_throttle.resilience.circuit import Circuit


class Watch:
    """The pass of one stream, and what is known of it so far.

    ``slow_call_s`` does not apply: how long a whole stream takes is as much its consumer's doing.

    Args:
        circuit: of the guard.
        pass_: what let the stream through.
    """

    __slots__ = ("_begun_s", "_circuit", "_pass", "_slow", "waiting")

    def __init__(self, circuit: Circuit, pass_: Pass) -> None:
        rules = circuit.rules
        self._circuit = circuit
        self._pass: Pass | None = pass_
        self._slow = False
        self._begun_s = 0.0 if rules.first_item_s is None else circuit.clock()
        self.waiting: bool = rules.first_item_s is not None or rules.stream_settle is StreamSettle.FIRST_ITEM
        """Whether the first item will say something."""

    def first(self) -> None:
        """Note the first item: it may have been slow, and it may be all that a trial has to show."""
        self.waiting = False
        circuit, limit_s = self._circuit, self._circuit.rules.first_item_s
        self._slow = limit_s is not None and circuit.clock() - self._begun_s > limit_s
        if circuit.rules.stream_settle is StreamSettle.FIRST_ITEM and self._is_trial():
            self.end()

    def _is_trial(self) -> bool:
        pass_, core = self._pass, self._circuit.breaker
        return (
            pass_ is not None
            and core.generation == pass_.generation
            and self._circuit.state() is State.HALF_OPEN
        )

    def end(self) -> None:
        """Note that the stream came to its end."""
        self._leave(Outcome.SLOW if self._slow else Outcome.SUCCESS)

    def fail(self, error: BaseException) -> None:
        """Note that the stream broke off, or that the consumer left."""
        pass_, self._pass = self._pass, None
        if pass_ is not None:
            self._circuit.settle(pass_, error, raised=True)

    def _leave(self, outcome: Outcome) -> None:
        pass_, self._pass = self._pass, None
        if pass_ is not None:
            self._circuit.leave(pass_, outcome)


def _watched(circuit: Circuit, pass_: Pass | Refusal) -> Watch:
    if isinstance(pass_, Refusal):
        raise GuardRefused(pass_)
    return Watch(circuit, pass_)


def guarded_generator(circuit: Circuit, fn: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a generator function."""

    @wraps(fn)
    def guarded(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        watch = _watched(circuit, circuit.admit())
        inner: Generator[Any, Any, Any] | None = None
        try:
            inner = fn(*args, **kwargs)
            value = yield from _steps(inner, watch)
        except BaseException as error:
            watch.fail(error)
            raise
        else:
            watch.end()
        finally:
            if inner is not None:
                inner.close()
        return value

    return guarded


def _steps(inner: Generator[Any, Any, Any], watch: Watch) -> Generator[Any, Any, Any]:
    if watch.waiting:
        try:
            item = next(inner)
        except StopIteration as end:
            return end.value
        watch.first()
        yield item
    return (yield from inner)


class _AsyncSteps:
    """Takes the items of an async generator one by one, and hands on what the consumer sends or throws."""

    __slots__ = ("_idle_s", "_inner", "_name", "_next")

    def __init__(self, inner: AsyncGenerator[Any, Any], circuit: Circuit) -> None:
        self._inner = inner
        self._idle_s = circuit.rules.stream_idle_s
        self._name = circuit.name
        self._next: Callable[[], Any] = inner.__anext__

    async def take(self) -> Any:  # noqa: ANN401
        """The next item.

        Raises:
            TimeoutError: it is not there in time.
        """
        step, self._next = self._next, self._inner.__anext__
        if self._idle_s is None:
            return await step()
        return await within(self._idle_s, step, f"{self._name} has sent nothing")

    def sent(self, value: object) -> None:
        """Hand on what the consumer sent."""
        if value is not None:
            self._next = partial(self._inner.asend, value)

    def thrown(self, error: BaseException) -> None:
        """Hand on what the consumer threw."""
        self._next = partial(self._inner.athrow, error)


def guarded_async_generator(circuit: Circuit, fn: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate an async generator function."""

    @wraps(fn)
    async def guarded(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        watch = _watched(circuit, await circuit.admit_async())
        inner: AsyncGenerator[Any, Any] | None = None
        try:
            inner = fn(*args, **kwargs)
            steps = _AsyncSteps(inner, circuit)
            while True:
                try:
                    item = await steps.take()
                except StopAsyncIteration:
                    break
                if watch.waiting:
                    watch.first()
                try:
                    steps.sent((yield item))
                except GeneratorExit:
                    raise
                except BaseException as error:
                    steps.thrown(error)
        except BaseException as error:
            watch.fail(error)
            raise
        else:
            watch.end()
        finally:
            if inner is not None:
                await inner.aclose()

    return guarded
