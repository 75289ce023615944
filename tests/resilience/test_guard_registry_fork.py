"""A registry in a forked child takes over the guards of its parent, and begins to measure anew."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from autoglm_throttle import BreakerSettings, Fallback, GuardPolicy, Settings
from autoglm_throttle.resilience.guard import Guard
from autoglm_throttle.resilience.registry import GuardRegistry
from autoglm_throttle.testing import ManualClock
from autoglm_throttle.types import (
    BreakerState,
    BreakerTransition,
    GuardPermit,
    Outcome,
    ProbeLease,
    RemoteBreakerState,
)
from tests.resilience.fake_store import FakeStore
from tests.runtime.test_after_fork import from_child

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

WAIT_S = 60.0


class Process:
    """A registry, the parts that are given to it, and the registry of a child."""

    def __init__(self, store: FakeStore | None = None, **settings: Any) -> None:
        self.settings = Settings(**settings)
        self.clock = ManualClock()
        self.degradable = 0
        self.received: list[BreakerTransition] = []
        self.registry = self.new_registry(store, None)
        self.registry.add_listener(self.received.append)

    def new_registry(self, store: FakeStore | None, predecessor: GuardRegistry | None) -> GuardRegistry:
        made: Any = GuardRegistry
        registry = made(self.settings, lambda: None, self.clock, self.degrade, store, predecessor)
        assert isinstance(registry, GuardRegistry)
        return registry

    def degrade(self) -> None:
        self.degradable += 1

    def in_child(self, report: Callable[[GuardRegistry], object], store: FakeStore | None = None) -> Any:
        """Return the value that a function returns in a child, which is given the child's registry."""

        def run() -> object:
            signal.alarm(int(WAIT_S))
            return report(self.new_registry(store, self.registry))

        return from_child(run)


def fail(guard: Guard, times: int = 5) -> None:
    for _ in range(times):
        guard.settle(permit(guard), Outcome.FAILURE, "it fails")


def permit(guard: Guard) -> GuardPermit:
    answer = guard.allow()
    assert isinstance(answer, GuardPermit), answer
    return answer


def away() -> str:
    raise ConnectionError("away")


@contextlib.contextmanager
def thread_in(act: Callable[[], object], entered: threading.Event, leave: threading.Event) -> Iterator[None]:
    """A thread that is amid an act until the block ends."""
    thread = threading.Thread(target=act)
    thread.start()
    assert entered.wait(WAIT_S)
    try:
        yield
    finally:
        leave.set()
        thread.join(WAIT_S)


def test_breaker_of_a_child_is_closed_and_its_parent_stays_open() -> None:
    process = Process()
    guard = process.registry.guard("db")
    fail(guard)

    def report(registry: GuardRegistry) -> object:
        view = registry.guard("db").view()
        counts = registry.view()
        same = registry.guard("db").circuit is guard.circuit
        return [guard.state(), view.calls, view.rejected, view.last_failure, dict(counts.transitions), same]

    assert process.in_child(report) == ["closed", 0, {}, "", {}, True]
    assert guard.state() is BreakerState.OPEN


def test_decorated_function_uses_the_breaker_of_its_process() -> None:
    process = Process()
    guard = process.registry.guard("db")
    function = guard(away)

    def report(registry: GuardRegistry) -> object:
        for _ in range(5):
            with pytest.raises(ConnectionError):
                function()
        (view,) = registry.view().breakers
        return [view.state, view.calls, [change.after for change in process.received]]

    assert process.in_child(report) == ["open", 5, ["open"]]
    assert (guard.state(), guard.view().calls, process.received) == (BreakerState.CLOSED, 0, [])


@pytest.mark.parametrize("max_in_flight", [0, 3])
def test_permit_of_the_parent_is_stale_in_the_child(max_in_flight: int) -> None:
    process = Process(guards=[GuardPolicy("db", failures=1, max_in_flight=max_in_flight)])
    guard = process.registry.guard("db")
    parents = permit(guard)

    def report(registry: GuardRegistry) -> object:
        guard.settle(parents, Outcome.FAILURE)
        view = guard.view()
        return [view.state, view.streak, view.in_flight, view.stale_results]

    assert process.in_child(report) == ["closed", 0, 0, 1]
    guard.settle(parents, Outcome.FAILURE)
    assert guard.state() is BreakerState.OPEN


