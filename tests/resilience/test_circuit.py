"""One guard of one process: admission, records, observers, faults, forks."""

from __future__ import annotations

import copy
import gc
import logging
import pickle
import threading
import weakref
from collections.abc import Sequence

import pytest

from autoglm_throttle.model import Cause, GuardRefused, Mode, Outcome, Refusal, State, Transition
from autoglm_throttle.resilience.circuit import Circuit
from autoglm_throttle.resilience.courier import Courier
from autoglm_throttle.resilience.judge import Judge
from autoglm_throttle.resilience.rules import Rules
from autoglm_throttle.resilience.seldom import Seldom
from autoglm_throttle.resilience.shut import ShutOut
from autoglm_throttle.testing import ManualClock
from tests.resilience.tripping import Clocked, Told, fail, half_open, opened, passed, refused

SUCCESS, FAILURE, NEUTRAL = Outcome.SUCCESS, Outcome.FAILURE, Outcome.NEUTRAL


def test_calls_go_through_and_are_counted() -> None:
    circuit = Clocked()
    assert circuit.enter() is circuit.enter()
    assert circuit.view().calls == 2


def test_a_failure_opens_and_says_what_it_was() -> None:
    circuit = Clocked()
    circuit.leave(passed(circuit.enter()), FAILURE, ValueError("no such index"))
    refusal = refused(circuit.enter())
    assert (refusal.state, refusal.cause, refusal.retry_after_s) == (State.OPEN, Cause.FAILURES, 10.0)
    assert refusal.last_failure == "ValueError: no such index"


def test_a_kept_failure_keeps_no_frames_alive() -> None:
    class Held:
        pass

    circuit = Clocked()

    def failing() -> weakref.ref[Held]:
        held = Held()
        try:
            int("held by a traceback")
        except ValueError as error:
            circuit.settle(passed(circuit.enter()), error, raised=True)
        return weakref.ref(held)

    held = failing()
    gc.collect()
    assert held() is None


def test_only_failures_are_kept_in_words() -> None:
    circuit = Clocked()
    circuit.leave(passed(circuit.enter()), NEUTRAL, ValueError("no evidence"))
    assert circuit.view().last_failure == ""


# Refusals without the lock


def test_an_open_circuit_refuses_without_the_lock() -> None:
    circuit = opened()
    circuit.keep_out()  # nobody has been refused yet: the breaker has to be asked
    refused(circuit.enter())
    circuit.clock.advance(2.5)
    with pytest.raises(GuardRefused) as caught:
        circuit.keep_out()
    error = caught.value
    assert error.retry_after_s == 7.5
    assert error.refusal == Refusal("db", State.OPEN, Cause.FAILURES, 7.5, "it fails")
    assert error.refusal is error.refusal
    assert (error.name, error.last_failure) == ("db", "it fails")
    assert str(error) == "db is open (failures), try again in 7.5 s, last failure it fails"


def test_a_quick_refusal_is_an_exception_like_others() -> None:
    known = Refusal("db", State.OPEN, Cause.FAILURES, 7.5)
    error = ShutOut(known, 2.0)
    for other in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert other.refusal == error.refusal == Refusal("db", State.OPEN, Cause.FAILURES, 2.0)
    with pytest.raises(AttributeError, match="'ShutOut' object has no attribute 'nothing'"):
        _ = error.nothing


def test_quick_refusals_are_counted_with_the_others() -> None:
    circuit = opened()
    for _ in range(2):
        refused(circuit.enter())
        for _ in range(3):
            with pytest.raises(ShutOut):
                circuit.keep_out()
    assert circuit.view().refused == {Cause.FAILURES: 8}


def test_at_its_end_the_breaker_itself_is_asked() -> None:
    circuit = opened()
    refused(circuit.enter())
    circuit.clock.advance(9.9995)
    circuit.keep_out()
    assert refused(circuit.enter()).retry_after_s == pytest.approx(0.0005)
    circuit.clock.advance(10.0)
    circuit.keep_out()
    passed(circuit.enter())


@pytest.mark.parametrize("verb", ["reset", "disable", "metrics_only", "force_open"])
def test_an_operator_ends_quick_refusals(verb: str) -> None:
    circuit = opened()
    refused(circuit.enter())
    getattr(circuit, verb)()
    circuit.keep_out()


