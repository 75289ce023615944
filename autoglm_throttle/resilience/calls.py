"""Guarded function calls: one attempt as a value, and the fast path of the decorator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final

from autoglm_throttle.model import GuardRefused, Outcome, Refusal
from autoglm_throttle.resilience.circuit import Circuit
from autoglm_throttle.resilience.settling import settling

_NEUTRAL: Final = Outcome.NEUTRAL
_SUCCESS: Final = Outcome.SUCCESS

Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]


@dataclass(slots=True)
class Attempt:
    """Result of one call."""

    value: Any = None
    error: Exception | None = None
    """Exception of the function; None after a rejection."""
    outcome: Outcome | None = None
    """Recorded outcome; None: the call was rejected."""
    refusal: Refusal | None = None


def attempt(circuit: Circuit, fn: Callable[..., Any], args: Args, kwargs: Kwargs) -> Attempt:
    """Request a permit, call, classify and record, without a fallback.

    An awaitable value settles when it ends and is neutral until then. A `BaseException` that is no
    `Exception` is recorded as neutral and raised.
    """
    core = circuit.breaker
    pass_ = core.fast if circuit.met else None
    if pass_ is None:
        asked = circuit.enter()
        if isinstance(asked, Refusal):
            return Attempt(refusal=asked)
        pass_ = asked
    else:
        core.calls += 1
    begun_s = circuit.begin()
    try:
        value = fn(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - classified and returned
        elapsed_s = circuit.since(begun_s)
        return Attempt(error=error, outcome=circuit.settle(pass_, error, raised=True, elapsed_s=elapsed_s))
    except BaseException:
        circuit.leave(pass_, _NEUTRAL)
        raise
    if hasattr(type(value), "__await__"):
        return Attempt(value=settling(circuit, pass_, value, begun_s), outcome=_NEUTRAL)
    # Fast path without a lock: the success changes nothing and the state has not changed.
    if circuit.usual and core.clean and core.fast is pass_:
        return Attempt(value=value, outcome=_SUCCESS)
    elapsed_s = circuit.since(begun_s)
    return Attempt(value=value, outcome=circuit.settle(pass_, value, raised=False, elapsed_s=elapsed_s))


async def attempt_async(
    circuit: Circuit, fn: Callable[..., Awaitable[Any]], args: Args, kwargs: Kwargs
) -> Attempt:
    """Make one attempt at a coroutine function as `attempt` does, under the guard's time limit."""
    core = circuit.breaker
    pass_ = core.fast if circuit.met else None
    if pass_ is None:
        asked = await circuit.enter_async()
        if isinstance(asked, Refusal):
            return Attempt(refusal=asked)
        pass_ = asked
    else:
        core.calls += 1
    unlimited = circuit.rules.timeout_s is None
    begun_s = circuit.begin()
    try:
        value = await (fn(*args, **kwargs) if unlimited else _in_time(circuit, fn, args, kwargs))
    except Exception as error:  # noqa: BLE001 - classified and returned
        elapsed_s = circuit.since(begun_s)
        return Attempt(error=error, outcome=circuit.settle(pass_, error, raised=True, elapsed_s=elapsed_s))
    except BaseException:
        circuit.leave(pass_, _NEUTRAL)
        raise
    if circuit.usual and core.clean and core.fast is pass_:
        return Attempt(value=value, outcome=_SUCCESS)
    elapsed_s = circuit.since(begun_s)
    return Attempt(value=value, outcome=circuit.settle(pass_, value, raised=False, elapsed_s=elapsed_s))


async def within(limit_s: float, start: Callable[[], Awaitable[Any]], what: str) -> Any:  # noqa: ANN401
    """Await with a time limit, under asyncio or trio.

    Args:
        limit_s: seconds.
        start: creates the awaitable.
        description: text of the error, before the limit.

    Raises:
        TimeoutError: the limit is exceeded. A cancellation from outside stays a cancellation.
    """
    import anyio

    with anyio.move_on_after(limit_s):
        return await start()
    raise TimeoutError(f"{what} within {limit_s:g} s")


async def _in_time(circuit: Circuit, fn: Callable[..., Awaitable[Any]], args: Args, kwargs: Kwargs) -> Any:  # noqa: ANN401
    limit_s = circuit.rules.timeout_s
    if limit_s is None:
        return await fn(*args, **kwargs)
    return await within(limit_s, lambda: fn(*args, **kwargs), f"{circuit.name} has not answered")


def guarded_function(circuit: Circuit, fn: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a plain function. The outcome of a returned awaitable is the outcome of the call."""
    core = circuit.breaker
    usual = circuit.usual

    @wraps(fn)
    def guarded(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        pass_ = core.fast
        if pass_ is None or not circuit.direct:
            served = circuit.served
            if served is not None:
                return served.call(fn, args, kwargs)
            circuit.keep_out()
            return _asked(circuit, fn, args, kwargs)
        core.calls += 1
        begun_s = 0.0 if usual else circuit.begin()
        try:
            value = fn(*args, **kwargs)
        except BaseException as error:
            circuit.settle(pass_, error, raised=True, elapsed_s=circuit.since(begun_s))
            raise
        if hasattr(type(value), "__await__"):
            return settling(circuit, pass_, value, begun_s)
        if not (usual and core.clean and core.fast is pass_):
            circuit.settle(pass_, value, raised=False, elapsed_s=circuit.since(begun_s))
        return value

    return guarded


def guarded_coroutine(circuit: Circuit, fn: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """Decorate a coroutine function."""
    core, clock = circuit.breaker, circuit.clock
    usual, timed = circuit.usual, circuit.slow_s is not None
    unlimited = circuit.rules.timeout_s is None

    @wraps(fn)
    async def guarded(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        pass_ = core.fast
        if pass_ is None or not circuit.direct:
            served = circuit.served
            if served is not None:
                return await served.call_async(fn, args, kwargs)
            circuit.keep_out()
            return await _asked_async(circuit, fn, args, kwargs)
        core.calls += 1
        begun_s = clock() if timed else 0.0
        try:
            value = await (fn(*args, **kwargs) if unlimited else _in_time(circuit, fn, args, kwargs))
        except BaseException as error:
            circuit.settle(pass_, error, raised=True, elapsed_s=circuit.since(begun_s))
            raise
        if not (usual and core.clean and core.fast is pass_):
            elapsed_s = clock() - begun_s if timed else 0.0
            circuit.settle(pass_, value, raised=False, elapsed_s=elapsed_s)
        return value

    return guarded


def _asked(circuit: Circuit, fn: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:  # noqa: ANN401
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
        return settling(circuit, pass_, value, begun_s)
    circuit.settle(pass_, value, raised=False, elapsed_s=circuit.since(begun_s))
    return value


async def _asked_async(
    circuit: Circuit, fn: Callable[..., Awaitable[Any]], args: Args, kwargs: Kwargs
) -> Any:  # noqa: ANN401
    pass_ = await circuit.admit_async()
    if isinstance(pass_, Refusal):
        raise GuardRefused(pass_)
    begun_s = circuit.begin()
    try:
        value = await _in_time(circuit, fn, args, kwargs)
    except BaseException as error:
        circuit.settle(pass_, error, raised=True, elapsed_s=circuit.since(begun_s))
        raise
    circuit.settle(pass_, value, raised=False, elapsed_s=circuit.since(begun_s))
    return value