def test_fork_inside_a_guarded_block_ends_in_both_processes() -> None:
    process = Process(guards=[GuardPolicy("db", failures=1)])
    guard = process.registry.guard("db")

    def report(registry: GuardRegistry) -> object:
        guard.__exit__(OSError, OSError("of the child"), None)
        return [guard.state(), guard.view().stale_results]

    guard.__enter__()
    assert process.in_child(report) == ["closed", 1]
    guard.__exit__(OSError, OSError("of the parent"), None)
    assert guard.state() is BreakerState.OPEN


def test_probe_of_the_parent_occupies_no_slot_in_the_child() -> None:
    process = Process()
    guard = process.registry.guard("db")
    fail(guard)
    process.clock.advance(10.0)
    probe = permit(guard)

    def report(registry: GuardRegistry) -> object:
        guard.settle(probe)
        return [guard.is_available(), guard.view().in_flight, guard.view().stale_results]

    assert process.in_child(report) == [True, 0, 1]
    guard.settle(probe)
    assert guard.state() is BreakerState.CLOSED


@pytest.mark.parametrize(
    ("command", "state", "metrics_only"),
    [
        ("force_open", "forced_open", False),
        ("disable", "disabled", False),
        ("metrics_only", "closed", True),
        ("reset", "closed", False),
    ],
)
def test_command_of_an_operator_holds_in_the_child(command: str, state: str, metrics_only: bool) -> None:
    process = Process()
    guard = process.registry.guard("db")
    getattr(guard, command)()

    def report(registry: GuardRegistry) -> object:
        view = registry.guard("db").view()
        return [view.state, view.metrics_only, view.calls]

    assert process.in_child(report) == [state, metrics_only, 0]


def test_configuration_in_code_holds_in_the_child() -> None:
    process = Process()
    registered = process.registry.feature(
        "related",
        fallback=Fallback(static="kept"),
        breaker=BreakerSettings(failures=2),
        ignore=KeyError,
        criticality="non_core",
    )
    function = registered(away)

    def ignored() -> str:
        raise KeyError("not counted")

    def report(registry: GuardRegistry) -> object:
        with pytest.raises(ValueError, match="registered already"):
            registry.feature("related")
        process.degradable = 0
        registry.guard("plain")
        answers = [function() for _ in range(3)]
        with pytest.raises(KeyError):
            registry.guard("other")(ignored)()
        view = registered.view()
        degraded = [[*key[1:], count] for key, count in registry.view().degraded.items()]
        return [answers, view.state, view.streak, registered.settings.failures, sorted(degraded)]

    assert function() == "kept"
    assert process.degradable == 1
    assert process.in_child(report) == [
        ["kept"] * 3,
        "open",
        0,
        2,
        [["static", "error", 2], ["static", "failures", 1]],
    ]


def test_child_announces_that_answers_may_be_degraded() -> None:
    process = Process()
    process.registry.feature("related", fallback=Fallback(static=1))
    process.degradable = 0
    assert process.in_child(lambda _: process.degradable) == 1


def test_cache_of_a_child_is_empty() -> None:
    process = Process()
    live = [True]

    def read() -> str:
        if not live[0]:
            raise ConnectionError("away")
        return "live"

    function = process.registry.feature("related", fallback=Fallback(stale=True, coalesce="always"))(read)
    assert function() == "live"
    live[0] = False

    def report(registry: GuardRegistry) -> object:
        with pytest.raises(ConnectionError):
            function()
        live[0] = True
        first = function()
        live[0] = False
        return [first, function()]

    assert process.in_child(report) == ["live", "live"]
    assert function() == "live"


def test_evicted_guard_of_the_parent_keeps_its_name_in_the_child() -> None:
    process = Process(breaker_max_names=1)
    held = process.registry.guard("held")
    other = process.registry.guard("other")

    def report(registry: GuardRegistry) -> object:
        same = registry.guard("held").circuit is held.circuit
        fail(held)
        return [same, [view.name for view in registry.view().breakers], held.state(), other.state()]

    assert process.in_child(report) == [True, ["held"], "open", "closed"]


