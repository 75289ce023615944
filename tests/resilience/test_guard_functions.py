"""A guard as a decorator: functions of every kind keep their kind."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import pytest

from autoglm_throttle.resilience.guard import Guard
from autoglm_throttle.types import GuardRejected
from tests.resilience.doubling import count, count_later, double, double_later
from tests.resilience.faces import drive
from tests.resilience.tripping import Clocked, fail, half_open


class Doubler:
    """Objects that are called, and methods of every kind."""

    def __call__(self, number: int) -> int:
        return 2 * number

    async def later(self, number: int) -> int:
        return 2 * number

    @staticmethod
    async def apart(number: int) -> int:
        return 2 * number

    @classmethod
    def above(cls, number: int) -> int:
        return 2 * number


class LateDoubler:
    async def __call__(self, number: int) -> int:
        return 2 * number


class Counter:
    async def __call__(self, number: int) -> AsyncIterator[int]:
        for item in range(number):
            yield item


async def all_of(stream: AsyncIterator[int]) -> list[int]:
    return [item async for item in stream]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "function": double,
    "lambda": lambda number: 2 * number,
    "partial": partial(double, 3),
    "object": Doubler(),
    "class method": Doubler.above,
    "builtin": abs,
}
COROUTINES: dict[str, Callable[..., Any]] = {
    "function": double_later,
    "partial": partial(double_later, 3),
    "partial of a partial": partial(partial(double_later, 3)),
    "object": LateDoubler(),
    "partial of an object": partial(LateDoubler(), 3),
    "method": Doubler().later,
    "static method": Doubler.apart,
}


def arguments(kind: str) -> tuple[int, ...]:
    return () if kind.startswith("partial") else (3,)


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_plain_functions(kind: str) -> None:
    circuit = Clocked()
    guarded = Guard(circuit)(FUNCTIONS[kind])
    for _ in range(2):
        assert guarded(*arguments(kind)) == FUNCTIONS[kind](*arguments(kind))
    assert circuit.view().calls == 2
    fail(circuit)
    for _ in range(2):
        with pytest.raises(GuardRejected):
            guarded(*arguments(kind))


@pytest.mark.parametrize("kind", COROUTINES)
def test_coroutine_functions(kind: str) -> None:
    circuit = Clocked()
    guarded = Guard(circuit)(COROUTINES[kind])
    assert inspect.iscoroutinefunction(guarded)
    for _ in range(2):
        assert drive(guarded(*arguments(kind))) == 6
    assert circuit.view().calls == 2
    fail(circuit)
    for _ in range(2):
        with pytest.raises(GuardRejected):
            drive(guarded(*arguments(kind)))


@pytest.mark.parametrize("source", [count, partial(count, 3)])
def test_generator_functions(source: Callable[..., Iterator[int]]) -> None:
    circuit = Clocked()
    guarded = Guard(circuit)(source)
    assert inspect.isgeneratorfunction(guarded)
    numbers = guarded(*(() if isinstance(source, partial) else (3,)))
    assert circuit.view().calls == 0
    assert list(numbers) == [0, 1, 2]
    assert circuit.view().calls == 1


@pytest.mark.parametrize("source", [count_later, partial(count_later, 3), Counter()])
def test_async_generator_functions(source: Callable[..., AsyncIterator[int]]) -> None:
    circuit = Clocked()
    guarded = Guard(circuit)(source)
    assert inspect.isasyncgenfunction(guarded)
    numbers = guarded(*(() if isinstance(source, partial) else (3,)))
    assert circuit.view().calls == 0
    assert drive(all_of(numbers)) == [0, 1, 2]
    assert circuit.view().calls == 1


def test_methods_and_stacked_decorators() -> None:
    circuit = Clocked()

    class Store:
        factor = 2

        @Guard(circuit)
        async def search(self, number: int) -> int:
            return self.factor * number

        @Guard(circuit)
        @staticmethod
        async def apart(number: int) -> int:
            return 2 * number

        @Guard(circuit)
        @classmethod
        def above(cls, number: int) -> int:
            return cls.factor * number

        @staticmethod
        @Guard(circuit)
        def under(number: int) -> int:
            return 2 * number

    store = Store()
    assert drive(store.search(3)) == drive(store.apart(3)) == store.above(3) == store.under(3) == 6
    assert circuit.view().calls == 4


def test_function_metadata_is_kept() -> None:
    async def search(text: str, *, top: int = 3) -> list[str]:
        """Find some."""
        return [text] * top

    guarded = Guard(Clocked())(search)
    assert (guarded.__name__, guarded.__doc__) == ("search", "Find some.")
    assert inspect.signature(guarded) == inspect.signature(search)
    assert drive(guarded("a", top=1)) == ["a"]


def test_one_guard_decorates_any_number_and_may_still_be_a_block() -> None:
    circuit = Clocked()
    guard = Guard(circuit)
    first, second = guard(double), guard(double_later)
    assert (first(1), drive(second(2))) == (2, 4)
    with guard:
        pass
    assert circuit.view().calls == 3


def test_coroutines_that_are_never_awaited_take_nothing() -> None:
    circuit = half_open()
    call = Guard(circuit)(double_later)(3)
    call.close()
    assert circuit.view().calls == 1
