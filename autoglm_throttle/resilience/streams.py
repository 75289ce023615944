"""Guarded generators: admitted at the first item, settled at the end, neutral if the consumer stops early."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from functools import partial, wraps
from typing import Any

from autoglm_throttle.resilience.calls import PendingCall, await_within
from autoglm_throttle.resilience.state import GuardState, require_permit
from autoglm_throttle.types import GuardPermit, GuardRejection, Outcome


def _start_stream(circuit: GuardState, answer: GuardPermit | GuardRejection) -> PendingCall:
    begun_s = 0.0 if circuit.first_item_s is None else circuit.clock()
    return PendingCall(circuit, require_permit(answer), begun_s)


class _GuardedGenerator(Generator[Any, Any, Any]):
    """Wraps a generator: observes its first item, and its end by the consumer."""

    __slots__ = ("_inner", "_observer")

    def __init__(self, inner: Generator[Any, Any, Any], observer: PendingCall) -> None:
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
        with _start_stream(circuit, circuit.allow(sheds=True)) as observer:
            return (yield from _GuardedGenerator(inner, observer))

    return guarded


def guarded_async_generator(circuit: GuardState, fn: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate an async generator function; values and exceptions of the consumer are forwarded."""

    @wraps(fn)
    async def guarded(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:  # noqa: ANN401
        inner = fn(*args, **kwargs)
        circuit.block()
        permit = await circuit.allow_async(sheds=True)
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

    async def fetch(self, stream: PendingCall) -> bool:
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
