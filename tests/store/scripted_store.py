"""A store that returns prepared answers, in memory and at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from autoglm_throttle.store.protocol import (
    Answer,
    AnyCharge,
    StoreErrorKind,
    StoreStats,
    WindowEntry,
    WindowProtocol,
)


def granted(left: int = 5, *, limits: int = 1) -> list[int]:
    """An answer that allows, with so many units left of each limit."""
    return [0, left, 60_000_000, 7] * limits


def denied(retry_us: int = 2_000_000, left: int = 0) -> list[int]:
    """An answer that rejects for so many microseconds."""
    return [retry_us, left, 60_000_000, 0]


class ScriptedStore:
    """Gives the answers of ``script``, then ``otherwise`` for ever.

    While ``gate`` is set, nobody is answered until it is opened.
    """

    kind = "scripted"
    last_error = ""

    def __init__(
        self, *script: Answer | StoreErrorKind, otherwise: Answer | StoreErrorKind | None = None
    ) -> None:
        self.protocol = WindowProtocol("athr", "default", 16)
        self.script: list[Answer | StoreErrorKind] = list(script)
        self.otherwise: Answer | StoreErrorKind = otherwise if otherwise is not None else granted()
        self.charged: list[tuple[AnyCharge, ...]] = []
        self.abandoned: list[WindowEntry] = []
        self.given_back: list[tuple[tuple[AnyCharge, ...], Answer]] = []
        self.probes: list[StoreErrorKind | None] = []
        self.probed = 0
        self.dropped = 0
        self.hold: asyncio.Event | None = None
        self.report: Callable[[StoreErrorKind | None], None] = lambda error: None

    async def charge(self, request: WindowEntry) -> Answer | StoreErrorKind:
        self.charged.append(tuple(request.charges))
        if self.hold is not None:
            await self.hold.wait()
        answer = self.script.pop(0) if self.script else self.otherwise
        self.report(answer if isinstance(answer, StoreErrorKind) else None)
        return answer

    def abandon(self, request: WindowEntry, reply: object) -> None:
        self.abandoned.append(request)

    def give_back(self, request: WindowEntry, answer: Answer) -> None:
        self.given_back.append((tuple(request.charges), answer))

    async def probe(self) -> StoreErrorKind | None:
        self.probed += 1
        return self.probes.pop(0) if self.probes else None

    def listen(self, report: Callable[[StoreErrorKind | None], None]) -> None:
        self.report = report

    def disconnect(self) -> None:
        self.dropped += 1

    def stats(self) -> StoreStats:
        return StoreStats(calls=len(self.charged), sent=len(self.charged))
