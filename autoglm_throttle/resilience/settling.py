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

    def __del__(self) -> None:
        """Whoever held it has dropped it: what was never begun, too."""
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
    """Stands for an awaitable and settles the call when that ends; may be awaited or made a task.

    What else the awaitable has, as the methods of a future, is found here, too. Never awaited, or dropped
    before its end, it gives its place back, as no evidence.

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

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(object.__getattribute__(self, "_inner"), name)  # fails where a copy has none yet

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
        try:
            return self._started().throw(*error)
        except BaseException:
            self._call.drop()  # it may not have been begun, and then nothing in it hears of this
            raise

    def close(self) -> None:
        """End it where it stands."""
        if self._running is not None:
            self._running.close()
        elif isinstance(self._inner, Coroutine):
            self._inner.close()
        self._call.drop()


class SettlingBlock(Settling):
    """The same for what may be entered instead, as a request of aiohttp: it settles when it was entered."""

    __slots__ = ()

    async def __aenter__(self) -> Any:  # noqa: ANN401
        enter = type(self._inner).__aenter__  # type: ignore[attr-defined]
        return await _settled(self._call, enter(self._inner))

    async def __aexit__(self, *error: object) -> Any:  # noqa: ANN401
        leave = type(self._inner).__aexit__  # type: ignore[attr-defined]
        return await leave(self._inner, *error)


def settling(circuit: Circuit, pass_: Pass, inner: Awaitable[Any], begun_s: float) -> Settling:
    """What stands for an awaitable; where that is an asynchronous context manager, it is one, too."""
    kind = SettlingBlock if hasattr(type(inner), "__aenter__") else Settling
    return kind(circuit, pass_, inner, begun_s)
