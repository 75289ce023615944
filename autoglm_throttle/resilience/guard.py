"""The object returned by ``throttle.guard(name)``: a block, a decorator, or manual permits."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, cast

from autoglm_throttle.resilience.calls import guarded_coroutine, guarded_function
from autoglm_throttle.resilience.classify import apply_slow_limit
from autoglm_throttle.resilience.fallback import is_function
from autoglm_throttle.resilience.state import GuardState, require_permit
from autoglm_throttle.resilience.streams import guarded_async_generator, guarded_generator
from autoglm_throttle.resilience.transitions import BreakerEvent
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import BreakerState, BreakerView, GuardPermit, GuardRejection, Outcome

if TYPE_CHECKING:
    from anyio import CancelScope

P = ParamSpec("P")
R = TypeVar("R")

_TIME_LIMIT_ERROR: Final = (
    "guard {name!r} has a time limit, and nothing can interrupt a plain function: make it a coroutine "
    "function, or give the client in it a limit of its own, and this guard no timeout_s, no stream_idle_s"
)

_REUSED: Final = (
    "this block of guard {name!r} was entered before: a block serves once, so call throttle.guard(name) for "
    "each block"
)

# Permit of a block after its end: a block cannot be entered twice.
_USED_PERMIT: Final = GuardPermit(generation=-2)


class Guard:
    """Handle of one guard; cheap to create, so create one per block.

    As a block (``with`` or ``async with``) it can be used once; as a decorator or by hand any number of
    times.
    """

    __slots__ = ("_begun_s", "_limit", "_permit", "circuit")

    _begun_s: float

    def __init__(self, circuit: GuardState) -> None:
        self.circuit: GuardState = circuit
        self._permit: GuardPermit | None = None
        self._limit: CancelScope | None = None

    @property
    def name(self) -> str:
        """Name of the guard."""
        return self.circuit.name

    @property
    def settings(self) -> BreakerSettings:
        """Settings of the guard's breaker."""
        return self.circuit.settings

    def __enter__(self) -> Guard:
        if self._permit is not None:
            # A block holds one permit and one start time, so entering it twice would lose a permit.
            raise RuntimeError(_REUSED.format(name=self.name))
        circuit = self.circuit
        fast = circuit.fast
        permit = fast.permit
        if permit is None or not fast.is_direct:
            self._permit = _USED_PERMIT
            circuit.block()
            permit = require_permit(circuit.allow(sheds=True))
        else:
            fast.calls += 1
        self._permit = permit
        if not fast.is_untimed:
            self._begun_s = circuit.clock()
            if circuit.timeout_s is not None:
                circuit.fault_log.warn(
                    "block", "timeout_s cannot end a plain block: set a time-out inside it"
                )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        permit, fast = self._permit, self.circuit.fast
        self._permit = _USED_PERMIT
        needs_settling = permit is None or fast.noop_permit is not permit
        if needs_settling or error is not None or not fast.is_untimed:
            self._settle_block(permit, error)

    async def __aenter__(self) -> Guard:
        if self._permit is not None:
            raise RuntimeError(_REUSED.format(name=self.name))
        circuit = self.circuit
        fast = circuit.fast
        permit = fast.permit
        if permit is None or not fast.is_direct:
            self._permit = _USED_PERMIT
            circuit.block()
            permit = require_permit(await circuit.allow_async(sheds=True))
        else:
            fast.calls += 1
        self._permit = permit
        if not fast.is_untimed:
            self._begun_s = circuit.clock()
            if circuit.timeout_s is not None:
                import anyio

                self._limit = anyio.move_on_after(circuit.timeout_s).__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        permit, fast = self._permit, self.circuit.fast
        self._permit = _USED_PERMIT
        needs_settling = permit is None or fast.noop_permit is not permit
        if needs_settling or error is not None or not fast.is_untimed:
            ended = error
            if self._limit is not None and permit is not None:
                ended = self._apply_time_limit(self._limit, permit, error)
            self._settle_block(permit, ended)
            if ended is not None and ended is not error:
                raise ended from error

    def _apply_time_limit(
        self, limit: CancelScope, permit: GuardPermit, error: BaseException | None
    ) -> BaseException | None:
        """Return the block's exception, with its time limit applied."""
        try:
            limit.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)
        except BaseException:
            self.circuit.record(permit, Outcome.NEUTRAL)
            raise
        if not limit.cancelled_caught:
            return error
        return TimeoutError(f"{self.name} has not answered within {self.circuit.timeout_s:g} s")

    def _settle_block(self, permit: GuardPermit | None, error: BaseException | None) -> None:
        if permit is None or permit is _USED_PERMIT:
            raise RuntimeError(f"the block of guard {self.name!r} is left, but it was not entered")
        circuit = self.circuit
        slow_s = circuit.slow_call_s
        if error is not None:
            circuit.settle(permit, error, raised=True, begun_s=None if slow_s is None else self._begun_s)
        else:
            elapsed_s = 0.0 if slow_s is None else circuit.clock() - self._begun_s
            circuit.record(permit, apply_slow_limit(Outcome.SUCCESS, elapsed_s, slow_s))

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
        return decorate(self.circuit, fn)

    def allow(self) -> GuardPermit | GuardRejection:
        """Request one call by hand; settle a returned GuardPermit exactly once, in a ``finally``.

        A permit that is never settled keeps its slot until its lease expires: that of a probe, and with
        ``max_in_flight`` any other. ``view().in_flight`` shows the number of held slots. A block or a
        decorated function always returns its slot.
        """
        return self.circuit.allow(sheds=True)

    async def allow_async(self) -> GuardPermit | GuardRejection:
        """Request one call as `allow` does, without blocking the event loop on the fleet's store."""
        return await self.circuit.allow_async(sheds=True)

    def settle(
        self,
        permit: GuardPermit,
        outcome: Outcome = Outcome.SUCCESS,
        error: BaseException | str | None = None,
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
            self.circuit.record(permit, Outcome.NEUTRAL)
            raise
        self.circuit.record(permit, outcome, error)

    def is_available(self) -> bool:
        """Return whether a call would be made now: neither shed by the load nor rejected."""
        return self.circuit.rejection() is None

    def rejection(self) -> GuardRejection | None:
        """Return the rejection of a call made now, or None. Has no effects."""
        return self.circuit.rejection()

    def state(self) -> BreakerState:
        """Return the state visible to callers."""
        return self.circuit.state()

    def view(self) -> BreakerView:
        """Return an immutable view of the breaker."""
        return self.circuit.view()

    def force_open(self) -> None:
        """Reject all calls until the next operator command."""
        self.circuit.breaker.operate(BreakerEvent.FORCE)

    def disable(self) -> None:
        """Admit all calls and count nothing until the next operator command."""
        self.circuit.breaker.operate(BreakerEvent.DISABLE)

    def metrics_only(self) -> None:
        """Admit all calls and count those that would be rejected; in this process only."""
        self.circuit.breaker.operate(BreakerEvent.METRICS_ONLY)

    def reset(self) -> None:
        """Reset to closed and discard all results."""
        self.circuit.breaker.operate(BreakerEvent.RESET)

    def __repr__(self) -> str:
        view = self.view()
        return f"<Guard {view.name!r} {view.state}, {view.streak} failures in a row, gen {view.generation}>"


def decorate(circuit: GuardState, fn: Callable[P, R]) -> Callable[P, R]:
    """Guard a function of any kind; see `Guard.__call__`."""
    if isinstance(fn, staticmethod | classmethod):
        return type(fn)(decorate(circuit, fn.__func__))
    if is_function(inspect.isasyncgenfunction, fn):
        return guarded_async_generator(circuit, fn)
    asynchronous = is_function(inspect.iscoroutinefunction, fn)
    stream = is_function(inspect.isgeneratorfunction, fn)
    if circuit.executor is not None and not stream:
        circuit.executor.check_function(asynchronous=asynchronous)
    if asynchronous:
        return guarded_coroutine(circuit, cast("Callable[..., Awaitable[Any]]", fn))
    if circuit.timeout_s is not None or (stream and circuit.stream_idle_s is not None):
        raise TypeError(_TIME_LIMIT_ERROR.format(name=circuit.name))
    return guarded_generator(circuit, fn) if stream else guarded_function(circuit, fn)
