"""Clients of a store that the tests command, in the place of a synchronous client of redis-py."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import NoScriptError

from tests.store.bucket_store import BucketStore

PATIENCE_S = 60.0
"""Seconds until a thread counts as dead. No answer takes as long, however busy the machine is."""


class Wire:
    """One store for any number of clients, which answers, hangs or fails as the test says."""

    def __init__(self) -> None:
        self.store = BucketStore()
        self.lock = threading.Lock()
        self.asked = threading.Semaphore(0)
        self.calls: list[tuple[Any, ...]] = []
        """Arguments after the keys, of each call."""
        self.answers = threading.Event()
        self.answers.set()
        self.error: Exception | None = None
        self.knows_script = True
        self.made = 0
        self.closed = 0
        self.threads: set[str] = set()
        self.answer: Callable[[tuple[Any, ...]], Any] = self.buckets

    def connect(self) -> Client:
        self.made += 1
        return Client(self)

    def buckets(self, arguments: tuple[Any, ...]) -> Any:
        member, lives_us, *figures = arguments
        return self.store.call(str(member), int(lives_us), figures)

    def call(self, arguments: tuple[Any, ...]) -> Any:
        self.calls.append(arguments)
        self.threads.add(threading.current_thread().name)
        self.asked.release()
        self.answers.wait()
        if self.error is not None:
            raise self.error
        with self.lock:
            return self.answer(arguments)

    def wait(self, calls: int = 1) -> None:
        for _ in range(calls):
            assert self.asked.acquire(timeout=PATIENCE_S), "nobody called"


class Client:
    """The result of `connect`."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    def evalsha(self, sha: str, keys: int, *arguments: Any) -> Any:
        if not self.wire.knows_script:
            raise NoScriptError("No matching script.")
        return self.wire.call(arguments[keys:])

    def eval(self, script: str, keys: int, *arguments: Any) -> Any:
        self.wire.knows_script = True
        return self.wire.call(arguments[keys:])

    def close(self) -> None:
        self.wire.closed += 1


def names(calls: Sequence[tuple[Any, ...]]) -> set[str]:
    return {str(call[0]) for call in calls}