def test_a_clock_that_steps_back_is_the_breakers_business() -> None:
    circuit = opened()
    refused(circuit.enter())
    circuit.clock._now_s -= 100.0
    circuit.keep_out()
    assert refused(circuit.enter()).retry_after_s == 10.0


def test_a_circuit_that_others_may_answer_for_is_never_quick() -> None:
    circuit = opened()
    refused(circuit.enter())
    circuit.shed = lambda: None
    circuit.keep_out()


# Shedding


def test_a_shed_feature_is_refused_before_the_breaker_is_asked() -> None:
    circuit = Clocked()
    direct = [circuit.direct]
    shed = Refusal("db", State.CLOSED, Cause.SHED, 3.0)
    circuit.shed = lambda: shed
    direct.append(circuit.direct)
    assert circuit.admit() is shed
    assert circuit.view().calls == 0
    circuit.shed = lambda: None
    passed(circuit.admit())
    circuit.shed = None
    direct.append(circuit.direct)
    passed(circuit.admit())
    assert direct == [True, False, True]
    assert circuit.shed is None


# Observers


def test_changes_are_told_in_order_and_once() -> None:
    told = Told()
    circuit = half_open(told=told)
    passed(circuit.enter())
    assert told.states == [State.OPEN, State.HALF_OPEN]
    circuit.reset()
    circuit.reset()
    assert told.states == [State.OPEN, State.HALF_OPEN, State.CLOSED]
    generations = [change.generation for change in told.changes]
    assert generations == sorted(set(generations))


def test_an_observer_that_raises_is_logged_and_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def told(changes: Sequence[Transition]) -> None:
        raise RuntimeError("the observer's own")

    circuit = opened(told=told)
    assert circuit.state() is State.OPEN
    circuit.reset()
    assert circuit.state() is State.CLOSED
    assert [(line.name, line.levelno) for line in caplog.records] == [("autoglm_throttle", logging.WARNING)]
    assert "the observer's own" in caplog.text


def test_an_observer_may_use_the_circuit_that_it_observes() -> None:
    seen: list[tuple[State, State]] = []

    def told(changes: Sequence[Transition]) -> None:
        for change in changes:
            seen.append((change.after, circuit.state()))
            if change.after is State.OPEN:
                circuit.force_open()
                seen.append((change.after, circuit.state()))

    circuit = Clocked(told=told)
    fail(circuit)
    assert seen == [
        (State.OPEN, State.OPEN),
        (State.OPEN, State.FORCED_OPEN),
        (State.FORCED_OPEN, State.FORCED_OPEN),
    ]


def test_one_thread_delivers_for_all_and_in_order() -> None:
    busy, go_on, told = threading.Event(), threading.Event(), Told()

    def slow(changes: Sequence[Transition]) -> None:
        told(changes)
        if len(told.changes) == 1:
            busy.set()
            assert go_on.wait(60)

    circuit = Clocked(told=slow)
    first = threading.Thread(target=fail, args=(circuit,))
    first.start()
    assert busy.wait(60)
    circuit.reset()
    circuit.force_open()
    assert told.states == [State.OPEN]
    go_on.set()
    first.join(60)
    assert told.states == [State.OPEN, State.CLOSED, State.FORCED_OPEN]


class Turn:
    """A lock before whose release somebody else brings a message, and goes on since it is taken."""

    def __init__(self, courier: Courier, told: list[str]) -> None:
        self.courier = courier
        self.told = told
        self.taken = False

    def acquire(self, *, blocking: bool) -> bool:
        assert not blocking
        free, self.taken = not self.taken, True
        return free

    def release(self) -> None:
        if self.told == ["first"]:
            self.courier.take(lambda: self.told.append("second"))
            self.courier.deliver()
            assert self.told == ["first"]
        self.taken = False


def test_who_delivers_looks_again_before_it_leaves() -> None:
    courier = Courier(Seldom("db", ManualClock()))
    told: list[str] = []
    courier._turn = Turn(courier, told)  # type: ignore[assignment]
    courier.take(lambda: told.append("first"))
    courier.deliver()
    assert told == ["first", "second"]


def test_no_observer_is_called_under_the_lock() -> None:
    circuit = Clocked(told=lambda _: others.append(ask()))
    others: list[State] = []

    def ask() -> State:
        found: list[State] = []
        thread = threading.Thread(target=lambda: found.append(circuit.state()))
        thread.start()
        thread.join(60)
        return found[0]

    fail(circuit)
    assert others == [State.OPEN]


