"""The awaitable that a guarded plain function has returned, and whose end is the outcome."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Generator
from typing import Any

from autoglm_throttle.model import Outcome, Pass
from autoglm_throttle.resilience.circuit import Circuit


class _Call:
    """A call under way, to be settled once."""

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


async def _settled(call: _Call, inner: Awaitable[Any]) -> Any:  # noqa: ANN401
    try:
        value = await inner
    except BaseException as error:
        call.settle(error, raised=True)
        raise
    call.settle(value, raised=False)
    return value


class Settling(Coroutine[Any, Any, Any]):
    """Stands for an awaitable and settles the call when that ends; may be awaited or made a task.

    Never awaited, or dropped before its end, it gives its place back, as no evidence.

    Args:
        circuit: of the guard.
        pass_: what let the call through.
        inner: what the function has returned.
        begun_s: from `Circuit.begin`.
    """

    __slots__ = ("_call", "_inner", "_running")

    def __init__(self, circuit: Circuit, pass_: Pass, inner: Awaitable[Any], begun_s: float) -> None:
        self._call = _Call(circuit, pass_, begun_s)
        self._inner = inner
        self._running: Coroutine[Any, Any, Any] | None = None

    def _started(self) -> Coroutine[Any, Any, Any]:
        if self._running is None:
            self._running = _settled(self._call, self._inner)
        return self._running

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._started().__await__()

    def send(self, value: object, /) -> Any:  # noqa: ANN401
        """Go on, as a task does."""
        return self._started().send(value)

    def throw(self, *error: Any) -> Any:  # noqa: ANN401
        """Raise something where it waits, as a cancellation does."""
        return self._started().throw(*error)

    def close(self) -> None:
        """End it where it stands."""
        if self._running is not None:
            self._running.close()
        self._call.drop()

    def __del__(self) -> None:
        if self._running is None:
            self._call.drop()
