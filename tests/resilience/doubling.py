"""Guarded functions of each kind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator
from typing import Any


def double(number: int) -> int:
    return 2 * number


async def double_later(number: int) -> int:
    return 2 * number


def count(number: int) -> Iterator[int]:
    yield from range(number)


async def count_later(number: int) -> AsyncIterator[int]:
    for item in range(number):
        yield item


class Slot:
    """An awaitable that is no coroutine."""

    def __await__(self) -> Generator[Any, Any, int]:
        return 7
        yield  # type: ignore[unreachable]
