"""Guarded generators: admitted at the first item, settled at the end, neutral if the consumer stops early."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from functools import partial, wraps
from types import TracebackType
from typing import Any

from autoglm_throttle.resilience.calls import await_within
from autoglm_throttle.resilience.state import GuardState
from autoglm_throttle.types import (
    BreakerState,
    GuardPermit,
    GuardRejected,
    GuardRejection,
    Outcome,
)


class StreamObserver:
    """Permit and progress of one stream; a context manager around the stream.

    ``slow_call_s`` does not apply, since the duration of a stream depends on its consumer too.

    Args:
        circuit: of the guard.
        permit: of the stream.

    Raises:
        GuardRejected: the stream was rejected.
    """

    __slots__ = ("_begun_s", "_circuit", "_permit", "_slow", "awaits_first_item")

    def __init__(self, circuit: GuardState, permit: GuardPermit | GuardRejection) -> None:
        if isinstance(permit, GuardRejection):
            raise GuardRejected(permit)
        self._circuit = circuit
        self._permit: GuardPermit | None = permit
        self._slow = False
        self._begun_s = 0.0 if circuit.first_item_s is None else circuit.clock()
        self.awaits_first_item: bool = circuit.first_item_s is not None or circuit.settles_at_first_item
        """Whether the first item matters for the outcome."""

    def __enter__(self) -> StreamObserver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.record_end()
        else:
            self.record_failure(error)

    def record_first_item(self) -> None:
        """Record the first item: it may be slow, and it may settle a probe."""
        self.awaits_first_item = False
        circuit, limit_s = self._circuit, self._circuit.first_item_s
        self._slow = limit_s is not None and circuit.clock() - self._begun_s > limit_s
        if circuit.settles_at_first_item and circuit.state() is BreakerState.HALF_OPEN:
            self.record_end()  # a probe; or a stream of an earlier generation, recorded as stale

    def record_end(self) -> None:
        """Record the end of the stream."""
        self._record(Outcome.SLOW if self._slow else Outcome.SUCCESS)

    def record_failure(self, error: BaseException) -> None:
        """Record an error or a cancellation of the stream."""
        permit, self._permit = self._permit, None
        if permit is not None:
            self._circuit.settle(permit, error, raised=True)

    def record_abandoned(self) -> None:
        """Record that the consumer stopped early."""
        self._record(Outcome.NEUTRAL)

    def _record(self, outcome: Outcome) -> None:
        permit, self._permit = self._permit, None
        if permit is not None:
            self._circuit.record(permit, outcome)


class _GuardedGenerator(Generator[Any, Any, Any]):
    """Wraps a generator: observes its first item, and its end by the consumer."""

    __slots__ = ("_inner", "_observer")

    def __init__(self, inner: Generator[Any, Any, Any], observer: StreamObserver) -> None:
        self._inner = inner
        self._observer = observer

    def send(self, value: object, /) -> Any:  # noqa: ANN401
        item = self._inner.send(value)
        if self._observer.awaits_first_item:
            self._observer.record_first_item()
        return item

    def throw(self, *error: Any) -> Any:  # noqa: ANN401
        return self._inner.throw(*error)

    def close(self) -> None:
        self._observer.record_abandoned()
        self._inner.close()


def guarded_generator(circuit: GuardState, fn: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a generator function."""

    @wraps(fn)
    def guarded(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:  # noqa: ANN401
        inner = fn(*args, **kwargs)
        circuit.block()
        with StreamObserver(circuit, circuit.admit()) as observer:
            return (yield from _GuardedGenerator(inner, observer))

    return guarded


class _GuardedAsyncGenerator:
    """Fetches the items of an inner async generator, and forwards values and exceptions of the consumer.

    As a context manager it closes the inner generator, except when the whole task is destroyed while it waits
    for an item.
    """

    __slots__ = ("_idle_s", "_inner", "_is_destroyed", "_name", "_next", "item")

    def __init__(self, circuit: GuardState, inner: AsyncGenerator[Any, Any]) -> None:
        self._idle_s = circuit.stream_idle_s
        self._name = circuit.name
        self._inner = inner
        self._next: Callable[[], Awaitable[Any]] = inner.__anext__
        self._is_destroyed = False
        self.item: Any = None
        """The newest item."""

    async def fetch_next(self, observer: StreamObserver) -> bool:
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
                self.item = await await_within(self._idle_s, step, f"{self._name} has sent nothing")
        except StopAsyncIteration:
            return False
        # The task is destroyed while it awaits: closing the inner generator would await again.
        except GeneratorExit:
            self._is_destroyed = True
            raise
        if observer.awaits_first_item:
            observer.record_first_item()
        return True

    def forward_sent(self, value: object) -> None:
        """Forward a value that the consumer sent."""
        if value is not None:
            self._next = partial(self._inner.asend, value)

    def forward_thrown(self, error: BaseException) -> None:
        """Forward an exception that the consumer threw."""
        self._next = partial(self._inner.athrow, error)

    async def __aenter__(self) -> _GuardedAsyncGenerator:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_destroyed:
            await self._inner.aclose()


def guarded_async_generator(circuit: GuardState, fn: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate an async generator function."""

    @wraps(fn)
    async def guarded(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:  # noqa: ANN401
        inner = fn(*args, **kwargs)
        circuit.block()
        permit = await circuit.admit_async()
        async with _GuardedAsyncGenerator(circuit, inner) as items:
            with StreamObserver(circuit, permit) as observer:
                while await items.fetch_next(observer):
                    try:
                        items.forward_sent((yield items.item))
                    except GeneratorExit:
                        raise
                    except BaseException as error:  # noqa: BLE001 - the inner generator handles it
                        items.forward_thrown(error)

    return guarded
