"""Stores of breakers on a real server, and breakers that record their updates."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from autoglm_throttle.store.breakers.sync import RedisBreakerStore
from autoglm_throttle.types import BreakerState, ProbeRequest, RemoteBreakerState
from tests.store.polling import until

PATIENCE_S = 60.0
"""Seconds until a thread counts as dead. No answer takes as long, however busy the machine is."""
ONE = ProbeRequest(half_open_max=1, successes_needed=1, limits_concurrent=False, lease_s=600.0)
"""One trial, whose success closes; its lease does not end during a test."""


@dataclass
class Diary:
    """A breaker that only records its updates."""

    states: list[RemoteBreakerState] = field(default_factory=list)
    threads: set[str] = field(default_factory=set)
    notified: threading.Event = field(default_factory=threading.Event)

    def changed(self, remote: RemoteBreakerState) -> None:
        self.states.append(remote)
        self.threads.add(threading.current_thread().name)
        self.notified.set()

    @property
    def words(self) -> list[BreakerState]:
        return [remote.state for remote in self.states]

    def reads(self, *words: BreakerState) -> None:
        """Wait until exactly these were told."""
        until(lambda: self.words == list(words), PATIENCE_S, f"{list(words)}, but {self.words}")


_KEPT: list[Diary] = []
"""A store keeps no breaker alive."""


def watched(store: RedisBreakerStore, name: str = "a") -> Diary:
    """A breaker of that process, whose first state is known."""
    diary = Diary()
    _KEPT.append(diary)
    store.subscribe(name, diary.changed)
    store.read_state(name)
    return diary
