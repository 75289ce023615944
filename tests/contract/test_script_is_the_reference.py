"""The script and a slow log give the same answers to whatever is asked, in both forms."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given

from autoglm_throttle.limiting.shared.store import VALUES, Answer
from autoglm_throttle.limiting.shared.wire import Ask, Entry
from tests.contract.reference import Reference
from tests.contract.script_store import START, ScriptStore
from tests.contract.traces import Change, Hit, Step, limits_of, traces


class Player:
    """Plays a trace against the script and the reference together."""

    def __init__(self, store: ScriptStore) -> None:
        self.store = store.fresh()
        self.reference = Reference()
        self.clock = START
        self.retry_at = START
        self.allowed: list[tuple[Ask, Answer]] = []

    def play(self, step: Step) -> None:
        self.clock = max(0, (self.retry_at if step.to_retry else self.clock) + step.moved_us)
        entries = [entry for entry in map(self._entry, step.entries) if entry is not None]
        answers = self.store.call(entries, self.clock)
        assert answers == self.reference.call(entries, self.clock)
        for entry, answer in zip(entries, answers, strict=True):
            if isinstance(entry, Ask):
                self._note(entry, answer)

    def _entry(self, wanted: Hit | Change) -> Entry | None:
        if isinstance(wanted, Hit):
            return self.store.ask(limits_of(wanted), wanted.units, wanted.user, f"user-{wanted.plan}")
        if not self.allowed:
            return None
        ask, answer = self.allowed[-1 - wanted.which % len(self.allowed)]
        if wanted.delta is None:
            return self.store.wire.back(ask, answer)
        return self.store.wire.spent(ask, answer, wanted.delta)

    def _note(self, ask: Ask, answer: Answer) -> None:
        if all(answer[::VALUES]):
            self.allowed.append((ask, answer))
        else:
            self.retry_at = self.clock + max(0, *answer[2::VALUES])


def play(store: ScriptStore, trace: Sequence[Step]) -> None:
    player = Player(store)
    for step in trace:
        player.play(step)


@given(trace=traces)
def test_on_fakeredis(fake_store: ScriptStore, trace: Sequence[Step]) -> None:
    play(fake_store, trace)
    fake_store.client.flushall()


@given(trace=traces)
def test_on_servers(store: ScriptStore, trace: Sequence[Step]) -> None:
    play(store, trace)
