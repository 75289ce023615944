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
        # Whether the first item matters for the outcome.
        self.awaits_first_item: bool = circuit.first_item_s is not None or circuit.settles_at_first_item

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
    """Return the permit of an admitted stream, or raise GuardRejected."""
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


def guarded_async_generator(circuit: GuardState, fn: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate an async generator function; values and exceptions of the consumer are forwarded."""

    @wraps(fn)
    async def guarded(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:  # noqa: ANN401
        inner = fn(*args, **kwargs)
        circuit.block()
        permit = await circuit.admit_async()
        items = _InnerItems(circuit, inner)
        try:
            with _start_stream(circuit, permit) as stream:
                while await items.fetch(stream):
                    try:
                        sent = yield items.newest
                        items.step = inner.__anext__ if sent is None else partial(inner.asend, sent)
                    except GeneratorExit:
                        raise
                    except BaseException as error:  # noqa: BLE001 - the inner generator handles it
                        items.step = partial(inner.athrow, error)
        finally:
            # A task that is destroyed while it awaits cannot await the end of the inner generator.
            if not items.is_destroyed:
                await inner.aclose()

    return guarded


class _InnerItems:
    """Items of an inner async generator."""

    __slots__ = ("_circuit", "is_destroyed", "newest", "step")

    def __init__(self, circuit: GuardState, inner: AsyncGenerator[Any, Any]) -> None:
        self._circuit = circuit
        self.step: Callable[[], Awaitable[Any]] = inner.__anext__  # Fetches the next item
        self.newest: Any = None
        self.is_destroyed = False

    async def fetch(self, stream: StreamPermit) -> bool:
        """Wait for the next item, at most ``stream_idle_s``; return whether there is one."""
        idle_s = self._circuit.stream_idle_s
        try:
            if idle_s is None:
                self.newest = await self.step()
            else:
                text = f"{self._circuit.name} has sent nothing"
                self.newest = await await_within(idle_s, self.step, text)
        except StopAsyncIteration:
            return False
        except GeneratorExit:
            self.is_destroyed = True
            raise
        if stream.awaits_first_item:
            stream.record_first_item()
        return True
