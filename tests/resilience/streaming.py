"""One stream of each kind, from the same script."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import suppress
from typing import Any

from autoglm_throttle.resilience.guard import Guard
from autoglm_throttle.resilience.state import GuardState
from tests.resilience.faces import drive


class Source:
    """A dependency that streams.

    Args:
        items: what it sends; an exception is raised, a callable is called before the next item.
    """

    def __init__(self, *items: Any) -> None:
        self.items = items
        self.closed = 0
        self.caught: list[BaseException] = []

    def _at(self, item: Any) -> bool:
        if isinstance(item, BaseException):
            raise item
        if callable(item):
            item()
        return not callable(item)

    def stream(self) -> Generator[Any, Any, str]:
        try:
            yield from filter(self._at, self.items)
        finally:
            self.closed += 1
        return "the end"

    async def stream_async(self) -> AsyncGenerator[Any, Any]:
        try:
            for item in filter(self._at, self.items):
                yield item
        finally:
            self.closed += 1


class Reader:
    """Reads a stream of either kind by hand, without an event loop."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.asynchronous: bool = isinstance(stream, AsyncGenerator)

    def __iter__(self) -> Iterator[Any]:
        while True:
            try:
                item = drive(self.stream.__anext__()) if self.asynchronous else next(self.stream)
            except (StopIteration, StopAsyncIteration):
                return
            yield item

    def take(self) -> Any:
        """The next item."""
        return next(iter(self))

    def close(self) -> None:
        """Leave."""
        if self.asynchronous:
            drive(self.stream.aclose())
        else:
            self.stream.close()

    def throw(self, error: BaseException) -> Any:
        """Throw something in."""
        return drive(self.stream.athrow(error)) if self.asynchronous else self.stream.throw(error)

    def send(self, value: object) -> Any:
        """Send something in."""
        return drive(self.stream.asend(value)) if self.asynchronous else self.stream.send(value)


Opens = Callable[[GuardState, Source], Reader]


def plain(circuit: GuardState, source: Source) -> Reader:
    return Reader(Guard(circuit)(source.stream)())


def later(circuit: GuardState, source: Source) -> Reader:
    return Reader(Guard(circuit)(source.stream_async)())


def block(circuit: GuardState, source: Source) -> Reader:
    """A generator of the user's own, with a block in it."""

    async def stream() -> AsyncGenerator[Any, Any]:
        async with Guard(circuit):
            inner = source.stream_async()
            try:
                async for item in inner:
                    yield item
            finally:
                await inner.aclose()

    return Reader(stream())


def read_on(reader: Reader) -> None:
    """Read to the end, whatever it is."""
    with suppress(ConnectionError):
        for _ in reader:
            pass
