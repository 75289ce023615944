"""The object returned by ``throttle.guard(name)``: a block, a decorator, or manual permits."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, cast

from autoglm_throttle.model import BreakerView, GuardRefused, Outcome, Pass, Refusal, State
from autoglm_throttle.resilience.calls import guarded_coroutine, guarded_function
from autoglm_throttle.resilience.circuit import Circuit
from autoglm_throttle.resilience.judge import timed
from autoglm_throttle.resilience.rules import Rules
from autoglm_throttle.resilience.streams import guarded_async_generator, guarded_generator

if TYPE_CHECKING:
    from anyio import CancelScope

P = ParamSpec("P")
R = TypeVar("R")

_UNLIMITED: Final = (
    "guard {name!r} has a time limit, and nothing can interrupt a plain function: make it a coroutine "
    "function, or give the client in it a limit of its own, and this guard no timeout_s, no stream_idle_s"
)

_SPENT: Final = Pass(generation=-2)
"""Permit of a block after its end: a block cannot be entered twice."""


class Guard:
    """Handle of one guard; cheap to create, so create one per block.

    As a block (``with`` or ``async with``) it can be used once; as a decorator or by hand any number of
    times.

    Args:
        circuit: state of the guard in this process.
    """

    __slots__ = ("_begun_s", "_limit", "_pass", "circuit")

    _begun_s: float

    def __init__(self, circuit: Circuit) -> None:
        self.circuit: Circuit = circuit
        self._pass: Pass | None = None
        self._limit: CancelScope | None = None

    @property
    def name(self) -> str:
        """Name of the guard."""
        return self.circuit.name

    @property
    def rules(self) -> Rules:
        """Settings of the guard's breaker."""
        return self.circuit.rules

    def __enter__(self) -> Guard:
        if self._pass is not None:
            # A block holds one permit and one start time, so entering it twice would lose a permit.
            raise self._used()
        circuit = self.circuit
        core = circuit.breaker
        pass_ = core.fast
        if pass_ is None or not circuit.direct:
            self._pass = _SPENT
            circuit.keep_out()
            pass_ = _passed(circuit.admit())
        else:
            core.calls += 1
        self._pass = pass_
        if not circuit.untimed:
            self._begun_s = circuit.clock()
            if circuit.rules.timeout_s is not None:
                circuit.faults.say("block", "timeout_s cannot end a plain block: set a time-out inside it")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass_ = self._pass
        circuit = self.circuit
        core = circuit.breaker
        self._pass = _SPENT
        unsure = pass_ is None or core.fast is not pass_ or not core.clean
        if unsure or error is not None or not circuit.untimed:
            self._let_out(pass_, error)

    async def __aenter__(self) -> Guard:
        if self._pass is not None:
            raise self._used()
        circuit = self.circuit
        core = circuit.breaker
        pass_ = core.fast
        if pass_ is None or not circuit.direct:
            self._pass = _SPENT
            circuit.keep_out()
            pass_ = _passed(await circuit.admit_async())
        else:
            core.calls += 1
        self._pass = pass_
        if not circuit.untimed:
            self._begun_s = circuit.clock()
            self._limit = _limit(circuit.rules.timeout_s)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass_ = self._pass
        circuit = self.circuit
        core = circuit.breaker
        self._pass = _SPENT
        unsure = pass_ is None or core.fast is not pass_ or not core.clean
        if unsure or error is not None or not circuit.untimed:
            ended = error
            if self._limit is not None and pass_ is not None:
                ended = self._in_time(self._limit, pass_, error)
            self._let_out(pass_, ended)
            if ended is not None and ended is not error:
                raise ended from error

    def _in_time(self, limit: CancelScope, pass_: Pass, error: BaseException | None) -> BaseException | None:
        """Return the block's exception, with its time limit applied."""
        try:
            limit.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)
        except BaseException:
            self.circuit.leave(pass_, Outcome.NEUTRAL)
            raise
        if not limit.cancelled_caught:
            return error
        return TimeoutError(f"{self.name} has not answered within {self.rules.timeout_s:g} s")

    def _let_out(self, pass_: Pass | None, error: BaseException | None) -> None:
        if pass_ is None or pass_ is _SPENT:
            raise RuntimeError(f"the block of guard {self.name!r} is left, but it was not entered")
        circuit = self.circuit
        elapsed_s = 0.0 if circuit.slow_s is None else circuit.clock() - self._begun_s
        if error is None:
            circuit.leave(pass_, timed(Outcome.SUCCESS, elapsed_s, circuit.slow_s))
        else:
            circuit.settle(pass_, error, raised=True, elapsed_s=elapsed_s)

    def _used(self) -> RuntimeError:
        return RuntimeError(
            f"this block of guard {self.name!r} was entered before: a block serves once, so call "
            "throttle.guard(name) for each block"
        )

    def __call__(self, fn: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function; its signature stays.

        Args:
            fn: a plain or coroutine function, a generator function of either kind, a partial of one, or an
                object with such a ``__call__``. A plain function that returns an awaitable settles when that
                ends.

        Raises:
            TypeError: the guard has a time limit, but ``fn`` cannot be interrupted; or a fallback that ``fn``
                cannot await.
        """
        return decorated(self.circuit, fn)

    def allow(self) -> Pass | Refusal:
        """Request one call by hand; settle a returned GuardPermit exactly once, in a ``finally``.

        A permit that is never settled keeps its slot: that of a probe until its lease expires, and with
        ``max_in_flight`` any other until the state changes. ``view().in_flight`` shows the number of held
        slots. A block or a decorated function always returns its slot.
        """
        return self.circuit.admit()

    async def allow_async(self) -> Pass | Refusal:
        """Request one call as `allow` does, without blocking the event loop on the fleet's store."""
        return await self.circuit.admit_async()

    def settle(
        self, pass_: Pass, outcome: Outcome = Outcome.SUCCESS, error: BaseException | str | None = None
    ) -> None:
        """Record the outcome of a call admitted by `allow`. Never waits.

        Args:
            permit: from `allow`.
            outcome: of the call.
            error: the exception or the text of the failure, for ``last_failure``.

        Raises:
            ValueError: unknown outcome; the call then counts as neutral.
        """
        try:
            outcome = Outcome(outcome)
        except ValueError:
            self.circuit.leave(pass_, Outcome.NEUTRAL)
            raise
        self.circuit.leave(pass_, outcome, error)

    def refuses(self) -> Refusal | None:
        """Return the rejection of a call made now, or None. Has no effects."""
        return self.circuit.refuses()

    def state(self) -> State:
        """Return the state visible to callers."""
        return self.circuit.state()

    def view(self) -> BreakerView:
        """Return an immutable view of the breaker."""
        return self.circuit.view()

    def force_open(self) -> None:
        """Reject all calls until the next operator command."""
        self.circuit.force_open()

    def disable(self) -> None:
        """Admit all calls and count nothing until the next operator command."""
        self.circuit.disable()

    def metrics_only(self) -> None:
        """Admit all calls and count those that would be rejected; in this process only."""
        self.circuit.metrics_only()

    def reset(self) -> None:
        """Reset to closed and discard all results."""
        self.circuit.reset()

    def __repr__(self) -> str:
        return f"<Guard {self.name!r} {self.circuit.breaker!r}>"


def _limit(limit_s: float | None) -> CancelScope | None:
    """Start the time limit of a block; None: it has none."""
    if limit_s is None:
        return None
    import anyio

    return anyio.move_on_after(limit_s).__enter__()


def _passed(pass_: Pass | Refusal) -> Pass:
    if isinstance(pass_, Refusal):
        raise GuardRefused(pass_)
    return pass_


def decorated(circuit: Circuit, fn: Callable[P, R]) -> Callable[P, R]:
    """Guard a function of any kind; see `Guard.__call__`."""
    if isinstance(fn, staticmethod | classmethod):
        return type(fn)(decorated(circuit, fn.__func__))
    if _is(inspect.isasyncgenfunction, fn):
        return guarded_async_generator(circuit, fn)
    asynchronous = _is(inspect.iscoroutinefunction, fn)
    stream = _is(inspect.isgeneratorfunction, fn)
    if circuit.served is not None and not stream:
        circuit.served.fit(asynchronous=asynchronous)
    if asynchronous:
        return guarded_coroutine(circuit, cast("Callable[..., Awaitable[Any]]", fn))
    rules = circuit.rules
    if rules.timeout_s is not None or (stream and rules.stream_idle_s is not None):
        raise TypeError(_UNLIMITED.format(name=circuit.name))
    return guarded_generator(circuit, fn) if stream else guarded_function(circuit, fn)


def _is(kind: Callable[[object], bool], fn: object) -> bool:
    while isinstance(fn, partial):
        fn = fn.func
    return kind(fn) or kind(getattr(type(fn), "__call__", None))  # noqa: B004 - inspected only
