"""Types of guarded functions: mypy checks this file, and each wrong line is an error."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, assert_type

from autoglm_throttle.resilience.guard import Guard
from tests.resilience.faces import drive
from tests.resilience.tripping import Clocked

GUARD = Guard(Clocked())


@GUARD
def search(text: str, *, top: int = 3) -> list[str]:
    return [text] * top


@GUARD
async def search_later(text: str, top: int = 3) -> list[str]:
    return [text] * top


@GUARD
def scan(text: str) -> Iterator[str]:
    yield text


@GUARD
async def scan_later(text: str) -> AsyncIterator[str]:
    yield text


class Store:
    @GUARD
    def get(self, key: str) -> int:
        return len(key)

    @GUARD
    async def get_later(self, key: str) -> int:
        return len(key)


def test_return_type_is_kept() -> None:
    assert_type(search("a"), list[str])
    assert_type(search("a", top=1), list[str])
    assert_type(scan("a"), Iterator[str])
    assert_type(scan_later("a"), AsyncIterator[str])
    assert_type(Store().get("a"), int)
    assert drive(assert_type(search_later("a", 1), Coroutine[Any, Any, list[str]])) == ["a"]
    assert drive(assert_type(Store().get_later("a"), Coroutine[Any, Any, int])) == 1


def test_parameter_types_are_kept() -> None:
    never: list[Callable[[], object]] = [
        lambda: search(1),  # type: ignore[arg-type]
        lambda: search("a", 1),  # type: ignore[call-arg]
        lambda: search("a", bottom=1),  # type: ignore[call-arg]
        lambda: search_later("a", "b"),  # type: ignore[arg-type]
        lambda: list(scan()),  # type: ignore[call-arg]
        lambda: scan_later(2),  # type: ignore[arg-type]
        lambda: Store().get(2),  # type: ignore[arg-type]
    ]
    assert len(never) == 7


async def block() -> None:
    async with GUARD as entered:
        assert_type(entered, Guard)
    with GUARD as entered:
        assert_type(entered, Guard)
