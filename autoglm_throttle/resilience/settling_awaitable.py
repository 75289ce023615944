"""Wrapper of an awaitable that a guarded plain function returned: its end is the outcome of the call."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Generator
from typing import Any

from autoglm_throttle.resilience.guard_state import GuardState
from autoglm_throttle.types import GuardPermit, Outcome


class _PendingCall:
    """A call in flight, settled once."""

    __slots__ = ("_begun_s", "_circuit", "_permit")

    def __init__(self, circuit: GuardState, permit: GuardPermit, begun_s: float) -> None:
        self._circuit = circuit
        self._permit: GuardPermit | None = permit
        self._begun_s = begun_s

    def settle(self, result: object, *, raised: bool) -> None:
        permit, self._permit = self._permit, None
        if permit is not None:
            elapsed_s = self._circuit.elapsed(self._begun_s)
            self._circuit.settle(permit, result, raised=raised, elapsed_s=elapsed_s)

    def drop(self) -> None:
        permit, self._permit = self._permit, None
        if permit is not None:
            self._circuit.record(permit, Outcome.NEUTRAL)

    def __del__(self) -> None:
        """Settle as neutral when the awaitable is garbage-collected, awaited or not."""
        self.drop()


async def _await_and_settle(call: _PendingCall, inner: Awaitable[Any]) -> Any:  # noqa: ANN401
    try:
        value = await inner
    except BaseException as error:
        call.settle(error, raised=True)
        raise
    call.settle(value, raised=False)
    return value


class SettlingAwaitable(Coroutine[Any, Any, Any]):
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

    def __init__(
        self, circuit: GuardState, permit: GuardPermit, inner: Awaitable[Any], begun_s: float
    ) -> None:
        self._call = _PendingCall(circuit, permit, begun_s)
        self._inner = inner
        self._running: Coroutine[Any, Any, Any] | None = None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(object.__getattribute__(self, "_inner"), name)  # a copy has none yet

    def _ensure_started(self) -> Coroutine[Any, Any, Any]:
        if self._running is None:
            self._running = _await_and_settle(self._call, self._inner)
        return self._running

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._ensure_started().__await__()

    def send(self, value: object, /) -> Any:  # noqa: ANN401
        """Resume the awaitable."""
        return self._ensure_started().send(value)

    def throw(self, *error: Any) -> Any:  # noqa: ANN401
        """Raise an exception at the suspension point, for example a cancellation."""
        try:
            return self._ensure_started().throw(*error)
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


class SettlingContext(SettlingAwaitable):
    """Awaitable that is also an async context manager, such as an aiohttp request: settles when entered."""

    __slots__ = ()

    async def __aenter__(self) -> Any:  # noqa: ANN401
        enter = type(self._inner).__aenter__  # type: ignore[attr-defined]
        return await _await_and_settle(self._call, enter(self._inner))

    async def __aexit__(self, *error: object) -> Any:  # noqa: ANN401
        leave = type(self._inner).__aexit__  # type: ignore[attr-defined]
        return await leave(self._inner, *error)


def wrap_awaitable(
    circuit: GuardState, permit: GuardPermit, inner: Awaitable[Any], begun_s: float
) -> SettlingAwaitable:
    """Wrap an awaitable; the wrapper is an async context manager if the awaitable is one."""
    kind = SettlingContext if hasattr(type(inner), "__aenter__") else SettlingAwaitable
    return kind(circuit, permit, inner, begun_s)
