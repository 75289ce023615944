"""Lazily created registry of circuit breakers for outbound calls."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from autoglm_throttle.admission import factory
from autoglm_throttle.settings import BreakerSettings, Settings
from autoglm_throttle.types import BreakerTransition, Clock, ControlState, Criticality, CriticalityName

if TYPE_CHECKING:
    from autoglm_throttle.resilience.feature import Fallback
    from autoglm_throttle.resilience.guard import Guard
    from autoglm_throttle.resilience.outcome_classifier import Classify
    from autoglm_throttle.resilience.registry import GuardRegistry


Exceptions = type[BaseException] | Collection[type[BaseException]]


class GuardFacade:
    """Gives access to guards by name. A subclass has settings, a clock and a control state."""

    settings: Settings
    _clock: Clock

    def __init__(self) -> None:
        self.may_degrade: bool = False
        """Whether any guard has a fallback, or may be shed."""
        self._guards: GuardRegistry | None = None
        self._guards_lock = threading.RLock()

    def guard(self, name: str) -> Guard:
        """Return the guard of calls to one dependency: ``async with throttle.guard("vector-db"):``.

        It also works without ``async``, as a decorator of functions, coroutines and generators, and directly
        (`Guard.allow`). A name that was not registered with `feature` starts as core, with the settings
        ``BREAKER_*`` and the table ``[guards.<name>]`` of ``CONFIG_FILE``.

        Args:
            name: 1 to 200 printable characters. Do not use text from users: the number of guards is limited
                (``breaker_max_names``), and calls under further names are not guarded.

        Raises:
            ConfigError: the name is not allowed.
        """
        guards = self._guards
        return (guards if guards is not None else self._guard_registry()).guard(name)

    def feature(  # noqa: PLR0913 - one argument for each property of a guard
        self,
        name: str,
        *,
        criticality: Criticality | CriticalityName | None = None,
        fallback: Fallback | None = None,
        breaker: BreakerSettings | None = None,
        shed_above: float | None = None,
        classify: Classify | None = None,
        ignore: Exceptions = (),
        expected: Exceptions = (),
    ) -> Guard:
        """Register a guard and its fallback under a name, before its first use.

        An argument that is None comes from ``[guards.<name>]``, then from ``BREAKER_*`` and ``DEGRADE_*``.

        Args:
            name: name of the guard.
            criticality: ``core``, never shed by load alone, or ``non_core``; default: core.
            fallback: the answers after a rejection, after a failure, and under load.
            breaker: settings of this breaker alone.
            shed_above: load, 0.01..1, above which the feature is shed, instead of ``DEGRADE_SHED_AT``; only
                for a feature that is not core.
            classify: given the value or the exception of a call, returns its Outcome; None: the default.
            ignore: exceptions that say nothing about the dependency: a class or several.
            expected: exceptions that count as success, such as "not found".

        Raises:
            ConfigError: an argument is not allowed, or contradicts another or the settings.
            ValueError: the guard is in use already.
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

    def is_available(self, name: str) -> bool:
        """Return whether a call under this name would be made now: neither shed by the load nor rejected."""
        return self._guard_registry().is_available(name)

    def add_listener(self, listener: Callable[[BreakerTransition], None]) -> None:
        """Add a listener, called once and in order for each change of a breaker; it should not block."""
        self._guard_registry().add_listener(listener)

    def control_state(self) -> ControlState:
        """Return the control state in force now."""
        raise NotImplementedError

    def _reset_guards_after_fork(self) -> None:
        """Reset locks and guards in a forked process."""
        self._guards_lock = threading.RLock()
        if self._guards is not None:
            self._guards.reset_after_fork()

    def _guard_registry(self) -> GuardRegistry:
        from autoglm_throttle.resilience.registry import (
            GuardRegistry,  # deferred: keeps the import of the package small
        )

        with self._guards_lock:  # re-entrant: a finalizer may run here and use a guard
            if self._guards is None:
                guards = self._create_registry(GuardRegistry)
                if self._guards is None:
                    self._guards = guards
            return self._guards

    def _create_registry(self, kind: type[GuardRegistry]) -> GuardRegistry:
        self_ref = weakref.ref(self)

        def load() -> float | None:
            throttle = self_ref()
            return None if throttle is None or throttle.settings.dry_run else throttle.control_state().load

        def on_degradable() -> None:
            throttle = self_ref()
            if throttle is not None:
                throttle.may_degrade = True

        store = factory.breaker_store(self.settings, self._clock)
        if store is not None:
            weakref.finalize(self, store.stop, 0.0).atexit = False
        return kind(self.settings, load, self._clock, on_degradable, store)
