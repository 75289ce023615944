"""Wrapper of an awaitable that a guarded plain function returned: its end is the outcome of the call."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Generator
from typing import Any

from autoglm_throttle.model import Outcome, Pass
from autoglm_throttle.resilience.circuit import Circuit


class _Call:
    """A call in flight, settled once."""

    __slots__ = ("_begun_s", "_circuit", "_pass")

    def __init__(self, circuit: Circuit, pass_: Pass, begun_s: float) -> None:
        self._circuit = circuit
        self._pass: Pass | None = pass_
        self._begun_s = begun_s

    def settle(self, seen: object, *, raised: bool) -> None:
        pass_, self._pass = self._pass, None
        if pass_ is not None:
            elapsed_s = self._circuit.since(self._begun_s)
            self._circuit.settle(pass_, seen, raised=raised, elapsed_s=elapsed_s)

    def drop(self) -> None:
        pass_, self._pass = self._pass, None
        if pass_ is not None:
            self._circuit.leave(pass_, Outcome.NEUTRAL)

    def __del__(self) -> None:
        """Settle as neutral when the awaitable is garbage-collected, awaited or not."""
        self.drop()


async def _settled(call: _Call, inner: Awaitable[Any]) -> Any:  # noqa: ANN401
    try:
        value = await inner
    except BaseException as error:
        call.settle(error, raised=True)
        raise
    call.settle(value, raised=False)
    return value


class Settling(Coroutine[Any, Any, Any]):
    """Wraps an awaitable and settles the call when it ends; may be awaited or run as a task.

    Other attributes, such as the methods of a future, are forwarded. If it is never awaited or is dropped
    before its end, the call is recorded as neutral.

    Args:
        circuit: of the guard.
        permit: of the call.
        inner: the awaitable that the function returned.
        begun_s: from `GuardState.start_time`.
    """

    __slots__ = ("_call", "_inner", "_running")

    def __init__(self, circuit: Circuit, pass_: Pass, inner: Awaitable[Any], begun_s: float) -> None:
        self._call = _Call(circuit, pass_, begun_s)
        self._inner = inner
        self._running: Coroutine[Any, Any, Any] | None = None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(object.__getattribute__(self, "_inner"), name)  # a copy has none yet

    def _started(self) -> Coroutine[Any, Any, Any]:
        if self._running is None:
            self._running = _settled(self._call, self._inner)
        return self._running

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._started().__await__()

    def send(self, value: object, /) -> Any:  # noqa: ANN401
        """Resume the awaitable."""
        return self._started().send(value)

    def throw(self, *error: Any) -> Any:  # noqa: ANN401
        """Raise an exception at the suspension point, for example a cancellation."""
        try:
            return self._started().throw(*error)
        except BaseException:
            self._call.drop()  # an unstarted coroutine never runs its handler
            raise

    def close(self) -> None:
        """Close the awaitable and settle the call as neutral."""
        # Closing an unstarted wrapper does not close the inner coroutine: close it explicitly.
        if self._running is not None:
            self._running.close()
        elif isinstance(self._inner, Coroutine):
            self._inner.close()
        self._call.drop()


class SettlingBlock(Settling):
    """Awaitable that is also an async context manager, such as an aiohttp request: settles when entered."""

    __slots__ = ()

    async def __aenter__(self) -> Any:  # noqa: ANN401
        enter = type(self._inner).__aenter__  # type: ignore[attr-defined]
        return await _settled(self._call, enter(self._inner))

    async def __aexit__(self, *error: object) -> Any:  # noqa: ANN401
        leave = type(self._inner).__aexit__  # type: ignore[attr-defined]
        return await leave(self._inner, *error)


def settling(circuit: Circuit, pass_: Pass, inner: Awaitable[Any], begun_s: float) -> Settling:
    """Wrap an awaitable; the wrapper is an async context manager if the awaitable is one."""
    kind = SettlingBlock if hasattr(type(inner), "__aenter__") else Settling
    return kind(circuit, pass_, inner, begun_s)
