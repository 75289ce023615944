"""Guarded calls of functions: one attempt as a value, and the short way of the decorator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass
from functools import wraps
from types import TracebackType
from typing import Any, Final

from autoglm_throttle.model import GuardRefused, Outcome, Pass, Refusal
from autoglm_throttle.resilience.circuit import Circuit

_NEUTRAL: Final = Outcome.NEUTRAL


@dataclass(slots=True)
class Attempt:
    """What came of one call: nothing but exceptions that are no `Exception` is raised past it."""

    value: Any = None
    error: Exception | None = None
    """What the function raised; None after a refusal."""
    outcome: Outcome | None = None
    """As it was recorded; None: the call was refused."""
    refusal: Refusal | None = None


def attempt(
    circuit: Circuit, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Attempt:
    """Ask, call, judge and record, without a fallback.

    Where the value is an awaitable, nothing is known yet: it settles when it ends, and counts as neutral here.
    """
    pass_ = circuit.enter()
    if isinstance(pass_, Refusal):
        return Attempt(refusal=pass_)
    begun_s = circuit.clock()
    try:
        value = fn(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is judged and handed on
        spent_s = circuit.clock() - begun_s
        return Attempt(error=error, outcome=circuit.settle(pass_, error, raised=True, elapsed_s=spent_s))
    except BaseException:
        circuit.leave(pass_, _NEUTRAL)
        raise
    if hasattr(type(value), "__await__"):
        return Attempt(value=Settling(circuit, pass_, value, begun_s), outcome=_NEUTRAL)
    spent_s = circuit.clock() - begun_s
    return Attempt(value=value, outcome=circuit.settle(pass_, value, raised=False, elapsed_s=spent_s))


async def attempt_async(
    circuit: Circuit, fn: Callable[..., Awaitable[Any]], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Attempt:
    """The same for a coroutine function, under the time limit of the guard."""
    pass_ = await circuit.enter_async()
    if isinstance(pass_, Refusal):
        return Attempt(refusal=pass_)
    begun_s = circuit.clock()
    try:
        value = await _run(circuit, fn, args, kwargs)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is judged and handed on
        spent_s = circuit.clock() - begun_s
        return Attempt(error=error, outcome=circuit.settle(pass_, error, raised=True, elapsed_s=spent_s))
    except BaseException:
        circuit.leave(pass_, _NEUTRAL)
        raise
    spent_s = circuit.clock() - begun_s
    return Attempt(value=value, outcome=circuit.settle(pass_, value, raised=False, elapsed_s=spent_s))


async def within(limit_s: float, start: Callable[[], Awaitable[Any]], what: str) -> Any:  # noqa: ANN401
    """Await something for so long at most, under asyncio or trio.

    Args:
        limit_s: seconds.
        start: makes the awaitable.
        what: did not end in time, for the error.

    Raises:
        TimeoutError: the time is over. A cancellation from outside stays a cancellation.
    """
    import anyio

    with anyio.move_on_after(limit_s):
        return await start()
    raise TimeoutError(f"{what} within {limit_s:g} s")


async def _run(
    circuit: Circuit, fn: Callable[..., Awaitable[Any]], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:  # noqa: ANN401
    limit_s = circuit.rules.timeout_s
    if limit_s is None:
        return await fn(*args, **kwargs)
    return await within(limit_s, lambda: fn(*args, **kwargs), f"{circuit.name} has not answered")


def guarded_function(circuit: Circuit, fn: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a plain function. If it returns an awaitable, its end is the outcome."""
    core = circuit.breaker

    @wraps(fn)
    def guarded(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        pass_ = core.fast
        if pass_ is None or not circuit.straight:
            return _detour(circuit, fn, args, kwargs)
        core.calls += 1
        try:
            value = fn(*args, **kwargs)
        except BaseException as error:
            circuit.settle(pass_, error, raised=True)
            raise
        if hasattr(type(value), "__await__"):
            return Settling(circuit, pass_, value, None)
        if core.clean and core.fast is pass_:
            return value
        circuit.leave(pass_, Outcome.SUCCESS)
        return value

    return guarded


def guarded_coroutine(circuit: Circuit, fn: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """Decorate a coroutine function."""
    core = circuit.breaker

    @wraps(fn)
    async def guarded(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        pass_ = core.fast
        if pass_ is None or not circuit.straight:
            return await _detour_async(circuit, fn, args, kwargs)
        core.calls += 1
        try:
            value = await fn(*args, **kwargs)
        except BaseException as error:
            circuit.settle(pass_, error, raised=True)
            raise
        if core.clean and core.fast is pass_:
            return value
        circuit.leave(pass_, Outcome.SUCCESS)
        return value

    return guarded


def _detour(
    circuit: Circuit, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:  # noqa: ANN401
    if circuit.served is not None:
        return circuit.served.call(fn, args, kwargs)
    pass_ = circuit.admit()
    if isinstance(pass_, Refusal):
        raise GuardRefused(pass_)
    begun_s = circuit.begin()
    try:
        value = fn(*args, **kwargs)
    except BaseException as error:
        circuit.settle(pass_, error, raised=True, elapsed_s=circuit.since(begun_s))
        raise
    if hasattr(type(value), "__await__"):
        return Settling(circuit, pass_, value, begun_s)
    circuit.settle(pass_, value, raised=False, elapsed_s=circuit.since(begun_s))
    return value


async def _detour_async(
    circuit: Circuit, fn: Callable[..., Awaitable[Any]], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:  # noqa: ANN401
    if circuit.served is not None:
        return await circuit.served.call_async(fn, args, kwargs)
    pass_ = await circuit.admit_async()
    if isinstance(pass_, Refusal):
        raise GuardRefused(pass_)
    begun_s = circuit.begin()
    try:
        value = await _run(circuit, fn, args, kwargs)
    except BaseException as error:
        circuit.settle(pass_, error, raised=True, elapsed_s=circuit.since(begun_s))
        raise
    circuit.settle(pass_, value, raised=False, elapsed_s=circuit.since(begun_s))
    return value


class Settling(Coroutine[Any, Any, Any]):
    """The awaitable that a plain function has returned; its end is the outcome of the call.

    Never awaited, it gives its place back when it is dropped, as no evidence.
    """

    __slots__ = ("_begun_s", "_circuit", "_inner", "_pass", "_running")

    def __init__(self, circuit: Circuit, pass_: Pass, inner: Awaitable[Any], begun_s: float | None) -> None:
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

    def send(self, value: Any, /) -> Any:  # noqa: ANN401
        """Go on, as a task does."""
        return self._started().send(value)

    def throw(
        self,
        kind: type[BaseException] | BaseException,
        error: BaseException | object = None,
        trace: TracebackType | None = None,
        /,
    ) -> Any:  # noqa: ANN401
        """Raise something where it waits, as a cancellation does."""
        return self._started().throw(kind if error is None else error)

    def close(self) -> None:
        """End it where it stands."""
        if self._running is not None:
            self._running.close()
        self.__del__()

    def __del__(self) -> None:
        pass_, self._pass = self._pass, None
        if pass_ is not None:
            self._circuit.leave(pass_, _NEUTRAL)