# Operators and what there is to see


@pytest.mark.parametrize(
    ("verb", "state"),
    [("force_open", State.FORCED_OPEN), ("disable", State.DISABLED), ("reset", State.CLOSED)],
)
def test_operators_decide_until_they_say_otherwise(verb: str, state: State) -> None:
    circuit = opened()
    getattr(circuit, verb)()
    circuit.clock.advance(1000.0)
    assert circuit.state() is circuit.view().state is state


def test_metrics_only_lets_all_through_and_counts() -> None:
    circuit = Clocked()
    circuit.metrics_only()
    fail(circuit)
    passed(circuit.enter())
    assert circuit.view().would_refuse == 1


def test_a_dependency_says_itself_when_to_come_back() -> None:
    told = Told()
    circuit = Clocked(told=told)
    circuit.opened_for(42.0)
    refusal = refused(circuit.enter())
    assert (refusal.cause, refusal.retry_after_s) == (Cause.RETRY_AFTER, 42.0)
    assert told.states == [State.OPEN]


def test_what_would_be_refused_is_asked_without_effect() -> None:
    circuit = opened()
    before = circuit.view()
    assert refused(circuit.refuses() or passed(circuit.enter())).retry_after_s == 10.0
    assert circuit.view() == before
    circuit.clock.advance(10.0)
    assert circuit.refuses() is None
    assert circuit.view().machine is State.OPEN


def test_reprs_show_live_state() -> None:
    assert "open by failures" in repr(opened())


def test_who_is_idle_may_be_let_go() -> None:
    circuit = Clocked(Rules(failures=2))
    idle = [circuit.idle]
    under_way = passed(circuit.enter())
    fail(circuit)
    idle.append(circuit.idle)
    circuit.leave(under_way, SUCCESS)
    idle.append(circuit.idle)
    circuit.metrics_only()
    idle.append(circuit.idle)
    assert idle == [True, False, True, False]


@pytest.mark.parametrize("mode", Mode)
def test_idle_is_as_it_began(mode: Mode) -> None:
    assert Clocked(Rules(mode=mode)).idle is (mode is not Mode.DISABLED)


def test_who_is_open_or_busy_is_not_idle() -> None:
    assert not opened().idle
    bounded = Clocked(Rules(max_in_flight=2))
    idle = [bounded.idle]
    under_way = passed(bounded.enter())
    idle.append(bounded.idle)
    bounded.leave(under_way, NEUTRAL)
    idle.append(bounded.idle)
    assert idle == [True, False, True]


def test_nothing_keeps_a_circuit_alive() -> None:
    circuit = Clocked(told=Told())
    fail(circuit)
    refused(circuit.enter())
    there = weakref.ref(circuit)
    del circuit
    gc.collect()
    assert there() is None


# Forks


def test_in_a_fork_the_parents_lock_and_calls_are_gone() -> None:
    told = Told()
    circuit = half_open(told=told)
    trial = passed(circuit.enter())
    for lock in (circuit._locked._lock, circuit._locked._courier._turn):
        parents = threading.Thread(target=lock.acquire)
        parents.start()
        parents.join(60)

    def child() -> None:
        circuit.forget()
        circuit.leave(trial, FAILURE)
        circuit.leave(passed(circuit.enter()), SUCCESS)

    thread = threading.Thread(target=child, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert circuit.view().stale_results == 1
    assert told.states == [State.OPEN, State.HALF_OPEN, State.CLOSED]


def test_a_fork_knows_what_was_open() -> None:
    circuit = opened()
    refused(circuit.enter())
    circuit.forget()
    circuit.keep_out()
    assert refused(circuit.enter()).retry_after_s == 10.0


def test_a_real_clock_is_the_default() -> None:
    circuit = Circuit("db", Rules(failures=1))
    fail(circuit)
    assert 9.0 < refused(circuit.enter()).retry_after_s <= 10.0


def test_what_a_face_knows_of_a_value_holds_where_nobody_else_speaks() -> None:
    assert Clocked().outcome_of(503, raised=False, otherwise=FAILURE) is FAILURE
    speaking = Clocked(judge=Judge(classify=lambda _: SUCCESS))
    assert speaking.outcome_of(503, raised=False, otherwise=FAILURE) is SUCCESS
