"""Runs a call up to its first suspension, so that its caller knows whether it blocks."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from types import CoroutineType
from typing import Any


class BegunCall:
    """A ``send`` or ``receive`` of a server that has begun. Await it unless it is done.

    Most calls end at once; then no time needs to be read and no timeout to be prepared. Under trio it begins
    only when it is awaited: a cancel scope around the rest must be entered before those of the call.

    Args:
        awaitable: the call.
    """

    __slots__ = ("_coroutine", "_has_begun", "_pending", "is_done", "result")

    def __init__(self, awaitable: Awaitable[Any]) -> None:
        self._coroutine: Coroutine[Any, Any, Any] = (
            awaitable if isinstance(awaitable, CoroutineType) else _wait(awaitable)
        )
        self._pending: Any = None
        self.is_done: bool = False
        self.result: Any = None
        """Result of a call that is done."""
        self._has_begun = not _is_in_trio()
        if not self._has_begun:
            return
        try:
            self._pending = self._coroutine.send(None)
        except StopIteration as ended:
            self.is_done, self.result = True, ended.value

    def __await__(self) -> Generator[Any, Any, Any]:
        """Run the rest: as ``yield from``, which cannot take over an iterator that has yielded already."""
        coroutine, pending = self._coroutine, self._pending
        if not self._has_begun:
            return (yield from coroutine.__await__())
        step: Callable[[], Any]
        while True:
            try:
                sent = yield pending
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as error:  # noqa: BLE001 - a cancellation, too, belongs to the call
                step = partial(coroutine.throw, error)
            else:
                step = partial(coroutine.send, sent)
            try:
                pending = step()
            except StopIteration as ended:
                return ended.value

    def close(self) -> None:
        """Abandon the call."""
        self._coroutine.close()


async def _wait(awaitable: Awaitable[Any]) -> Any:  # noqa: ANN401 - a message of the server
    return await awaitable


def _is_in_trio() -> bool:
    trio = sys.modules.get("trio")
    return trio is not None and trio.lowlevel.in_trio_run()
