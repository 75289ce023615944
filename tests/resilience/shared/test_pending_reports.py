"""Pending reports: the newest state of each breaker, and every result of a probe."""

from __future__ import annotations

from autoglm_throttle.store.breakers.pending_writes import (
    MAX_WRITES,
    OpenMessage,
    OperatorCommand,
    PendingWrites,
    ProbeResult,
)
from autoglm_throttle.types import BreakerCause, BreakerState, Outcome


def opening(name: str, until_s: float = 10.0, known: int = 0) -> OpenMessage:
    return OpenMessage(name, until_s, 0, BreakerCause.FAILURES, known)


def finish(name: str, ticket: str, outcome: Outcome = Outcome.SUCCESS, until_s: float = 10.0) -> ProbeResult:
    return ProbeResult(name, ticket, 1, outcome, 1, 1.0, until_s)


def test_newest_state_replaces_older_pending_ones() -> None:
    pending = PendingWrites()
    pending.put(opening("a"))
    pending.put(OperatorCommand("a", BreakerState.CLOSED, 0))
    assert len(pending) == 1
    assert pending.next_write(0.0) == OperatorCommand("a", BreakerState.CLOSED, 0)
    assert repr(pending) == "PendingWrites(1 pending writes of 1 breakers)"


def test_probe_results_are_all_sent_in_order() -> None:
    pending = PendingWrites()
    ends = [finish("a", "1"), finish("a", "2", Outcome.NEUTRAL), finish("a", "3")]
    for end in ends:
        pending.put(end)
    notified = []
    while (write := pending.next_write(0.0)) is not None:
        notified.append(write)
        pending.remove(write)
    assert notified == ends


def test_new_state_drops_older_results_and_keeps_returned_leases() -> None:
    pending = PendingWrites()
    pending.put(finish("a", "1"))
    pending.put(finish("a", "2", Outcome.NEUTRAL))
    pending.put(finish("b", "3"))
    pending.put(opening("a"))
    assert len(pending) == 3
    assert pending.next_write(0.0, "a") == finish("a", "2", Outcome.NEUTRAL)
    assert pending.next_write(0.0, "b") == finish("b", "3")


def test_only_states_hold_updates_back() -> None:
    pending = PendingWrites()
    pending.put(finish("a", "1"))
    assert not pending.has_state("a")
    pending.put(opening("a"))
    assert pending.has_state("a")
    assert not pending.has_state("b")


def test_expired_writes_are_dropped_and_commands_never() -> None:
    pending = PendingWrites()
    pending.put(opening("a", until_s=1.0))
    pending.put(finish("b", "1", until_s=1.0))
    pending.put(OperatorCommand("c", BreakerState.FORCED_OPEN, 0))
    assert pending.next_write(0.9) == opening("a", until_s=1.0)
    assert pending.next_write(1.0) == OperatorCommand("c", BreakerState.FORCED_OPEN, 0)
    assert len(pending) == 1
    assert pending.next_write(1.0, "a") is None


def test_write_replaced_while_sent_keeps_its_successor() -> None:
    pending = PendingWrites()
    under_way = opening("a")
    pending.put(under_way)
    pending.put(OperatorCommand("a", BreakerState.CLOSED, 0))
    pending.remove(under_way)
    assert pending.next_write(0.0) == OperatorCommand("a", BreakerState.CLOSED, 0)
    pending.remove(OperatorCommand("b", BreakerState.CLOSED, 0))
    assert len(pending) == 1


def test_failing_write_lets_others_pass() -> None:
    pending = PendingWrites()
    pending.put(opening("a"))
    pending.put(opening("b"))
    pending.postpone("a")
    pending.postpone("nobody")
    assert pending.next_write(0.0) == opening("b")


def test_it_does_not_grow_for_ever() -> None:
    pending = PendingWrites()
    for number in range(MAX_WRITES + 5):
        pending.put(finish("a", str(number)))
    assert len(pending) == MAX_WRITES
    assert pending.next_write(0.0) == finish("a", "5")
