"""The half of a throttle that guards the calls which leave the process; made at the first of them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from autoglm_throttle import assembly
from autoglm_throttle.model import Clock, Criticality, Regime, Transition
from autoglm_throttle.settings import BreakerSettings, Settings

if TYPE_CHECKING:
    from autoglm_throttle.guards import Guards
    from autoglm_throttle.resilience.feature import Fallback
    from autoglm_throttle.resilience.guard import Guard
    from autoglm_throttle.resilience.judge import Classify


Exceptions = type[BaseException] | Collection[type[BaseException]]


class Guardian:
    """Guards by name. Whoever inherits has settings, a clock and a Regime."""

    settings: Settings
    _clock: Clock

    def __init__(self) -> None:
        self.degrades: bool = False
        """Whether any guard may answer from elsewhere, or be shed."""
        self._guards: Guards | None = None
        self._guards_lock = threading.RLock()

    def guard(self, name: str) -> Guard:
        """What stands before calls to one dependency: ``async with throttle.guard("vector-db"):``.

        Also without ``async``, as a decorator of functions, coroutines and generators, and asked directly
        (`Guard.allow`). A name that was not registered with `feature` begins as core, with the settings
        ``BREAKER_*`` and the table ``[guards.<name>]`` of ``CONFIG_FILE``.

        Args:
            name: 1 to 200 printable characters; not text of users' own, or their calls are soon not guarded
                (``breaker_max_names``).

        Raises:
            ConfigError: the name is not allowed.
        """
        guards = self._guards
        return (guards if guards is not None else self._guarding()).guard(name)

    def feature(  # noqa: PLR0913 - all that is known of a guard
        self,
        name: str,
        *,
        criticality: Criticality | str | None = None,
        fallback: Fallback | None = None,
        breaker: BreakerSettings | None = None,
        shed_above: float | None = None,
        classify: Classify | None = None,
        ignore: Exceptions = (),
        expected: Exceptions = (),
    ) -> Guard:
        """Say once what is guarded under a name, and what answers in its place; before its first use.

        What is None is taken from the table ``[guards.<name>]``, then from ``BREAKER_*`` and ``DEGRADE_*``.

        Args:
            name: of the guard.
            criticality: ``core``, which the load alone never sheds, or ``non_core``; nothing said: core.
            fallback: what is answered after a refusal, after a failure, and under load.
            breaker: figures of this breaker alone.
            shed_above: load, 0.01..1, above which the feature is shed, instead of ``DEGRADE_SHED_AT``; only
                for one that is not core.
            classify: given the value or the exception of a call, says its Outcome, or None for the usual.
            ignore: exceptions that say nothing about the dependency: a class or several.
            expected: exceptions that are successes: what was asked for is not there.

        Raises:
            ConfigError: an argument is not allowed, or contradicts another or the settings.
            ValueError: the guard is in use already.
            TypeError: ``classify``, ``ignore``, ``expected`` or ``fallback`` is not what it should be.
        """
        return self._guarding().feature(
            name,
            criticality=criticality,
            fallback=fallback,
            breaker=breaker,
            shed_above=shed_above,
            classify=classify,
            ignore=ignore,
            expected=expected,
        )

    def offers(self, name: str) -> bool:
        """Whether a call under this name would be made now: neither shed by the load nor refused."""
        return self._guarding().offers(name)

    def listen(self, listener: Callable[[Transition], None]) -> None:
        """Have a listener told of each change of a breaker, once and in order; it should not block."""
        self._guarding().listen(listener)

    def regime(self) -> Regime:
        """The Regime in force now."""
        raise NotImplementedError

    def _forget_guards(self) -> None:
        """In a forked process."""
        self._guards_lock = threading.RLock()
        if self._guards is not None:
            self._guards.forget()

    def _guarding(self) -> Guards:
        from autoglm_throttle.guards import Guards  # with all that guards: not for an import alone

        with self._guards_lock:  # re-entrant: a finalizer may run here, and ask for a guard, too
            if self._guards is None:
                guards = self._made(Guards)
                if self._guards is None:
                    self._guards = guards
            return self._guards

    def _made(self, kind: type[Guards]) -> Guards:
        myself = weakref.ref(self)

        def load() -> float | None:
            throttle = myself()
            return None if throttle is None or throttle.settings.dry_run else throttle.regime().load

        def degrades() -> None:
            throttle = myself()
            if throttle is not None:
                throttle.degrades = True

        store = assembly.breaker_store(self.settings, self._clock)
        if store is not None:
            weakref.finalize(self, store.stop, 0.0).atexit = False
        return kind(self.settings, load, self._clock, degrades, store)
