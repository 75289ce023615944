"""A loop whose time a test moves, a server that answers when a test says so, and a codec of numbers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from autoglm_throttle.settings.groups.store import StoreSettings
from autoglm_throttle.store.batch import RedisBatch
from autoglm_throttle.store.protocol import ScriptArguments, StoreErrorKind

STEP_S = 0.002


class Number:
    """An entry: what is asked, on so many keys."""

    def __init__(self, name: int, keys: int = 1, tag: int = 0, *, undoes: int | None = None) -> None:
        self.name = name
        self.keys = [f"k{name}"] * keys
        self.tag = tag
        self.undoes = undoes


class Numbers:
    """Entries travel as their names; the answer to n is [n]. Only even ones have something to undo."""

    def encode(self, entries: Sequence[Number]) -> ScriptArguments:
        return [key for entry in entries for key in entry.keys], [entry.name for entry in entries]

    def decode(self, reply: object, entries: Sequence[Number]) -> list[list[int] | StoreErrorKind]:
        if not isinstance(reply, list) or len(reply) != len(entries):
            raise ValueError("too short")
        return reply

    def undo(self, entry: Number, answer: list[int], *, only_slots: bool = False) -> Number | None:
        return Number(-1 - entry.name, undoes=entry.name) if entry.name % 2 == 0 and not only_slots else None


class Call:
    """One round trip that the server has not answered yet."""

    def __init__(self, calls: Sequence[ScriptArguments], wanted: Callable[[], bool]) -> None:
        self.calls = calls
        self.wanted = wanted
        self.names = [[int(name) for name in arguments] for _, arguments in calls]
        self.reply: asyncio.Future[Sequence[object]] = asyncio.get_running_loop().create_future()

    def answer(self) -> None:
        if not self.reply.done():
            self.reply.set_result([[[name] for name in names] for names in self.names])

    def refuse(self, *troubles: object) -> None:
        if not self.reply.done():
            self.reply.set_result(troubles or [StoreErrorKind.LOST] * len(self.calls))


class Server:
    """Keeps every call until the test releases it."""

    def __init__(self, *, cluster: bool) -> None:
        self.cluster = cluster
        self.is_connected = True
        self.open: list[Call] = []
        self.seen: list[int] = []
        """Names in the order in which they were sent."""
        self.most_open = 0

    async def __call__(
        self, calls: Sequence[ScriptArguments], wanted: Callable[[], bool]
    ) -> Sequence[object]:
        call = Call(calls, wanted)
        if self.is_connected:
            wanted()
        self.open.append(call)
        self.most_open = max(self.most_open, len(self.open))
        self.seen += [name for names in call.names for name in names]
        try:
            return await call.reply
        finally:
            self.open.remove(call)


class ManualLoop(asyncio.SelectorEventLoop):
    """A loop with manual time; nothing waits for anything real."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0

    def time(self) -> float:
        return self.now

    def settle(self) -> None:
        """Run until no task has anything to do at this time."""
        self.run_until_complete(passes(30))

    def move(self, seconds: float) -> None:
        """Let time pass on a loop that is never late."""
        end_s = self.now + seconds
        while self.now < end_s:
            self.now = min(end_s, self.now + STEP_S)
            self.settle()

    def stall(self, seconds: float) -> None:
        """Let time pass at once: whatever was due in it is that late."""
        self.now += seconds
        self.settle()

    def act(self, what: Callable[[], Any]) -> Any:
        """Call inside the loop."""

        async def call() -> Any:
            return what()

        return self.run_until_complete(call())

    def end(self) -> None:
        """Close, with nothing left behind."""
        left = asyncio.all_tasks(self)
        for task in left:
            task.cancel()
        self.settle()
        self.close()


async def passes(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


class Plant:
    """A batch with its loop and its server."""

    def __init__(self, *, split: bool = False, **settings: float) -> None:
        self.loop = ManualLoop()
        self.server = Server(cluster=split)
        self.reports: list[StoreErrorKind | None] = []
        self.numbers = Numbers()
        protocol: Any = self.numbers
        script: Any = self.server
        self.batch: Any = RedisBatch(
            self.loop,
            protocol,
            script,
            StoreSettings().model_copy(update=settings),
            self.reports.append,
        )

    def __enter__(self) -> Plant:
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.end()

    def together(self, *entries: Number) -> list[asyncio.Future[list[int] | StoreErrorKind]]:
        """Ask all in one pass of the loop."""
        futures: list[asyncio.Future[list[int] | StoreErrorKind]] = self.loop.act(
            lambda: [self.batch.request(entry) for entry in entries]
        )
        self.loop.settle()
        return futures

    def answer_all(self) -> None:
        while self.server.open:
            for call in list(self.server.open):
                call.answer()
            self.loop.settle()
