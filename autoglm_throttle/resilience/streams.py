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


class StreamPermit:
    """Permit and progress of one stream, or of one response body.

    As a context manager it spans the stream. ``slow_call_s`` does not apply, since the duration of a stream
    depends on its consumer too.
    """

    __slots__ = ("_begun_s", "_circuit", "_permit", "_slow", "awaits_first_item")

    def __init__(self, circuit: GuardState, permit: GuardPermit, begun_s: float) -> None:
        self._circuit = circuit
        self._permit: GuardPermit | None = permit
        self._slow = False
        self._begun_s = begun_s
        self.awaits_first_item: bool = circuit.first_item_s is not None or circuit.settles_at_first_item
        """Whether the first item matters for the outcome."""

    def __enter__(self) -> StreamPermit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.record_end()
        else:
            self.record_failure(error)

    def record_first_item(self) -> None:
        """Record the first item, or the end of an empty body: it may be slow, and it may settle a probe."""
        self.awaits_first_item = False
        circuit, permit, limit_s = self._circuit, self._permit, self._circuit.first_item_s
        self._slow = limit_s is not None and circuit.clock() - self._begun_s > limit_s
        # A serial above 0 also marks a bounded ordinary call, so the state decides too.
        is_probe = permit is not None and permit.serial > 0
        if circuit.settles_at_first_item and is_probe and circuit.state() is BreakerState.HALF_OPEN:
            self.record_end()

    def record_end(self) -> None:
        """Record the end of the stream."""
        self.record(Outcome.SLOW if self._slow else Outcome.SUCCESS)

    def record_failure(self, error: BaseException) -> Outcome | None:
        """Record an error or a cancellation of the stream; return its outcome, None if it had one."""
        permit, self._permit = self._permit, None
        return None if permit is None else self._circuit.settle(permit, error, raised=True)

    def record(self, outcome: Outcome) -> None:
        """Record the outcome of the stream, unless there is one already."""
        permit, self._permit = self._permit, None
        if permit is not None:
            self._circuit.record(permit, outcome)


def _start_stream(circuit: GuardState, permit: GuardPermit | GuardRejection) -> StreamPermit:
    """Return the permit of an admitted stream.

    Raises:
        GuardRejected: the stream was rejected.
    """
    if isinstance(permit, GuardRejection):
        raise GuardRejected(permit)
    return StreamPermit(circuit, permit, 0.0 if circuit.first_item_s is None else circuit.clock())


class _GuardedGenerator(Generator[Any, Any, Any]):
    """Wraps a generator: observes its first item, and its end by the consumer."""

    __slots__ = ("_inner", "_observer")

    def __init__(self, inner: Generator[Any, Any, Any], observer: StreamPermit) -> None:
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
        self._observer.record(Outcome.NEUTRAL)
        self._inner.close()


def guarded_generator(circuit: GuardState, fn: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a generator function."""

    @wraps(fn)
    def guarded(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:  # noqa: ANN401
        inner = fn(*args, **kwargs)
        circuit.block()
        with _start_stream(circuit, circuit.admit()) as observer:
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

    async def fetch_next(self, observer: StreamPermit) -> bool:
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
            with _start_stream(circuit, permit) as observer:
                while await items.fetch_next(observer):
                    try:
                        items.forward_sent((yield items.item))
                    except GeneratorExit:
                        raise
                    except BaseException as error:  # noqa: BLE001 - the inner generator handles it
                        items.forward_thrown(error)

    return guarded
