"""The script on a server, with its clock in the hand of a test."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from redis.exceptions import NoScriptError

from autoglm_throttle.store.protocol import (
    VALUES,
    Answer,
    StoreCharge,
    StoreErrorKind,
    WindowEntry,
    WindowProtocol,
    script,
)
from autoglm_throttle.types import UserLimit

READS_TIME = "local time = redis.call('TIME')\n"
GIVEN_TIME = "local time = {table.remove(ARGV, 1), table.remove(ARGV, 1)}\n"
SECOND = 1_000_000
START = 1_763_747_000 * SECOND


class Compact(UserLimit):
    """A limit that is kept in the compact form although it is small."""

    @property
    def exact(self) -> bool:
        return False


def limit(units: int, window_s: int = 60, *, exact: bool = True) -> UserLimit:
    return (UserLimit if exact else Compact)(f"user-{window_s}s", units, window_s)


def refund_of(request: WindowEntry, answer: Answer, units: int) -> WindowEntry:
    """The refund of so many units under each limit of an admission."""
    refund = WindowProtocol("athr", "default", 16).build_refund(request, answer)
    return replace(refund, refunds=[units] * len(request.keys))


class ScriptStore:
    """One server, and what is asked of it.

    Args:
        client: of redis-py or fakeredis.
        prefix: of all keys; each `fresh` store adds to it.
    """

    def __init__(self, client: Any, prefix: str) -> None:
        assert script().count(READS_TIME) == 1
        self.client = client
        self._base = self.prefix = prefix
        self._numbers = itertools.count()
        self._scripts = {True: script(), False: script().replace(READS_TIME, GIVEN_TIME)}
        self.wire = WindowProtocol(prefix, "default", 16)

    def fresh(self) -> ScriptStore:
        """Windows that nobody has spent from."""
        self.prefix = f"{self._base}-{next(self._numbers)}"
        self.wire = WindowProtocol(self.prefix, "default", 16)
        return self

    def call(self, entries: Sequence[WindowEntry], clock: int) -> list[Answer]:
        """All entries in one call at an instant of ours."""
        keys, arguments = self.wire.encode(entries)
        reply = self._run(keys, [clock // SECOND, clock % SECOND, *arguments], now=False)
        assert reply[0] == clock
        return self._answers(reply, entries)

    def call_now(self, entries: Sequence[WindowEntry]) -> tuple[int, list[Answer]]:
        """The same by the server's own clock, which is told, too."""
        reply = self._run(*self.wire.encode(entries), now=True)
        return reply[0], self._answers(reply, entries)

    def _answers(self, reply: list[int], entries: Sequence[WindowEntry]) -> list[Answer]:
        """The integers of each entry, those of a foreign key included."""
        decoded = self.wire.decode(reply, entries)
        sizes = [len(entry.keys) * (VALUES if not entry.refunds else 1) for entry in entries]
        ends = list(itertools.accumulate(sizes, initial=1))
        answers: list[Answer] = [reply[start:end] for start, end in itertools.pairwise(ends)]
        for known, answer in zip(decoded, answers, strict=True):
            assert known in (answer, StoreErrorKind.FOREIGN)
        return answers

    def _run(self, keys: Sequence[str], arguments: Sequence[Any], *, now: bool) -> list[int]:
        text = self._scripts[now]
        sha = hashlib.sha1(text.encode()).hexdigest()
        try:
            reply = self.client.evalsha(sha, len(keys), *keys, *arguments)
        except NoScriptError:
            reply = self.client.eval(text, len(keys), *keys, *arguments)
        assert isinstance(reply, list)
        return reply

    def ask(
        self, limits: tuple[UserLimit, ...], units: int = 1, user: str = "a", kind: str = "user"
    ) -> WindowEntry:
        return self.wire.build_check((StoreCharge(kind, limits, user, units),))

    def hit(self, limits: tuple[UserLimit, ...], clock: int, units: int = 1, user: str = "a") -> Answer:
        return self.call([self.ask(limits, units, user)], clock)[0]
