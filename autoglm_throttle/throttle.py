"""The throttle: every limit of a service, and the GPU telemetry that steers them. Contains no algorithm."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import anyio

from autoglm_throttle import events
from autoglm_throttle._runtime import weak_method
from autoglm_throttle._runtime.fork import keep_parent_part, rebuild_after_fork
from autoglm_throttle._runtime.wakeup import DisconnectWait
from autoglm_throttle.admission import factory
from autoglm_throttle.admission.controller import AdmissionController
from autoglm_throttle.admission.permit import Permit, Rejection
from autoglm_throttle.admission.snapshot import Snapshot, take_snapshot
from autoglm_throttle.gpu.sanity import drop_implausible
from autoglm_throttle.limiting.engine_limits import NO_ENGINE
from autoglm_throttle.limiting.ticket import Ticket
from autoglm_throttle.settings import BreakerSettings, Settings, SettingSource, settings_table
from autoglm_throttle.types import (
    BatcherView,
    BreakerTransition,
    Clock,
    ControlState,
    Criticality,
    CriticalityName,
    Demand,
    EngineCapacity,
    GpuProvider,
    GpuSample,
    Rejected,
    TokenCost,
)

if TYPE_CHECKING:
    import autoglm_throttle.settings.values as v
    from autoglm_throttle.admission.control_loop import ControlLoop
    from autoglm_throttle.resilience.classify import Classify
    from autoglm_throttle.resilience.fallback import Dynamic, Fallback
    from autoglm_throttle.resilience.guard import Guard
    from autoglm_throttle.resilience.registry import Exceptions, GuardRegistry


class Throttle:
    """Owns every limit of a service. Share one object between all apps that are limited together.

    There are three ways to request admission without the middleware:

    - ``async with throttle.slot(demand) as permit:`` waits in the queue and raises `Rejected`.
    - ``await throttle.admit(demand)`` waits in the queue and returns a Permit or a Rejection.
    - ``throttle.try_admit(demand)`` returns at once, with a Permit, a Rejection or a Ticket for `wait`.

    A union is no context manager: test ``isinstance(verdict, Permit)`` before ``with verdict:``.

    A forked child begins anew with the same configuration: empty windows and counters, closed breakers,
    connections of its own. What code has registered or commanded stays: features, an operator's state.

    Args:
        settings: the configuration; None: the defaults. ``Throttle.from_env()`` reads the environment.
        gpu: the telemetry source or sources, instead of the ones named by ``settings.gpu``.
        sampling: ``thread`` reads the GPUs on a daemon thread from the first request or lifespan on;
            ``manual`` reads them only in `tick`, for tests and simulators.
        clock: monotonic seconds; the only clock that decisions use.
        redis: makes the Redis client of each event loop, instead of ``settings.redis_url``; for
            tests, ``fakeredis.FakeAsyncRedis``.
    """

    admission: AdmissionController
    """The limits, for the middleware and for `autoglm_throttle.fastapi`."""
    control: ControlLoop
    """The control loop, with the GPU monitor."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        gpu: GpuProvider | Sequence[GpuProvider] | None = None,
        sampling: Literal["thread", "manual"] = "thread",
        clock: Clock = time.monotonic,
        redis: Callable[[], Any] | None = None,
    ) -> None:
        self.settings: Settings = settings if settings is not None else Settings()
        self.batchers: dict[str, Callable[[], BatcherView | None]] = {}
        """Name -> view of each micro-batcher that was given this throttle; None: it is gone."""
        self.may_degrade: bool = False
        """Whether any guard has a fallback, or may be shed."""
        self._clock = clock
        self._redis = redis
        self._engine = NO_ENGINE
        self.is_manual: bool = sampling == "manual"
        """Whether it runs no threads: the caller reads the sources."""
        self.before_stop: list[Callable[[], object]] = []
        """Called at each `stop`, as a service does when it ends."""
        self._configuration_logged = False
        self._guards: GuardRegistry | None = None
        self._build(factory.gpu_sources(self.settings, gpu, clock, manual=self.is_manual))
        rebuild_after_fork(self, Throttle._rebuild)

    @classmethod
    def from_env(cls) -> Throttle:
        """Create a throttle from the environment.

        Raises:
            ConfigError: with every problem of the environment and the configuration file.
        """
        return cls(Settings.from_env())

    def __repr__(self) -> str:
        state, parts = self.admission.control_state, self.admission.parts
        rates = "/".join(f"{rate:g}" for rate in parts.buckets.rates)
        return (
            f"Throttle({self.settings.control.policy}, factor={state.factor:.2f} ({state.cause}), "
            f"telemetry={state.telemetry}, rates={rates}/s, active={parts.settlement.counters.active})"
        )

    # Requests

    async def admit(self, demand: Demand) -> Permit | Rejection:
        """Request admission, and wait in the queue if a slot can be free in time.

        Raises no exception of its own. A cancelled caller leaves the queue and is charged nothing.
        """
        return await self.admission.admit(demand)

    def try_admit(self, demand: Demand) -> Permit | Ticket | Rejection:
        """Request admission without waiting. A Ticket is a position in the queue.

        Call `wait` for the ticket, poll it with `called`, or `leave` it. In a fleet, await
        ``throttle.admission.ensure_lease(demand)`` before.
        """
        return self.admission.try_admit(demand, demand.work_class)

    def peek(self, demand: Demand) -> Rejection | None:
        """Return the rejection that a demand would get now by rates, user or token limits; takes nothing.

        None: it may be admitted, or wait in the queue; so in a dry run. With a shared store only a recent
        denial is known, and none for want of tokens.
        """
        return self.admission.peek(demand)

    def settle_tokens(self, permit: Permit, used: TokenCost) -> None:
        """Replace the reserved tokens of an admitted demand by those that it has used; once.

        Without this call the reserved tokens stay spent. The middleware settles its own requests.
        """
        verdicts = self.admission.verdicts
        for _, charges in verdicts.charges_of(permit)[:1]:
            verdicts.settle_tokens(charges, used)

    @overload
    def wait(self, ticket: Ticket) -> Coroutine[Any, Any, Permit | Rejection]: ...
    @overload
    def wait(
        self, ticket: Ticket, disconnected: DisconnectWait
    ) -> Coroutine[Any, Any, Permit | Rejection | None]: ...
    def wait(
        self, ticket: Ticket, disconnected: DisconnectWait = anyio.sleep_forever
    ) -> Coroutine[Any, Any, Permit | Rejection | None]:
        """Wait until a ticket from `try_admit` gets its slot, or can no longer get it in time.

        Args:
            ticket: a queued ticket, or one that needs only the shared user-limit check.
            disconnected: ends when the client has disconnected; it is cancelled when the slot is ready.

        Returns:
            Awaited, the Permit; the Rejection after a timeout; None after ``disconnected`` has ended.

        Raises:
            ValueError: when awaited: the ticket was cancelled, or returned by `called`.
        """
        return self.admission.verdicts.wait(ticket, disconnected)

    def leave(self, ticket: Ticket) -> None:
        """Cancel a ticket; nothing is charged. Idempotent.

        A task that waits for the ticket is not woken: cancel the task instead.
        """
        self.admission.verdicts.leave(ticket)

    def called(self) -> list[tuple[Ticket, Permit | Rejection]]:
        """Return the tickets that became ready or expired without a waiter, with their results."""
        return self.admission.verdicts.called()

    @asynccontextmanager
    async def slot(self, demand: Demand) -> AsyncIterator[Permit]:
        """Run a block with a slot, or raise: ``async with throttle.slot(demand) as permit:``.

        It waits in the queue as `admit` does. Leaving the block settles the permit as its own context manager
        does: ``success``, ``failure`` after an exception, ``neutral`` after a cancellation.
        Do not use it inside a request that the middleware of the same throttle has admitted: at the
        limit all requests in flight would wait for each other.

        Raises:
            Rejected: when entered: the demand was rejected; the exception carries the Decision.
        """
        verdict = await self.admission.admit(demand)
        if isinstance(verdict, Rejection):
            raise Rejected(verdict.decision)
        with verdict:
            yield verdict

    # Guards

    def guard(self, name: str, **figures: Unpack[v.BreakerValues]) -> Guard:
        """Return the guard of calls to one dependency: ``async with throttle.guard("vector-db"):``.

        It also works without ``async``, as a decorator of functions, coroutines and generators, and directly
        (`Guard.allow`). A name that was not registered with `feature` starts as core, with its figures, the
        table ``[guards.<name>]`` of ``CONFIG_FILE`` and the settings ``BREAKER_*``.

        Args:
            name: 1 to 200 printable characters. Do not use text from users: the number of guards is limited
                (``breaker_max_names``), and calls under further names are not guarded.
            figures: arguments of `BreakerSettings` for this breaker alone, ``guard("db", failures=3)``; the
                same at each use, or at the first one only.

        Raises:
            ConfigError: the name or a figure is not allowed.
            ValueError: the guard exists already with other figures.
        """
        guards = self._guards or self._guard_registry()
        circuit = None if figures else guards.guards.get(name)  # the usual case, without a further call
        return guards.guard(name, figures) if circuit is None else guards.handle(circuit)

    def feature(  # noqa: PLR0913 - one argument for each property of a guard
        self,
        name: str,
        *,
        criticality: Criticality | CriticalityName | None = None,
        fallback: Fallback | Dynamic | None = None,
        breaker: BreakerSettings | None = None,
        shed_above: float | None = None,
        classify: Classify | None = None,
        ignore: Exceptions = (),
        expected: Exceptions = (),
    ) -> Guard:
        """Register a guard and its fallback under a name, once. It may be guarding functions already.

        An argument that is None comes from ``[guards.<name>]``, then from ``BREAKER_*`` and ``DEGRADE_*``.

        Args:
            name: name of the guard.
            criticality: ``core``, never shed by load alone, or ``non_core``; default: core.
            fallback: the answers after a rejection, after a failure, and under load; a function of the
                `FallbackContext` stands for ``Fallback(dynamic=function)``.
            breaker: settings of this breaker alone; only before the first use of the guard.
            shed_above: load, 0.01..1, above which the feature is shed, instead of ``DEGRADE_SHED_AT``; only
                for a feature that is not core.
            classify: given the value or the exception of a call, returns its Outcome; None: the default.
                Only before the first use of the guard.
            ignore: exceptions that say nothing about the dependency: a class or several.
            expected: exceptions that count as success, such as "not found".

        Raises:
            ConfigError: an argument is not allowed, or contradicts another or the settings.
            ValueError: the name is registered already, or its guard is in use and ``breaker`` or ``classify``
                is given; or ``fallback`` accepts no argument.
            TypeError: ``classify``, ``ignore``, ``expected`` or ``fallback`` has the wrong type.
        """
        return self._guard_registry().feature(
            name,
            criticality=criticality,
            fallback=fallback,
            breaker=breaker,
            shed_above=shed_above,
            classify=classify,
            ignore=ignore,
            expected=expected,
        )

    def add_listener(self, listener: Callable[[BreakerTransition], None]) -> None:
        """Add a listener, called once and in order for each change of a breaker; it should not block."""
        self._guard_registry().add_listener(listener)

    # Control

    def control_state(self) -> ControlState:
        """Return the control state in force now, with the age of telemetry considered."""
        return self.control.state()

    def observe(self, samples: Sequence[GpuSample]) -> ControlState:
        """Process one reading of all devices of one externally read source.

        Args:
            samples: a row for each device; implausible values become None. A row older than
                the age of a stale sample no longer counts.
        """
        return self.control.observe([drop_implausible(row)[0] for row in samples], "", None)

    def tick(self) -> ControlState:
        """Read every source once in the caller, with ``sampling="manual"``."""
        self.control.monitor.tick()
        return self.control_state()

    def start(self) -> None:
        """Start reading the GPUs and return at once. Idempotent; works again after `stop` and in a fork."""
        parts = self.admission.parts
        if not self._configuration_logged:
            self._configuration_logged = True
            self._log_configuration()
        if parts.store is not None:
            parts.store.connect()
        if parts.fleet is not None:
            parts.fleet.start()
        if self._guards is not None:
            self._guards.start()
        if not self.is_manual:
            self.control.monitor.start()
        self.control.started()

    def stop(self) -> None:
        """Stop reading the GPUs. The next request starts it again. Idempotent."""
        for action in self.before_stop:
            action()
        self.control.monitor.stop()
        if self._guards is not None:
            self._guards.stop()
        if self.admission.parts.fleet is not None:
            self.admission.parts.fleet.stop()
        self.control.stopped()

    def snapshot(self) -> Snapshot:
        """Return the complete state as one immutable value; takes tens of microseconds under the lock."""
        parts, guards = self.admission.parts, self._guards
        with parts.settlement.lock:
            snapshot = take_snapshot(self.settings, parts, self.control, self._clock())
        self.admission.flush()
        # A list: another thread may create a batcher meanwhile.
        batchers = tuple(filter(None, (view() for view in list(self.batchers.values()))))
        if guards is None and not batchers:
            return snapshot
        return replace(snapshot, guards=None if guards is None else guards.view(), batchers=batchers)

    # Construction

    def _build(self, providers: Sequence[GpuProvider]) -> None:
        """Create all parts but the guards: at construction, and anew in a forked child."""
        # Deferred: keeps the import of the package small.
        from autoglm_throttle.admission.control_loop import ControlLoop

        settings, now = self.settings, self._clock()
        parts = factory.admission_parts(settings, self._clock, self._redis, self._engine)
        controller = factory.controller(settings, now)
        self.admission = AdmissionController(parts, controller.control_state(now), weak_method(self._refresh))
        self.control = ControlLoop(
            settings, controller, self.admission, providers, wakes_samplers=not self.is_manual
        )
        if parts.fleet is not None:
            parts.fleet.stop_with(self)

    def adopt_engine(
        self, engine: EngineCapacity, settings: Settings, sources: Sequence[GpuProvider] = ()
    ) -> None:
        """Build all parts but the guards anew for an inference engine that was recognised in this process.

        Counters and windows begin anew, so call it before the first request. Permits in flight stay valid.

        Args:
            engine: its capacity, which bounds the concurrency limit.
            settings: the settings, with the defaults that suit it.
            sources: further sources of telemetry.
        """
        self.stop()
        self.settings, self._engine = settings, engine
        self._build([*self.control.monitor.providers, *sources])
        if self._guards is not None:
            self.control.after_sample = weak_method(self._poll_guards)

    def _rebuild(self) -> None:
        """Build all parts anew in a forked child: threads and held locks of the parent are not here."""
        # A permit of the parent settles into the parent's counters, which nothing reads here.
        keep_parent_part((self.admission, self.control))
        if self.control.nginx_flags is not None:
            self.control.nginx_flags.leave_lock()
        guards, providers = self._guards, self.control.monitor.providers
        for provider in providers:
            with contextlib.suppress(Exception):  # one provider's fault must not leave the others unprepared
                provider.reset_after_fork()
        self._build(providers)
        if guards is not None:
            keep_parent_part(guards)
            self._guards = self._create_registry(guards)

    def _refresh(self, now: float) -> None:
        """Refresh the control state, or start sampling."""
        if self.control.is_sampling:
            self.control.refresh(now)
        else:
            self.start()

    def _log_configuration(self) -> None:
        from autoglm_throttle.settings.advice import startup_advice

        values = {name: self.settings.text_of(name) for name in settings_table()}
        chosen = [name for name in values if self.settings.source_of(name) is not SettingSource.DEFAULT]
        events.configured(values, chosen).write()
        for problem in startup_advice(self.settings):
            events.configuration_advice(problem).write()

    def _guard_registry(self) -> GuardRegistry:
        guards = self._guards
        if guards is None:
            # Outside the lock, which requests wait for: the imports take tens of milliseconds.
            created = self._create_registry(None)
            with self.admission.parts.settlement.lock:
                guards = self._guards = self._guards or created
            if guards is created and self.control.is_sampling:
                guards.start()
        return guards

    def _create_registry(self, predecessor: GuardRegistry | None) -> GuardRegistry:
        from autoglm_throttle.resilience.registry import GuardRegistry

        store = factory.breaker_store(self.settings, self._clock)
        if store is not None:
            store.stop_with(self)
        self.control.after_sample = weak_method(self._poll_guards)
        load, on_degradable = weak_method(self._load), weak_method(self._allow_degradation)
        return GuardRegistry(self.settings, load, self._clock, on_degradable, store, predecessor=predecessor)

    def _poll_guards(self) -> None:
        if self._guards is not None:
            self._guards.poll()

    def _load(self) -> float | None:
        """Return the load that guards see; None in a dry run, which degrades nothing."""
        return None if self.settings.control.dry_run else self.control_state().load

    def _allow_degradation(self) -> None:
        self.may_degrade = True
