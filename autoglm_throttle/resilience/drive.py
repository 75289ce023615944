"""Runs an operation, written once as a generator of steps, for synchronous and asynchronous callers.

A step is a call that may wait: for the guarded function, for the call of another caller, for the store of the
fleet. The call through a closed breaker is direct code and takes no steps.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, NamedTuple, TypeVar, cast

T = TypeVar("T")


class Call(NamedTuple):
    """One step: the same call for both kinds of callers."""

    plain: Callable[..., Any]  # Makes the call for a synchronous caller
    awaited: Callable[..., Awaitable[Any]]  # Makes it for an asynchronous one
    args: tuple[Any, ...] = ()


# An operation: yields its steps, receives their results or exceptions, and returns its own result.
Steps = Generator[Call, Any, T]


def drive_sync(steps: Steps[T]) -> T:
    """Run an operation in this thread. An exception of a step is raised in the operation."""
    result: Any = None
    error: BaseException | None = None
    try:
        while True:
            step = steps.send(result) if error is None else steps.throw(error)
            result = error = None
            try:
                result = step.plain(*step.args)
            except BaseException as raised:  # noqa: BLE001 - raised in the operation
                error = raised
    except StopIteration as end:
        return cast("T", end.value)
    finally:
        del error, result  # breaks the reference cycle: exception, traceback, frame


async def drive_async(steps: Steps[T]) -> T:
    """Run an operation in this task, as `drive_sync` does in a thread."""
    result: Any = None
    error: BaseException | None = None
    try:
        while True:
            step = steps.send(result) if error is None else steps.throw(error)
            result = error = None
            try:
                result = await step.awaited(*step.args)
            except BaseException as raised:  # noqa: BLE001 - raised in the operation
                error = raised
    except StopIteration as end:
        return cast("T", end.value)
    finally:
        del error, result  # breaks the reference cycle: exception, traceback, frame
