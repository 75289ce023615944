"""Registry of guards by name: builds them, counts degraded answers, notifies listeners."""

from __future__ import annotations

import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import Any, Final

from autoglm_throttle import events
from autoglm_throttle._runtime.serial_lock import SerialLock
from autoglm_throttle.resilience.classify import Classify, OutcomeClassifier
from autoglm_throttle.resilience.degradation import DegradationController
from autoglm_throttle.resilience.fallback import Dynamic, Fallback, Feature, degraded_answers
from autoglm_throttle.resilience.feature_executor import FeatureExecutor
from autoglm_throttle.resilience.fleet_link import BreakerStore
from autoglm_throttle.resilience.guard import Guard
from autoglm_throttle.resilience.state import GuardState
from autoglm_throttle.settings import BreakerSettings, ConfigError, Problem, Settings
from autoglm_throttle.settings.checks import breaker_of
from autoglm_throttle.settings.field_types import choice
from autoglm_throttle.settings.policies import GUARD_NAME
from autoglm_throttle.settings.problems import quoted_key
from autoglm_throttle.types import (
    BreakerMode,
    BreakerState,
    BreakerTransition,
    BreakerView,
    Clock,
    Criticality,
    CriticalityName,
    DegradationLevel,
    FallbackKind,
)

Exceptions = type[BaseException] | Collection[type[BaseException]]

# Called for each change of a breaker, once and in order. It should not block: calls wait for it.
TransitionListener = Callable[[BreakerTransition], None]

_CRITICALITY: Final = choice(Criticality)

EVICTION_CANDIDATES: Final = 8  # Guards checked for eviction to free one entry: some 100 us

# Not validated: the schema need not be built at each start.
_DISABLED: Final = BreakerSettings.model_construct({"mode"}, mode=BreakerMode.DISABLED)

OTHERS: Final = "_others"  # Stands for guards that were evicted or never had an entry


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardsView:
    """Every guard at one moment. Counts only grow, except across a fork."""

    breakers: tuple[BreakerView, ...]
    """In the order of their first use."""
    level: DegradationLevel
    """The degradation level in force."""
    load: float | None
    """The newest load used for the level, 0..1; None: not known."""
    degraded: Mapping[tuple[str, FallbackKind, str], int]
    """Answers produced without the dependency, by guard, fallback kind and cause."""
    transitions: Mapping[tuple[str, BreakerState], int]
    """State changes, by guard and new state."""
    store_up: bool | None
    """Whether the store of shared breakers answers; None where breakers are local to the process."""


