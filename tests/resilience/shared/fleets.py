"""Stores of breakers on a real server, and breakers that record their updates."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from autoglm_throttle.store.breakers.sync import RedisBreakerStore
from autoglm_throttle.types import BreakerState, ProbeLease, ProbeRequest, RemoteBreakerState
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


def lease_of(store: RedisBreakerStore, name: str = "a", request: ProbeRequest = ONE) -> ProbeLease:
    """Ask until the place of a trial is free."""
    found: list[ProbeLease] = []

    def requested() -> bool:
        answer = store.acquire(name, request)
        if isinstance(answer, ProbeLease):
            found.append(answer)
        return bool(found)

    until(requested, PATIENCE_S, "a lease")
    return found[0]


def held_up(store: RedisBreakerStore, begun: threading.Event | None = None) -> threading.Event:
    """Let each call to the server wait until the event is set; ``begun`` is set by the first one."""
    goes_on, script = threading.Event(), store.script
    call = script.call_all

    def late(calls: Sequence[Any], *, cluster: bool) -> list[object]:
        if begun is not None:
            begun.set()
        goes_on.wait(PATIENCE_S)
        return call(calls, cluster=cluster)

    vars(script)["call_all"] = late
    return goes_on


def notified(store: RedisBreakerStore) -> None:
    """Wait until all is told."""
    until(lambda: not store.state.pending, PATIENCE_S, "all is told")
