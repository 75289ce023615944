"""The script and a slow log give the same answers to whatever is asked, in both forms."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given

from autoglm_throttle.store.protocol import VALUES, Answer, WindowEntry
from tests.contract.reference import Reference
from tests.contract.script_store import SECOND, START, ScriptStore, limit, refund_of
from tests.contract.traces import WINDOWS_S, Hit, Refund, Step, edges_us, limits_of, traces


class Player:
    """Plays a trace against the script and the reference together."""

    def __init__(self, store: ScriptStore) -> None:
        self.store = store.fresh()
        self.reference = Reference()
        self.clock = START
        self.retry_at = START
        self.allowed: list[tuple[WindowEntry, Answer]] = []
        self.edges: list[int] = []

    def play(self, step: Step) -> None:
        if step.to == "retry":
            self.clock = self.retry_at
        elif step.to == "edge" and self.edges:
            self.clock = self.edges[-1 - step.which % len(self.edges)]
        self.clock = max(0, self.clock + step.moved_us)
        self.send([entry for entry in map(self._entry, step.entries) if entry is not None])

    def send(self, entries: Sequence[WindowEntry]) -> None:
        answers = self.store.call(entries, self.clock)
        assert answers == self.reference.call(entries, self.clock)
        for entry, answer in zip(entries, answers, strict=True):
            if not entry.refunds:
                self._note(entry, answer)

    def _entry(self, wanted: Hit | Refund) -> WindowEntry | None:
        if isinstance(wanted, Hit):
            return self.store.ask(limits_of(wanted), wanted.units, wanted.user, f"user-{wanted.plan}")
        if not self.allowed:
            return None
        ask, answer = self.allowed[-1 - wanted.which % len(self.allowed)]
        if wanted.units is None:
            return self.store.wire.build_refund(ask, answer)
        return refund_of(ask, answer, wanted.units)

    def _note(self, ask: WindowEntry, answer: Answer) -> None:
        if not any(answer[::VALUES]):
            self.allowed.append((ask, answer))
            self.edges.append(self.clock + ask.policies[0][2])
        else:
            self.retry_at = self.clock + max(0, *answer[::VALUES])


def play(store: ScriptStore, trace: Sequence[Step]) -> None:
    player = Player(store)
    for step in trace:
        player.play(step)


@pytest.mark.parametrize("window_s", WINDOWS_S)
@pytest.mark.parametrize("exact", [True, False])
def test_at_each_edge(store: ScriptStore, exact: bool, window_s: int) -> None:
    limits = (limit(20, window_s, exact=exact),)
    for start_us, edge_us in itertools.product((0, 999_999), edges_us(window_s)):
        player = Player(store)
        player.clock += start_us
        ask = store.ask(limits, 8)
        for moved_us in (0, 1, edge_us, 1, -edge_us):
            player.clock += moved_us
            player.send([ask])
        player.send([store.wire.build_refund(*player.allowed[0])])
        player.send([ask])


@pytest.mark.parametrize("expired", [0, 1, 2, 7, 8, 9, 10, 11, 12, 15, 16, 17, 39, 40])
@pytest.mark.parametrize("exact", [True, False])
def test_any_number_of_units_leaves_at_its_instant(store: ScriptStore, exact: bool, expired: int) -> None:
    limits = (limit(41, exact=exact),)
    for off in (-1, 0, 1):
        player = Player(store)
        for _ in range(40):
            player.clock += SECOND
            player.send([store.ask(limits)])
        player.clock = START + expired * SECOND + 60 * SECOND + off
        for units in (0, 30, 1, 41):
            player.send([store.ask(limits, units)])


@pytest.mark.parametrize("window_s", WINDOWS_S)
@pytest.mark.parametrize("exact", [True, False])
def test_units_of_a_clock_that_went_back_leave_with_the_newest(
    store: ScriptStore, exact: bool, window_s: int
) -> None:
    limits = (limit(3, window_s, exact=exact),)
    player = Player(store)
    for moved_s in (0, -10, 5, window_s - 1, 5, 1, 1):
        player.clock += moved_s * SECOND
        player.send([store.ask(limits)])
        player.send([store.wire.build_refund(*player.allowed[-1]), store.ask(limits), store.ask(limits, 0)])


def test_a_bucket_that_was_given_back_counts_nothing(store: ScriptStore) -> None:
    limits = (limit(40, exact=False),)
    player = Player(store)
    player.send([store.ask(limits, 3)])
    player.clock += 10 * SECOND
    player.send([store.ask(limits, 2)])
    player.send([store.wire.build_refund(*player.allowed[1])])
    for moved_s in (50, 1, 1):
        player.clock += moved_s * SECOND
        player.send([store.ask(limits, 0), store.ask(limits, 41)])


@pytest.mark.slow
@given(trace=traces)
def test_on_fakeredis(fake_store: ScriptStore, trace: Sequence[Step]) -> None:
    play(fake_store, trace)
    fake_store.client.flushall()


@given(trace=traces)
def test_on_servers(store: ScriptStore, trace: Sequence[Step]) -> None:
    play(store, trace)
