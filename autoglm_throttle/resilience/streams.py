"""Guarded generators: admitted at the first item, settled at the end, neutral if the consumer stops early."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from functools import partial, wraps
from types import TracebackType
from typing import Any

from autoglm_throttle.model import GuardRefused, Outcome, Pass, Refusal, State, StreamSettle
from autoglm_throttle.resilience.calls import within
from autoglm_throttle.resilience.circuit import Circuit


class Watch:
    """Permit and progress of one stream; a context manager around the stream.

    ``slow_call_s`` does not apply, since the duration of a stream depends on its consumer too.

    Args:
        circuit: of the guard.
        permit: of the stream.

    Raises:
        GuardRejected: the stream was rejected.
    """

    __slots__ = ("_begun_s", "_circuit", "_pass", "_slow", "waiting")

    def __init__(self, circuit: Circuit, pass_: Pass | Refusal) -> None:
        if isinstance(pass_, Refusal):
            raise GuardRefused(pass_)
        rules = circuit.rules
        self._circuit = circuit
        self._pass: Pass | None = pass_
        self._slow = False
        self._begun_s = 0.0 if rules.first_item_s is None else circuit.clock()
        self.waiting: bool = rules.first_item_s is not None or rules.stream_settle is StreamSettle.FIRST_ITEM
        """Whether the first item matters for the outcome."""

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.end()
        else:
            self.fail(error)

    def first(self) -> None:
        """Record the first item: it may be slow, and it may settle a probe."""
        self.waiting = False
        circuit, limit_s = self._circuit, self._circuit.rules.first_item_s
        self._slow = limit_s is not None and circuit.clock() - self._begun_s > limit_s
        if circuit.rules.stream_settle is StreamSettle.FIRST_ITEM and circuit.state() is State.HALF_OPEN:
            self.end()  # a probe; or a stream of an earlier generation, recorded as stale

    def end(self) -> None:
        """Record the end of the stream."""
        self._leave(Outcome.SLOW if self._slow else Outcome.SUCCESS)

    def fail(self, error: BaseException) -> None:
        """Record an error or a cancellation of the stream."""
        pass_, self._pass = self._pass, None
        if pass_ is not None:
            self._circuit.settle(pass_, error, raised=True)

    def left(self) -> None:
        """Record that the consumer stopped early."""
        self._leave(Outcome.NEUTRAL)

    def _leave(self, outcome: Outcome) -> None:
        pass_, self._pass = self._pass, None
        if pass_ is not None:
            self._circuit.leave(pass_, outcome)


class _Steps(Generator[Any, Any, Any]):
    """Wraps a generator: observes its first item, and its end by the consumer."""

    __slots__ = ("_inner", "_watch")

    def __init__(self, inner: Generator[Any, Any, Any], watch: Watch) -> None:
        self._inner = inner
        self._watch = watch

    def send(self, value: object, /) -> Any:  # noqa: ANN401
        item = self._inner.send(value)
        if self._watch.waiting:
            self._watch.first()
        return item

    def throw(self, *error: Any) -> Any:  # noqa: ANN401
        return self._inner.throw(*error)

    def close(self) -> None:
        self._watch.left()
        self._inner.close()


def guarded_generator(circuit: Circuit, fn: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a generator function."""

    @wraps(fn)
    def guarded(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:  # noqa: ANN401
        inner = fn(*args, **kwargs)
        circuit.keep_out()
        with Watch(circuit, circuit.admit()) as watch:
            return (yield from _Steps(inner, watch))

    return guarded


class _AsyncSteps:
    """Fetches the items of an inner async generator, and forwards values and exceptions of the consumer.

    As a context manager it closes the inner generator, except when the whole task is destroyed while it waits
    for an item.
    """

    __slots__ = ("_adrift", "_idle_s", "_inner", "_name", "_next", "item")

    def __init__(self, circuit: Circuit, inner: AsyncGenerator[Any, Any]) -> None:
        self._idle_s = circuit.rules.stream_idle_s
        self._name = circuit.name
        self._inner = inner
        self._next: Callable[[], Awaitable[Any]] = inner.__anext__
        self._adrift = False
        self.item: Any = None
        """The newest item."""

    async def more(self, watch: Watch) -> bool:
        """Wait for the next item.

        Returns:
            Whether there is one.

        Raises:
            TimeoutError: no item arrived within ``stream_idle_s``.
        """
        step, self._next = self._next, self._inner.__anext__
        try:
            if self._idle_s is None:
                self.item = await step()
            else:
                self.item = await within(self._idle_s, step, f"{self._name} has sent nothing")
        except StopAsyncIteration:
            return False
        # The task is destroyed while it awaits: closing the inner generator would await again.
        except GeneratorExit:
            self._adrift = True
            raise
        if watch.waiting:
            watch.first()
        return True

    def sent(self, value: object) -> None:
        """Forward a value that the consumer sent."""
        if value is not None:
            self._next = partial(self._inner.asend, value)

    def thrown(self, error: BaseException) -> None:
        """Forward an exception that the consumer threw."""
        self._next = partial(self._inner.athrow, error)

    async def __aenter__(self) -> _AsyncSteps:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._adrift:
            await self._inner.aclose()


def guarded_async_generator(circuit: Circuit, fn: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate an async generator function."""

    @wraps(fn)
    async def guarded(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:  # noqa: ANN401
        inner = fn(*args, **kwargs)
        circuit.keep_out()
        pass_ = await circuit.admit_async()
        async with _AsyncSteps(circuit, inner) as steps:
            with Watch(circuit, pass_) as watch:
                while await steps.more(watch):
                    try:
                        steps.sent((yield steps.item))
                    except GeneratorExit:
                        raise
                    except BaseException as error:  # noqa: BLE001 - the inner generator handles it
                        steps.thrown(error)

    return guarded