class GuardRegistry:
    """The guards and features by name, at most ``max_names`` beside the features: idle guards are evicted.

    ``load`` returns the load of the service, 0..1, None: not known; it may take the throttle's lock.
    ``on_degradable`` is called for each guard that has a fallback, or may be shed. ``store`` is the shared
    state of all breakers, None: breakers are local to the process. ``predecessor`` is the registry of the
    parent process whose guards a forked child takes over. The configuration in code, the listeners and the
    commands of operators stay; all that was measured begins anew.
    """

    def __init__(
        self,
        settings: Settings,
        load: Callable[[], float | None],
        clock: Clock,
        on_degradable: Callable[[], object],
        store: BreakerStore | None = None,
        predecessor: GuardRegistry | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._on_degradable = on_degradable
        self._store = store
        self._is_started = False
        self._fault_log = events.RateLimitedLogger("breakers", clock)  # faults repeat with each change
        self._lock = SerialLock()
        self._degradation = DegradationController(
            settings.degradation, load, settings.gpu.sample_interval_s, clock, _level_changed
        )
        self.handle = Guard  # for a caller that finds the guard's state itself
        # What a successor takes over. Guards by name; the first ones are the next candidates for eviction.
        self.guards: OrderedDict[str, GuardState] = OrderedDict()
        # Evicted guards that callers may still hold: a name must never have two breakers.
        self.evicted: weakref.WeakValueDictionary[str, GuardState] = weakref.WeakValueDictionary()
        self.registered: set[str] = set()  # names registered in code; their guards are never evicted
        # Figures of guards as given at their uses: equal ones need no new check at each use.
        self._figures: dict[str, Mapping[str, Any]] = {}
        self.listeners: list[TransitionListener] = []
        # The disabled guard for names above the maximum: an unprotected call is better than a failed one.
        self.unguarded: GuardState = GuardState(OTHERS, _DISABLED, clock=clock)
        self._is_full_logged = False
        # Answers without the dependency, by guard, kind of fallback and cause.
        self._degraded: Counter[tuple[str, FallbackKind, str]] = Counter()
        # State changes, by guard and new state.
        self._transitions: Counter[tuple[str, BreakerState]] = Counter()
        if predecessor is not None:
            self._take_over(predecessor)

    def guard(self, name: str, figures: Mapping[str, Any] | None = None) -> Guard:
        """Return a handle on the guard of a name; the first call creates it, with its figures."""
        circuit = self.guards.get(name)
        if circuit is None or (figures and self._figures.get(name) != figures):
            circuit = self._get_or_create(name, figures or {})
        return Guard(circuit)

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
        """Register a feature under a name, once."""
        feature = self._feature(name, criticality, fallback, shed_above)
        settings = breaker_of(self._settings.guards, self._settings.breaker, name, breaker)
        classifier = OutcomeClassifier(
            classify=classify, ignore=_as_tuple(ignore), expected=_as_tuple(expected)
        )
        with self._lock:
            circuit = self._existing(name)
            if circuit is None:
                self._ensure_capacity()
                circuit = self._add(feature, settings, classifier)
            elif name in self.registered:
                raise ValueError(f"the feature {name!r} is registered already")
            elif breaker is not None or classify is not None:
                # Functions that it guards already have both built in.
                early = "give breaker and classify before its first use, or its figures to guard()"
                raise ValueError(f"the guard {name!r} exists already: {early}")
            else:
                circuit.classifier = classifier
                self._attach_feature(circuit, feature)
            self.registered.add(name)
            return Guard(circuit)

    def add_listener(self, listener: TransitionListener) -> None:
        """Add a listener for changes of breakers."""
        self.listeners.append(listener)

    def poll(self) -> None:
        """Update the degradation level from the load, if it is due."""
        self._degradation.poll()

    def view(self) -> GuardsView:
        """Return the state of all guards; takes each breaker's lock in turn."""
        with self._lock:
            circuits = list(self.guards.values())
            degraded, transitions = dict(self._degraded), dict(self._transitions)
        level, load = self._degradation.view()
        return GuardsView(
            breakers=tuple(circuit.view() for circuit in circuits),
            level=level,
            load=load,
            degraded=degraded,
            transitions=transitions,
            store_up=None if self._store is None else self._store.is_up,
        )

    def start(self) -> None:
        """Start the subscriptions to the fleet's store, also for guards that are created later."""
        self._is_started = True
        if self._store is not None:
            for circuit in self._all():
                circuit.subscribe()
            self._store.start()

    def stop(self) -> None:
        """Stop the threads of the store; the next probe call starts them again."""
        self._is_started = False
        if self._store is not None:
            self._store.stop()

    def _all(self) -> list[GuardState]:
        # All living guards, also evicted ones and the one for names above the maximum.
        return [*(dict(self.evicted.items()) | self.guards).values(), self.unguarded]

    def _take_over(self, predecessor: GuardRegistry) -> None:
        # Without its lock, which a thread of the parent process may hold.
        self.listeners.extend(predecessor.listeners)
        self.guards.update(predecessor.guards)
        self.registered.update(predecessor.registered)
        self.evicted.update(predecessor.evicted)
        self.unguarded = predecessor.unguarded
        for circuit in self._all():
            executor = circuit.executor
            is_counted = circuit is not self.unguarded
            circuit.rebuild(self._store if is_counted else None, self._on_transitions if is_counted else None)
            if executor is not None:
                self._attach_executor(circuit, executor.feature)

    def _get_or_create(self, name: str, figures: Mapping[str, Any]) -> GuardState:
        feature = self._feature(name, None, None, None)
        own = BreakerSettings(**figures) if figures else None
        settings = breaker_of(self._settings.guards, self._settings.breaker, name, own)
        with self._lock:
            circuit = self._existing(name)
            if circuit is None:
                if not self._ensure_capacity():
                    return self.unguarded
                circuit = self._add(feature, settings, OutcomeClassifier())
            elif own is not None and circuit.settings != settings:
                once = "give the same figures at each use, or at the first one only"
                raise ValueError(f"the guard {name!r} exists already with other figures: {once}")
            if figures and name in self.guards:
                self._figures[name] = figures
            return circuit

    def _existing(self, name: str) -> GuardState | None:
        """Return the guard of a name, with its entry again if it was evicted."""
        circuit = self.guards.get(name) or self.evicted.get(name)
        if circuit is not None and name not in self.guards and self._ensure_capacity():
            self.guards[name] = self.evicted.pop(name)
        return circuit

    def _ensure_capacity(self) -> bool:
        """Ensure capacity for one more guard, by evicting an idle one; False: none could be evicted.

        A candidate is closed and has no calls in flight. One without recorded failures is preferred.
        Each call checks few guards, in rotation, so that a new name does not wait for a thousand checks.
        """
        max_guards = self._settings.shared_breakers.max_names
        if len(self.guards) < max_guards:
            return True
        candidates = []
        for name, circuit in list(islice(self.guards.items(), EVICTION_CANDIDATES)):
            self.guards.move_to_end(name)  # the next call checks other guards
            view = circuit.view()
            if name not in self.registered and view.machine is BreakerState.CLOSED and not view.in_flight:
                candidates.append((circuit.is_idle, name))
        if candidates:
            self._evict(max(candidates, key=itemgetter(0))[1])
        elif not self._is_full_logged:
            self._is_full_logged = True
            self._lock.pending.append(events.guard_table_full(max_guards).write)
        return bool(candidates)

    def _evict(self, name: str) -> None:
        self.evicted[name] = self.guards.pop(name)
        self._figures.pop(name, None)
        # Its transitions move to one shared name, so that totals never decrease.
        for state in BreakerState:
            count = self._transitions.pop((name, state), 0)
            if count:
                self._transitions[OTHERS, state] += count

    def _feature(
        self,
        name: str,
        criticality: Criticality | CriticalityName | None,
        fallback: Fallback | Dynamic | None,
        shed_above: float | None,
    ) -> Feature:
        policy = self._settings.guards.get(_checked_name(name))
        if fallback is not None and not isinstance(fallback, Fallback):
            if not callable(fallback) or isinstance(fallback, type):
                raise TypeError(f"fallback must be a Fallback or a function, not {fallback!r}")
            fallback = Fallback(dynamic=fallback)
        if policy is not None:
            criticality = policy.criticality if criticality is None else criticality
            shed_above = policy.shed_above if shed_above is None else shed_above
        key = f"guards.{quoted_key(name)}"
        checked = Criticality.CORE
        if criticality is not None:
            checked = _checked_criticality(criticality, f"{key}.criticality")
        try:
            return Feature(name, checked, fallback, shed_above)
        except ValueError as error:
            raise ConfigError([Problem(key, str(error))]) from None

    def _add(self, feature: Feature, settings: BreakerSettings, classifier: OutcomeClassifier) -> GuardState:
        name = feature.name
        circuit = GuardState(
            name,
            settings,
            clock=self._clock,
            classifier=classifier,
            store=self._store,
            on_transitions=self._on_transitions,
        )
        self._attach_feature(circuit, feature)
        if self._store is not None and self._is_started:
            self._store.start()
        return self.guards.setdefault(name, circuit)

    def _attach_feature(self, circuit: GuardState, feature: Feature) -> None:
        if feature.fallback is not None or feature.criticality is not Criticality.CORE:
            self._attach_executor(circuit, feature)

    def _attach_executor(self, circuit: GuardState, feature: Feature) -> None:
        settings, policy = self._settings.degradation, self._settings.guards.get(feature.name)
        max_stale_s = None if policy is None else policy.max_stale_s
        circuit.attach(
            FeatureExecutor(circuit, feature, self._degradation, self._record_degraded, settings, max_stale_s)
        )
        self._on_degradable()

    def _record_degraded(self, name: str, kind: FallbackKind, cause: str) -> None:
        self._lock.run(partial(self._degraded.update, ((name, kind, cause),)))
        answers = degraded_answers.get()
        # The list is shared: a context copied into a worker thread refers to the same one.
        if answers is not None and (kind, cause) not in answers:
            answers.append((kind, cause))

    def _on_transitions(self, changes: Sequence[BreakerTransition]) -> None:
        for change in changes:
            self._lock.run(partial(self._transitions.update, ((change.name, change.after),)))
            events.breaker_changed(change).write()
            for listener in tuple(self.listeners):
                try:
                    listener(change)
                except Exception as error:  # noqa: BLE001 - the other listeners must still be called
                    self._fault_log.warn(
                        "listener", f"a listener failed at a change of {change.name}", error=error
                    )


def _checked_name(name: str) -> str:
    try:
        return str(GUARD_NAME.parse(name))
    except ValueError as error:
        raise ConfigError([Problem("guard", *GUARD_NAME.describe_error(name, str(error)))]) from None


def _checked_criticality(level: object, key: str) -> Criticality:
    try:
        return Criticality(_CRITICALITY.parse(level))
    except ValueError:
        raise ConfigError([Problem(key, *_CRITICALITY.describe_error(level, ""))]) from None


def _as_tuple(kinds: Exceptions) -> tuple[type[BaseException], ...]:
    return (kinds,) if isinstance(kinds, type) else tuple(kinds)


def _level_changed(before: DegradationLevel, after: DegradationLevel, load: float | None) -> None:
    events.degradation_changed(before, after, load).write()
