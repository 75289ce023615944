"""Guarded function calls: one attempt as a value, and the fast path of the decorator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final

from autoglm_throttle.resilience.guard_state import GuardState
from autoglm_throttle.resilience.settling_awaitable import wrap_awaitable
from autoglm_throttle.types import GuardRejected, GuardRejection, Outcome

_NEUTRAL: Final = Outcome.NEUTRAL
_SUCCESS: Final = Outcome.SUCCESS

Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]


@dataclass(slots=True)
class GuardedAttempt:
    """Result of one call."""

    value: Any = None
    error: Exception | None = None
    """Exception of the function; None after a rejection."""
    outcome: Outcome | None = None
    """Recorded outcome; None: the call was rejected."""
    rejection: GuardRejection | None = None


def attempt(circuit: GuardState, fn: Callable[..., Any], args: Args, kwargs: Kwargs) -> GuardedAttempt:
    """Request a permit, call, classify and record, without a fallback.

    An awaitable value settles when it ends and is neutral until then. A `BaseException` that is no
    `Exception` is recorded as neutral and raised.
    """
    fast = circuit.fast
    permit = fast.permit if fast.is_synced else None
    if permit is None:
        decision = circuit.allow()
        if isinstance(decision, GuardRejection):
            return GuardedAttempt(rejection=decision)
        permit = decision
    else:
        fast.calls += 1
    begun_s = circuit.start_time()
    try:
        value = fn(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - classified and returned
        elapsed_s = circuit.elapsed(begun_s)
        return GuardedAttempt(
            error=error, outcome=circuit.settle(permit, error, raised=True, elapsed_s=elapsed_s)
        )
    except BaseException:
        circuit.record(permit, _NEUTRAL)
        raise
    if hasattr(type(value), "__await__"):
        return GuardedAttempt(value=wrap_awaitable(circuit, permit, value, begun_s), outcome=_NEUTRAL)
    # Fast path without a lock: the success changes nothing and the state has not changed.
    if circuit.value_is_success and fast.success_is_noop and fast.permit is permit:
        return GuardedAttempt(value=value, outcome=_SUCCESS)
    elapsed_s = circuit.elapsed(begun_s)
    return GuardedAttempt(
        value=value, outcome=circuit.settle(permit, value, raised=False, elapsed_s=elapsed_s)
    )


async def attempt_async(
    circuit: GuardState, fn: Callable[..., Awaitable[Any]], args: Args, kwargs: Kwargs
) -> GuardedAttempt:
    """Make one attempt at a coroutine function as `attempt` does, under the guard's time limit."""
    fast = circuit.fast
    permit = fast.permit if fast.is_synced else None
    if permit is None:
        decision = await circuit.allow_async()
        if isinstance(decision, GuardRejection):
            return GuardedAttempt(rejection=decision)
        permit = decision
    else:
        fast.calls += 1
    unlimited = circuit.timeout_s is None
    begun_s = circuit.start_time()
    try:
        value = await (fn(*args, **kwargs) if unlimited else _call_within_timeout(circuit, fn, args, kwargs))
    except Exception as error:  # noqa: BLE001 - classified and returned
        elapsed_s = circuit.elapsed(begun_s)
        return GuardedAttempt(
            error=error, outcome=circuit.settle(permit, error, raised=True, elapsed_s=elapsed_s)
        )
    except BaseException:
        circuit.record(permit, _NEUTRAL)
        raise
    if circuit.value_is_success and fast.success_is_noop and fast.permit is permit:
        return GuardedAttempt(value=value, outcome=_SUCCESS)
    elapsed_s = circuit.elapsed(begun_s)
    return GuardedAttempt(
        value=value, outcome=circuit.settle(permit, value, raised=False, elapsed_s=elapsed_s)
    )


async def await_within(limit_s: float, start: Callable[[], Awaitable[Any]], description: str) -> Any:  # noqa: ANN401
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
    raise TimeoutError(f"{description} within {limit_s:g} s")


