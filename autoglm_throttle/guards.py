"""Every guard of a throttle by name: what it is put together from, and who is told what became of it."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from autoglm_throttle import journal
from autoglm_throttle.model import Clock, Criticality, Level, Mode, Rung, State, Transition
from autoglm_throttle.resilience.circuit import Circuit
from autoglm_throttle.resilience.degradation import LadderRules
from autoglm_throttle.resilience.feature import Fallback, Feature
from autoglm_throttle.resilience.guard import Guard
from autoglm_throttle.resilience.http.cache import HttpCache
from autoglm_throttle.resilience.http.served import HttpServed
from autoglm_throttle.resilience.judge import Classify, Judge
from autoglm_throttle.resilience.ladder_watch import Degradation
from autoglm_throttle.resilience.notes import note
from autoglm_throttle.resilience.rules import Rules
from autoglm_throttle.resilience.served import Served
from autoglm_throttle.resilience.stale_cache import StaleCache
from autoglm_throttle.settings import BreakerSettings, ConfigError, GuardPolicy, Problem, Settings
from autoglm_throttle.settings.form import Choice, FormError
from autoglm_throttle.settings.guard_policy import GuardName
from autoglm_throttle.settings.guard_rules import breaker_of
from autoglm_throttle.settings.problem import spelled
from autoglm_throttle.snapshot import GuardsView

if TYPE_CHECKING:
    from autoglm_throttle.resilience.shared.redis_store import RedisBreakerStore

_log = logging.getLogger("autoglm_throttle")

Exceptions = type[BaseException] | Collection[type[BaseException]]

Listener = Callable[[Transition], None]
"""Is told of each change of a breaker, once and in order. It should not block: calls wait for it."""

_NAME: Final = GuardName()
_CRITICALITY: Final = Choice(Criticality)

LOOKED_AT: Final = 8
"""Guards that are looked at to make room for one more: some 100 us."""

OTHERS: Final = "_others"
"""Stands for guards that are not kept any more, or never were."""


class Guards:
    """The registry of guards and features.

    Args:
        settings: the defaults of all guards, and those of each that has a table of its own.
        load: how full the service is, 0..1; None: not known. It may take the throttle's lock.
        clock: monotonic seconds.
        degrades: is called with each guard that may answer from elsewhere, or be shed.
        store: the shared state of all breakers; None: each process goes by itself.
    """

    def __init__(
        self,
        settings: Settings,
        load: Callable[[], float | None],
        clock: Clock,
        degrades: Callable[[], None],
        store: RedisBreakerStore | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._degrades = degrades
        self._store = store
        self._lock = threading.RLock()
        self._circuits: dict[str, Circuit] = {}
        self._dropped: weakref.WeakValueDictionary[str, Circuit] = weakref.WeakValueDictionary()
        """Not kept here any more, and perhaps held by somebody: a name must never have two breakers."""
        self._registered: set[str] = set()
        """By code: these are never let go of."""
        self._unguarded = Circuit(OTHERS, Rules(mode=Mode.DISABLED), clock=clock)
        """Of calls for whose guards there is no room: better without a breaker than without an answer."""
        self._degraded: Counter[tuple[str, Rung, str]] = Counter()
        self._transitions: Counter[tuple[str, State]] = Counter()
        self._listeners: list[Listener] = []
        self._full = False
        self._degradation = Degradation(
            _ladder_rules(settings), load, settings.sample_interval_s, clock, _level_changed
        )

    def __repr__(self) -> str:
        return f"Guards({len(self._circuits)} guards, {self._degradation!r})"

    def guard(self, name: str) -> Guard:
        """A handle on the guard of a name; the first one makes it, as core and with the defaults.

        Raises:
            ConfigError: the name is empty, too long or not printable.
        """
        circuit = self._circuits.get(name)
        return Guard(circuit if circuit is not None else self._known(name))

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
        """Register what is guarded under a name, before the first ``guard(name)``.

        Raises:
            ConfigError: an argument is not allowed, or two contradict each other or the settings.
            ValueError: the name has a guard already.
        """
        feature = self._feature(name, criticality, fallback, shed_above)
        rules = Rules(**breaker_of(self._settings, name, breaker))
        judge = Judge(classify=classify, ignore=_several(ignore), expected=_several(expected))
        with self._lock:
            if name in self._circuits or name in self._dropped:
                raise ValueError(
                    f"the guard {name!r} is there already: register the feature before its first use"
                )
            self._room()
            self._registered.add(name)
            return Guard(self._add(feature, rules, judge))

    def offers(self, name: str) -> bool:
        """Whether a call under this name would be made now: neither shed by the load nor refused."""
        return self.guard(name).refuses() is None

    def listen(self, listener: Listener) -> None:
        """Have a listener told of each change of a breaker."""
        with self._lock:
            self._listeners.append(listener)

    def tend(self) -> None:
        """Let the ladder look at the load, if it is time."""
        self._degradation.tend()

    def view(self) -> GuardsView:
        """Everything there is to see; takes each breaker's lock in turn."""
        with self._lock:
            circuits = list(self._circuits.values())
            degraded, transitions = dict(self._degraded), dict(self._transitions)
        ladder = self._degradation.view()
        return GuardsView(
            breakers=tuple(circuit.view() for circuit in circuits),
            level=ladder.level,
            load=ladder.load,
            degraded=degraded,
            transitions=transitions,
            store_up=None if self._store is None else self._store.up,
        )

    def start(self) -> None:
        """Listen to the fleet again."""
        if self._store is not None:
            self._store.start()

    def stop(self) -> None:
        """Let the store's threads end; the next trial starts them again."""
        if self._store is not None:
            self._store.stop()

    def forget(self) -> None:
        """In a forked process: the parent's threads and calls under way are gone."""
        self._lock = threading.RLock()
        if self._store is not None:
            self._store.forget()
        self._degradation.forget()
        self._degraded.clear()
        self._transitions.clear()
        for circuit in [*self._circuits.values(), *self._dropped.values()]:
            circuit.forget()

    def _known(self, name: str) -> Circuit:
        with self._lock:
            circuit = self._circuits.get(name) or self._back(name)
            if circuit is not None:
                return circuit
            feature = self._feature(name, None, None, None)
            rules = Rules(**breaker_of(self._settings, name))
            return self._add(feature, rules, Judge()) if self._room() else self._unguarded

    def _back(self, name: str) -> Circuit | None:
        """One that was let go of and is held by somebody; kept again if there is room."""
        circuit = self._dropped.get(name)
        if circuit is not None and self._room():
            self._circuits[name] = self._dropped.pop(name)
        return circuit

    def _feature(
        self,
        name: str,
        criticality: Criticality | str | None,
        fallback: Fallback | None,
        shed_above: float | None,
    ) -> Feature:
        policy = self._settings.guards.get(_checked(name))
        if fallback is not None and not isinstance(fallback, Fallback):
            raise TypeError(f"fallback must be a Fallback, not {fallback!r}")
        level = criticality if criticality is not None else _of(policy, "criticality")
        try:
            return Feature(
                name,
                criticality=Criticality.CORE if level is None else _CRITICALITY.parse(level),
                fallback=fallback,
                shed_above=shed_above if shed_above is not None else _of(policy, "shed_above"),
            )
        except FormError as error:
            problem = Problem(f"guards.{spelled(name)}.criticality", *_CRITICALITY.complaint(level, error))
            raise ConfigError([problem]) from None
        except ValueError as error:
            raise ConfigError([Problem(f"guards.{spelled(name)}", str(error))]) from None

    def _add(self, feature: Feature, rules: Rules, judge: Judge) -> Circuit:
        name = feature.name
        circuit = Circuit(name, rules, clock=self._clock, judge=judge, store=self._store, told=self._changed)
        if feature.fallback is not None or feature.criticality is not Criticality.CORE:
            self._serve(circuit, feature)
        self._circuits[name] = circuit
        return circuit

    def _serve(self, circuit: Circuit, feature: Feature) -> None:
        settings = self._settings
        own_s = _of(settings.guards.get(feature.name), "max_stale_s")
        keeps = feature.fallback is not None and feature.fallback.stale
        timeout_s = settings.degrade_fallback_timeout_s
        max_stale_s = settings.degrade_max_stale_s if own_s is None else own_s
        entries = settings.degrade_cache_entries
        served = Served(
            circuit,
            feature,
            self._degradation,
            cache=StaleCache(entries) if keeps else None,
            counted=self._count,
            fallback_timeout_s=timeout_s,
            max_stale_s=max_stale_s,
        )
        served.http = HttpServed(
            circuit,
            feature,
            self._degradation,
            cache=HttpCache(entries, settings.degrade_cache_body_bytes) if keeps else None,
            counted=self._count,
            fallback_timeout_s=timeout_s,
            max_stale_s=max_stale_s,
        )
        circuit.served, circuit.shed = served, served.shed
        self._degrades()

    def _room(self) -> bool:
        """Whether there is room for one more, made by letting go of one that would hardly be missed.

        That is a closed one without calls under way; one without failures in mind rather than one with
        some. Few are looked at each time, in turn: who asks for a new name must not wait for a thousand.
        """
        most = self._settings.breaker_max_names
        if len(self._circuits) < most:
            return True
        closed = None
        for name in list(islice(self._circuits, LOOKED_AT)):
            circuit = self._circuits.pop(name)
            view = circuit.view()
            leaves = name not in self._registered and view.machine is State.CLOSED and not view.in_flight
            if leaves and circuit.idle:
                self._drop(name, circuit)
                return True
            self._circuits[name] = circuit
            closed = name if leaves and closed is None else closed
        if closed is not None:
            self._drop(closed, self._circuits.pop(closed))
            return True
        if not self._full:
            self._full = True
            journal.guards_full(most).write()
        return False

    def _drop(self, name: str, circuit: Circuit) -> None:
        self._dropped[name] = circuit
        for state in State:
            count = self._transitions.pop((name, state), 0)
            if count:
                self._transitions[OTHERS, state] += count

    def _count(self, name: str, rung: Rung, cause: str) -> None:
        with self._lock:
            self._degraded[name, rung, cause] += 1
        note(rung, cause)

    def _changed(self, changes: Sequence[Transition]) -> None:
        for change in changes:
            with self._lock:
                self._transitions[change.name, change.after] += 1
                listeners = tuple(self._listeners)
            journal.breaker_changed(change).write()
            for listener in listeners:
                try:
                    listener(change)
                except Exception:  # noqa: BLE001 - the others must be told all the same
                    _log.exception("a listener failed at a change of %s", change.name)


def _checked(name: str) -> str:
    """The name, if a guard may have it.

    Raises:
        ConfigError: it may not.
    """
    try:
        return _NAME.parse(name)
    except ValueError as error:
        raise ConfigError([Problem("guard", *_NAME.complaint(name, error))]) from None


def _several(kinds: Exceptions) -> tuple[type[BaseException], ...]:
    return (kinds,) if isinstance(kinds, type) else tuple(kinds)


def _of(policy: GuardPolicy | None, key: str) -> Any:  # noqa: ANN401 - read by the form of the key
    """What the table of a guard says; None where there is no table."""
    return None if policy is None else getattr(policy, key)


def _ladder_rules(settings: Settings) -> LadderRules:
    return LadderRules(
        shed_at=settings.degrade_shed_at,
        stale_at=settings.degrade_stale_at,
        static_at=settings.degrade_static_at,
        margin=settings.degrade_margin,
        samples=settings.degrade_samples,
        load_stale_s=settings.degrade_load_stale_s,
    )


def _level_changed(before: Level, after: Level, load: float | None) -> None:
    journal.degradation_changed(before, after, load).write()
