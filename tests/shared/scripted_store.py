"""A store that answers what a test has put in, in memory and at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from autoglm_throttle.limiting.shared.store import Answer, Charge, Health, Trouble


def granted(left: int = 5, *, limits: int = 1) -> list[int]:
    """An answer that allows, with so many units left of each limit."""
    return [1, left, 0, 60_000_000, 7] * limits


def refused(retry_us: int = 2_000_000, left: int = 0) -> list[int]:
    """An answer that refuses for so many microseconds."""
    return [0, left, retry_us, 60_000_000, 0]


class ScriptedStore:
    """Gives the answers of ``script``, then ``otherwise`` for ever.

    While ``gate`` is set, nobody is answered until it is opened.
    """

    kind = "scripted"
    last_error = ""
    approximate = False

    def __init__(self, *script: Answer | Trouble, otherwise: Answer | Trouble | None = None) -> None:
        self.script: list[Answer | Trouble] = list(script)
        self.otherwise: Answer | Trouble = otherwise if otherwise is not None else granted()
        self.asked: list[tuple[Charge, ...]] = []
        self.given_back: list[tuple[tuple[Charge, ...], Answer]] = []
        self.probes: list[Trouble | None] = []
        self.probed = 0
        self.dropped = 0
        self.forgotten = 0
        self.gate: asyncio.Event | None = None
        self.report: Callable[[Trouble | None], None] = lambda trouble: None

    async def charge(self, charges: Sequence[Charge]) -> Answer | Trouble:
        self.asked.append(tuple(charges))
        if self.gate is not None:
            await self.gate.wait()
        answer = self.script.pop(0) if self.script else self.otherwise
        self.report(answer if isinstance(answer, Trouble) else None)
        return answer

    def give_back(self, charges: Sequence[Charge], answer: Answer) -> None:
        self.given_back.append((tuple(charges), answer))

    async def probe(self) -> Trouble | None:
        self.probed += 1
        return self.probes.pop(0) if self.probes else None

    def listen(self, report: Callable[[Trouble | None], None]) -> None:
        self.report = report

    def drop(self) -> None:
        self.dropped += 1

    def forget(self) -> None:
        self.forgotten += 1

    def health(self) -> Health:
        return Health(calls=len(self.asked), asked=len(self.asked))
