"""The awaitable that a guarded plain function has returned, and whose end is the outcome."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Generator
from typing import Any

from autoglm_throttle.model import Outcome, Pass
from autoglm_throttle.resilience.circuit import Circuit


class Settling(Coroutine[Any, Any, Any]):
    """Stands for an awaitable and settles the call when that ends; may be awaited or made a task.

    Never awaited, it gives its place back when it is dropped, as no evidence.

    Args:
        circuit: of the guard.
        pass_: what let the call through.
        inner: what the function has returned.
        begun_s: from `Circuit.begin`.
    """

    __slots__ = ("_begun_s", "_circuit", "_inner", "_pass", "_running")

    def __init__(self, circuit: Circuit, pass_: Pass, inner: Awaitable[Any], begun_s: float) -> None:
        self._circuit = circuit
        self._pass: Pass | None = pass_
        self._inner = inner
        self._begun_s = begun_s
        self._running: Coroutine[Any, Any, Any] | None = None

    async def _run(self) -> Any:  # noqa: ANN401
        try:
            value = await self._inner
        except BaseException as error:
            self._settle(error, raised=True)
            raise
        self._settle(value, raised=False)
        return value

    def _settle(self, seen: object, *, raised: bool) -> None:
        pass_, self._pass = self._pass, None
        if pass_ is not None:
            elapsed_s = self._circuit.since(self._begun_s)
            self._circuit.settle(pass_, seen, raised=raised, elapsed_s=elapsed_s)

    def _started(self) -> Coroutine[Any, Any, Any]:
        if self._running is None:
            self._running = self._run()
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
        self._drop()

    def _drop(self) -> None:
        pass_, self._pass = self._pass, None
        if pass_ is not None:
            self._circuit.leave(pass_, Outcome.NEUTRAL)

    def __del__(self) -> None:
        self._drop()
