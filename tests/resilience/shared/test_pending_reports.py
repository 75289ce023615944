"""Pending reports: the newest state of each breaker, and every result of a probe."""

from __future__ import annotations

from autoglm_throttle.store.breakers.protocol import ProbeResult, StateWrite, Write
from autoglm_throttle.store.breakers.state import MAX_WRITES, FleetState
from autoglm_throttle.testing import ManualClock
from autoglm_throttle.types import BreakerCause, BreakerState, Outcome


def fleet() -> FleetState:
    return FleetState(lambda: None, ManualClock(0.0))


def opening(name: str, until_s: float = 10.0, known: int = 0) -> StateWrite:
    return StateWrite(name, BreakerState.OPEN, known, until_s, 0, BreakerCause.FAILURES)


def command(name: str, state: BreakerState = BreakerState.CLOSED) -> StateWrite:
    return StateWrite(name, state, 0)


def finish(name: str, ticket: str, outcome: Outcome = Outcome.SUCCESS, until_s: float = 10.0) -> ProbeResult:
    return ProbeResult(name, ticket, until_s, 1, outcome, 1, 1.0)


def filled(*writes: Write) -> FleetState:
    state = fleet()
    for write in writes:
        state.put(write)
    return state


def pending(state: FleetState) -> list[Write]:
    return state.take_work()[0]


def test_newest_state_replaces_older_pending_ones() -> None:
    state = filled(opening("a"), command("a"))
    assert pending(state) == [command("a")]
    assert state.pending == 1


def test_probe_results_are_all_sent_in_order() -> None:
    ends = [finish("a", "1"), finish("a", "2", Outcome.NEUTRAL), finish("a", "3")]
    assert pending(filled(*ends)) == ends


def test_new_state_drops_older_results_and_keeps_returned_leases() -> None:
    state = filled(finish("a", "1"), finish("a", "2", Outcome.NEUTRAL), finish("b", "3"), opening("a"))
    assert pending(state) == [finish("a", "2", Outcome.NEUTRAL), finish("b", "3"), opening("a")]


def test_expired_writes_are_dropped_and_commands_never() -> None:
    state = fleet()
    assert isinstance(state.clock, ManualClock)
    last = command("c", BreakerState.FORCED_OPEN)
    for write in (opening("a", until_s=1.0), finish("b", "1", until_s=1.0), last):
        state.put(write)
    state.clock.advance(0.9)
    assert len(pending(state)) == 3
    state.clock.advance(0.1)
    assert pending(state) == [last]
    assert state.pending == 1


def test_write_replaced_while_sent_keeps_its_successor() -> None:
    under_way = opening("a")
    state = filled(under_way, command("a"))
    state.confirm_write(under_way, None, is_current=True)
    assert pending(state) == [command("a")]
    state.confirm_write(command("b"), None, is_current=True)
    assert state.pending == 1
    assert state.has_work()


def test_it_does_not_grow_for_ever() -> None:
    state = filled(*(finish("a", str(number)) for number in range(MAX_WRITES + 5)))
    assert state.pending == MAX_WRITES
    assert pending(state)[0] == finish("a", "5")


def test_abandoned_query_of_a_first_state_leaves_nothing_behind() -> None:
    state = fleet()
    state.subscribe("a", lambda remote: None)
    woken: list[str] = []
    gone = state.query("a", None, lambda: woken.append("gone"))
    waits = state.query("a", None, lambda: woken.append("waits"))
    assert state.finish_wait(gone, "too late") is None
    state.record_state("a", None)
    assert (woken, waits.is_answered, state.has_work()) == (["waits"], True, False)
    state.close()
    assert woken == ["waits"]