def test_unguarded_calls_stay_unguarded_in_the_child() -> None:
    process = Process(breaker_max_names=1)
    fail(process.registry.guard("open"))
    beyond = process.registry.guard("beyond")

    def report(registry: GuardRegistry) -> object:
        fail(beyond, 9)
        return [beyond.state(), registry.guard("more").state(), len(registry.view().breakers)]

    assert process.in_child(report) == ["disabled", "closed", 1]


def test_locks_of_registry_and_breaker_may_be_held_at_fork() -> None:
    """A thread of the parent is amid the search for a guard to evict."""
    process = Process(breaker_max_names=1)
    guard = process.registry.guard("db")
    entered, leave = threading.Event(), threading.Event()
    clock, main = process.clock, threading.main_thread()

    class Blocking(ManualClock):
        def __call__(self) -> float:
            if threading.current_thread() is not main:
                entered.set()
                leave.wait(WAIT_S)
            return clock()

    guard.circuit.clock = Blocking()
    guard.circuit.rebuild(None, None)  # a breaker on that clock

    def report(registry: GuardRegistry) -> object:
        fail(guard, 4)
        with registry.guard("db"):
            pass
        return [
            guard.state(),
            guard.view().calls,
            registry.guard("new").state(),
            len(registry.view().breakers),
        ]

    with thread_in(lambda: process.registry.guard("another"), entered, leave):
        assert process.in_child(report) == ["closed", 5, "closed", 1]


def test_lock_of_a_cache_may_be_held_at_the_fork() -> None:
    process = Process()
    entered, leave = threading.Event(), threading.Event()
    main = threading.main_thread()

    class Key:
        """Blocks a thread that compares it, amid its look-up."""

        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            if threading.current_thread() is not main:
                entered.set()
                leave.wait(WAIT_S)
            return True

    function = process.registry.feature("related", fallback=Fallback(stale=True, key=Key))(lambda: 7)
    assert function() == 7

    with thread_in(function, entered, leave):
        assert process.in_child(lambda _: [function(), function()]) == [7, 7]


def test_guards_of_a_child_join_the_fleet_anew() -> None:
    store, other = FakeStore(), FakeStore()
    process = Process(store)
    guard = process.registry.guard("db")
    store.push(RemoteBreakerState(3, BreakerState.OPEN, wait_s=0.0))
    store.replies = [ProbeLease(5, version=3)]
    probe = permit(guard)
    other.first = RemoteBreakerState(9, BreakerState.OPEN, wait_s=50.0)

    def report(registry: GuardRegistry) -> object:
        before = [list(other.watchers), guard.state()]
        guard.settle(probe)
        notified = [store.reports, other.reports]
        answer = guard.allow()
        other.push(RemoteBreakerState(10, BreakerState.FORCED_OPEN))
        return [*before, *notified, isinstance(answer, GuardPermit), list(other.watchers), guard.state()]

    assert process.in_child(report, other) == [[], "closed", [], [], False, ["db"], "forced_open"]
    guard.settle(probe)
    assert [entry[0] for entry in store.reports] == ["finished"]


def test_start_of_a_child_subscribes_all_guards() -> None:
    class Starting(FakeStore):
        def start(self) -> None:
            """Start no thread."""

    other = Starting()
    process = Process(FakeStore())
    for name in ("db", "cache"):
        process.registry.guard(name)

    def report(registry: GuardRegistry) -> object:
        registry.start()
        other.push(RemoteBreakerState(4, BreakerState.FORCED_OPEN))
        return [sorted(other.watchers), [view.state for view in registry.view().breakers]]

    assert process.in_child(report, other) == [["cache", "db"], ["forced_open", "forced_open"]]


def test_succession_without_a_fork_is_the_same() -> None:
    process = Process(breaker_max_names=2)
    held = [process.registry.guard("held")]
    function = process.registry.feature("related", fallback=Fallback(stale=True, static="kept"))(away)
    assert function() == "kept"
    for name in ("one", "two"):
        fail(process.registry.guard(name))
    held.append(process.registry.guard("beyond"))
    registry = process.new_registry(None, process.registry)
    assert len(registry.view().breakers) == 2
    states = [view.state for view in registry.view().breakers]
    assert states == [BreakerState.CLOSED] * len(states)
    assert function() == "kept"
    assert sum(registry.view().degraded.values()) == 1
    assert [registry.guard(guard.name).circuit is guard.circuit for guard in held] == [True, False]
