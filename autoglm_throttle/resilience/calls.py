"""Guarded function calls: one attempt as a value, the decorators, and awaitables that settle at their end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from types import TracebackType
from typing import Any, Final

from autoglm_throttle.resilience.classify import STATUSLESS, is_plain, value_outcome
from autoglm_throttle.resilience.fallback import UNSET
from autoglm_throttle.resilience.state import GuardState
from autoglm_throttle.types import BreakerState, GuardPermit, GuardRejected, GuardRejection, Outcome

_NEUTRAL: Final = Outcome.NEUTRAL
_SUCCESS: Final = Outcome.SUCCESS

Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]


@dataclass(slots=True)
class GuardedAttempt:
    """Result of one call."""

    value: Any = None
    error: Exception | None = None  # Exception of the function; None after a rejection
    outcome: Outcome | None = None  # Recorded outcome; None: the call was rejected
    rejection: GuardRejection | None = None

    def unwrap(self) -> Any:  # noqa: ANN401
        """Return the value, or raise the exception or the rejection."""
        if self.rejection is not None:
            raise GuardRejected(self.rejection)
        error = self.error
        if error is None:
            return self.value
        try:
            raise error
        finally:
            del self, error  # breaks the reference cycle: exception, traceback, frame


@dataclass(frozen=True, slots=True)
class CallResult:
    """Result of one live call, for all callers that waited for it."""

    attempt: GuardedAttempt
    copy: object = UNSET  # Copy of the value for the other callers; `UNSET` if it cannot be shared
    # Limits of the caller after a time-out: only for callers with limits that are no longer. Empty: for all.
    limits: tuple[float, ...] = ()
    # Traceback of the exception; each caller that raises it again starts with this one.
    trace: TracebackType | None = None


class GuardTimeoutError(TimeoutError):
    """A call has exceeded the time limit of its guard."""


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
        outcome = circuit.settle(permit, error, raised=True, begun_s=begun_s)
        return GuardedAttempt(error=error, outcome=outcome)
    except BaseException:
        circuit.record(permit, _NEUTRAL)
        raise
    has_no_status = is_plain(value)
    if not has_no_status and hasattr(type(value), "__await__"):
        return GuardedAttempt(value=wrap_awaitable(circuit, permit, value, begun_s), outcome=_NEUTRAL)
    # Fast path without a lock: the success changes nothing and the state has not changed.
    is_noop = circuit.value_is_success and fast.noop_permit is permit
    if is_noop and (has_no_status or value_outcome(value) is _SUCCESS):
        return GuardedAttempt(value=value, outcome=_SUCCESS)
    return GuardedAttempt(value=value, outcome=circuit.settle(permit, value, raised=False, begun_s=begun_s))


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
    limit_s = circuit.timeout_s
    begun_s = circuit.start_time()
    try:
        if limit_s is None:
            value = await fn(*args, **kwargs)
        else:
            call = partial(fn, *args, **kwargs)
            value = await await_within(limit_s, call, f"{circuit.name} has not answered")
    except Exception as error:  # noqa: BLE001 - classified and returned
        outcome = circuit.settle(permit, error, raised=True, begun_s=begun_s)
        return GuardedAttempt(error=error, outcome=outcome)
    except BaseException:
        circuit.record(permit, _NEUTRAL)
        raise
    is_noop = circuit.value_is_success and fast.noop_permit is permit
    if is_noop and (is_plain(value) or value_outcome(value) is _SUCCESS):
        return GuardedAttempt(value=value, outcome=_SUCCESS)
    return GuardedAttempt(value=value, outcome=circuit.settle(permit, value, raised=False, begun_s=begun_s))


async def await_within(limit_s: float, start: Callable[[], Awaitable[Any]], description: str) -> Any:  # noqa: ANN401
    """Await, or raise GuardTimeoutError after the limit; a cancellation from outside stays one."""
    import anyio

    with anyio.move_on_after(limit_s):
        return await start()
    raise GuardTimeoutError(f"{description} within {limit_s:g} s")


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
            return attempt(circuit, fn, args, kwargs).unwrap()
        fast.calls += 1
        begun_s = 0.0 if value_is_success else circuit.start_time()
        try:
            value = fn(*args, **kwargs)
        except BaseException as error:
            circuit.settle(permit, error, raised=True, begun_s=begun_s)
            raise
        has_no_status = type(value) in STATUSLESS or is_plain(value)
        if not has_no_status and hasattr(type(value), "__await__"):
            return wrap_awaitable(circuit, permit, value, begun_s)
        is_noop = value_is_success and fast.noop_permit is permit
        if not (is_noop and (has_no_status or value_outcome(value) is _SUCCESS)):
            circuit.settle(permit, value, raised=False, begun_s=begun_s)
        return value

    return guarded


def guarded_coroutine(circuit: GuardState, fn: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """Decorate a coroutine function."""
    fast, clock = circuit.fast, circuit.clock
    value_is_success, is_timed = circuit.value_is_success, circuit.slow_call_s is not None
    limit_s, not_answered = circuit.timeout_s, f"{circuit.name} has not answered"

    @wraps(fn)
    async def guarded(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        permit = fast.permit
        if permit is None or not fast.is_direct:
            executor = circuit.executor
            if executor is not None:
                return await executor.call_async(fn, args, kwargs)
            circuit.block()
            return (await attempt_async(circuit, fn, args, kwargs)).unwrap()
        fast.calls += 1
        begun_s = clock() if is_timed else 0.0
        try:
            if limit_s is None:
                value = await fn(*args, **kwargs)
            else:
                value = await await_within(limit_s, partial(fn, *args, **kwargs), not_answered)
        except BaseException as error:
            circuit.settle(permit, error, raised=True, begun_s=begun_s)
            raise
        if not (
            value_is_success
            and fast.noop_permit is permit
            and (type(value) in STATUSLESS or is_plain(value) or value_outcome(value) is _SUCCESS)
        ):
            circuit.settle(permit, value, raised=False, begun_s=begun_s)
        return value

    return guarded


class PendingCall:
    """A call in flight, settled once: of an awaitable, a stream or a response body; neutral if it is dropped.

    As a context manager it spans a stream. There ``slow_call_s`` does not apply, since the duration of a
    stream depends on its consumer too.
    """

    __slots__ = ("_begun_s", "_circuit", "_permit", "_slow", "awaits_first_item")

    def __init__(self, circuit: GuardState, permit: GuardPermit, begun_s: float) -> None:
        self._circuit = circuit
        self._permit: GuardPermit | None = permit
        self._slow = False
        self._begun_s = begun_s
        # Whether the first item matters for the outcome.
        self.awaits_first_item: bool = circuit.first_item_s is not None or circuit.settles_at_first_item

    def __enter__(self) -> PendingCall:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.record_end()
        else:
            self.settle(error, raised=True, is_stream=True)

    def __del__(self) -> None:
        self.record(Outcome.NEUTRAL)

    def settle(self, result: object, *, raised: bool, is_stream: bool = False) -> Outcome | None:
        """Classify and record the result; return its outcome, None if it had one."""
        permit, self._permit = self._permit, None
        begun_s = None if is_stream else self._begun_s
        if permit is None:
            return None
        return self._circuit.settle(permit, result, raised=raised, begun_s=begun_s)

    def record_first_item(self) -> None:
        """Record the first item, or the end of an empty body: it may be slow, and it may settle a probe."""
        self.awaits_first_item = False
        circuit, permit, limit_s = self._circuit, self._permit, self._circuit.first_item_s
        self._slow = limit_s is not None and circuit.clock() - self._begun_s > limit_s
        # A serial above 0 also marks a bounded ordinary call, so the state decides too.
        is_probe = permit is not None and permit.serial > 0
        if circuit.settles_at_first_item and is_probe and circuit.state() is BreakerState.HALF_OPEN:
            self.record_end()

    def record_end(self) -> None:
        """Record the end of the stream."""
        self.record(Outcome.SLOW if self._slow else Outcome.SUCCESS)

    def record(self, outcome: Outcome) -> None:
        """Record the outcome of the stream, unless there is one already."""
        permit, self._permit = self._permit, None
        if permit is not None:
            self._circuit.record(permit, outcome)


async def _await_and_settle(call: PendingCall, inner: Awaitable[Any]) -> Any:  # noqa: ANN401
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
    """

    __slots__ = ("_call", "_inner", "_running")

    def __init__(
        self, circuit: GuardState, permit: GuardPermit, inner: Awaitable[Any], begun_s: float
    ) -> None:
        self._call = PendingCall(circuit, permit, begun_s)
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
            self._call.record(_NEUTRAL)  # an unstarted coroutine never runs its handler
            raise

    def close(self) -> None:
        """Close the awaitable and settle the call as neutral."""
        # Closing an unstarted wrapper does not close the inner coroutine: close it explicitly.
        if self._running is not None:
            self._running.close()
        elif isinstance(self._inner, Coroutine):
            self._inner.close()
        self._call.record(_NEUTRAL)


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