async def _call_within_timeout(
    circuit: GuardState, fn: Callable[..., Awaitable[Any]], args: Args, kwargs: Kwargs
) -> Any:  # noqa: ANN401
    limit_s = circuit.timeout_s
    if limit_s is None:
        return await fn(*args, **kwargs)
    return await await_within(limit_s, lambda: fn(*args, **kwargs), f"{circuit.name} has not answered")


def guarded_function(circuit: GuardState, fn: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a plain function. The outcome of a returned awaitable is the outcome of the call."""
    fast = circuit.fast
    value_is_success = circuit.value_is_success

    @wraps(fn)
    def guarded(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        permit = fast.permit
        if permit is None or not fast.is_direct:
            executor = circuit.executor
            if executor is not None:
                return executor.call(fn, args, kwargs)
            circuit.block()
            return _call_admitted(circuit, fn, args, kwargs)
        fast.calls += 1
        begun_s = 0.0 if value_is_success else circuit.start_time()
        try:
            value = fn(*args, **kwargs)
        except BaseException as error:
            circuit.settle(permit, error, raised=True, elapsed_s=circuit.elapsed(begun_s))
            raise
        if hasattr(type(value), "__await__"):
            return wrap_awaitable(circuit, permit, value, begun_s)
        if not (value_is_success and fast.success_is_noop and fast.permit is permit):
            circuit.settle(permit, value, raised=False, elapsed_s=circuit.elapsed(begun_s))
        return value

    return guarded


def guarded_coroutine(circuit: GuardState, fn: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """Decorate a coroutine function."""
    fast, clock = circuit.fast, circuit.clock
    value_is_success, is_timed = circuit.value_is_success, circuit.slow_call_s is not None
    unlimited = circuit.timeout_s is None

    @wraps(fn)
    async def guarded(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        permit = fast.permit
        if permit is None or not fast.is_direct:
            executor = circuit.executor
            if executor is not None:
                return await executor.call_async(fn, args, kwargs)
            circuit.block()
            return await _call_admitted_async(circuit, fn, args, kwargs)
        fast.calls += 1
        begun_s = clock() if is_timed else 0.0
        try:
            value = await (
                fn(*args, **kwargs) if unlimited else _call_within_timeout(circuit, fn, args, kwargs)
            )
        except BaseException as error:
            circuit.settle(permit, error, raised=True, elapsed_s=circuit.elapsed(begun_s))
            raise
        if not (value_is_success and fast.success_is_noop and fast.permit is permit):
            elapsed_s = clock() - begun_s if is_timed else 0.0
            circuit.settle(permit, value, raised=False, elapsed_s=elapsed_s)
        return value

    return guarded


def _call_admitted(circuit: GuardState, fn: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:  # noqa: ANN401
    permit = circuit.admit()
    if isinstance(permit, GuardRejection):
        raise GuardRejected(permit)
    begun_s = circuit.start_time()
    try:
        value = fn(*args, **kwargs)
    except BaseException as error:
        circuit.settle(permit, error, raised=True, elapsed_s=circuit.elapsed(begun_s))
        raise
    if hasattr(type(value), "__await__"):
        return wrap_awaitable(circuit, permit, value, begun_s)
    circuit.settle(permit, value, raised=False, elapsed_s=circuit.elapsed(begun_s))
    return value


async def _call_admitted_async(
    circuit: GuardState, fn: Callable[..., Awaitable[Any]], args: Args, kwargs: Kwargs
) -> Any:  # noqa: ANN401
    permit = await circuit.admit_async()
    if isinstance(permit, GuardRejection):
        raise GuardRejected(permit)
    begun_s = circuit.start_time()
    try:
        value = await _call_within_timeout(circuit, fn, args, kwargs)
    except BaseException as error:
        circuit.settle(permit, error, raised=True, elapsed_s=circuit.elapsed(begun_s))
        raise
    circuit.settle(permit, value, raised=False, elapsed_s=circuit.elapsed(begun_s))
    return value
