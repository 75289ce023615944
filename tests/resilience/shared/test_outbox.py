"""What is still to be told: the newest state of each breaker, and every end of a trial."""

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
    outbox = PendingWrites()
    outbox.put(opening("a"))
    outbox.put(OperatorCommand("a", BreakerState.CLOSED, 0))
    assert len(outbox) == 1
    assert outbox.next_write(0.0) == OperatorCommand("a", BreakerState.CLOSED, 0)
    assert repr(outbox) == "PendingWrites(1 pending writes of 1 breakers)"


def test_probe_results_are_all_sent_in_order() -> None:
    outbox = PendingWrites()
    ends = [finish("a", "1"), finish("a", "2", Outcome.NEUTRAL), finish("a", "3")]
    for end in ends:
        outbox.put(end)
    told = []
    while (write := outbox.next_write(0.0)) is not None:
        told.append(write)
        outbox.remove(write)
    assert told == ends


def test_new_state_drops_older_results_and_keeps_returned_leases() -> None:
    outbox = PendingWrites()
    outbox.put(finish("a", "1"))
    outbox.put(finish("a", "2", Outcome.NEUTRAL))
    outbox.put(finish("b", "3"))
    outbox.put(opening("a"))
    assert len(outbox) == 3
    assert outbox.next_write(0.0, "a") == finish("a", "2", Outcome.NEUTRAL)
    assert outbox.next_write(0.0, "b") == finish("b", "3")


def test_only_states_hold_updates_back() -> None:
    outbox = PendingWrites()
    outbox.put(finish("a", "1"))
    assert not outbox.has_state("a")
    outbox.put(opening("a"))
    assert outbox.has_state("a")
    assert not outbox.has_state("b")


def test_expired_writes_are_dropped_and_commands_never() -> None:
    outbox = PendingWrites()
    outbox.put(opening("a", until_s=1.0))
    outbox.put(finish("b", "1", until_s=1.0))
    outbox.put(OperatorCommand("c", BreakerState.FORCED_OPEN, 0))
    assert outbox.next_write(0.9) == opening("a", until_s=1.0)
    assert outbox.next_write(1.0) == OperatorCommand("c", BreakerState.FORCED_OPEN, 0)
    assert len(outbox) == 1
    assert outbox.next_write(1.0, "a") is None


def test_write_replaced_while_sent_keeps_its_successor() -> None:
    outbox = PendingWrites()
    under_way = opening("a")
    outbox.put(under_way)
    outbox.put(OperatorCommand("a", BreakerState.CLOSED, 0))
    outbox.remove(under_way)
    assert outbox.next_write(0.0) == OperatorCommand("a", BreakerState.CLOSED, 0)
    outbox.remove(OperatorCommand("b", BreakerState.CLOSED, 0))
    assert len(outbox) == 1


def test_failing_write_lets_others_pass() -> None:
    outbox = PendingWrites()
    outbox.put(opening("a"))
    outbox.put(opening("b"))
    outbox.postpone("a")
    outbox.postpone("nobody")
    assert outbox.next_write(0.0) == opening("b")


def test_it_does_not_grow_for_ever() -> None:
    outbox = PendingWrites()
    for number in range(MAX_WRITES + 5):
        outbox.put(finish("a", str(number)))
    assert len(outbox) == MAX_WRITES
    assert outbox.next_write(0.0) == finish("a", "5")
