"""The words of the table for guarded streams, which begin, go on and end one by one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

from autoglm_throttle.resilience.guard import Guard
from autoglm_throttle.resilience.state import GuardState
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import GuardRejected
from tests.resilience import faces
from tests.resilience.conformance.events import EventHandlers, EventRunner, rejection


class Broken(Exception):
    """Exception of a broken stream."""


class Source:
    """A guarded stream that does the last event."""

    def __init__(self) -> None:
        self.run_event = "item"
        self.closed = False

    def step(self) -> bool:
        """Whether there is a further item."""
        if self.run_event == "break":
            raise Broken
        if self.run_event == "cancelled":
            raise asyncio.CancelledError
        return self.run_event == "item"

    def plain(self) -> Iterator[str]:
        try:
            while self.step():
                yield "an item"
        finally:
            self.closed = True

    async def later(self) -> AsyncIterator[str]:
        try:
            while self.step():
                yield "an item"
        finally:
            self.closed = True


class Stream:
    """One guarded stream, taken item by item; both kinds are driven by hand."""

    def __init__(self, circuit: GuardState, face: str) -> None:
        self.source = Source()
        guard = Guard(circuit)
        self.plain = face == "generator"
        self.taking: Any = guard(self.source.plain)() if self.plain else guard(self.source.later)()

    def takes(self) -> None:
        if self.plain:
            next(self.taking)
        else:
            faces.drive(anext(self.taking))

    def leaves(self) -> None:
        if self.plain:
            self.taking.close()
        else:
            faces.drive(self.taking.aclose())


class Streams(EventRunner):
    """A guard, and the streams that go through it."""

    def __init__(self, rules: BreakerSettings, face: str) -> None:
        super().__init__()
        self.circuit = GuardState("it", rules, clock=self.clock)
        self.face = face
        self.streams: dict[str, Stream] = {}

    def handlers(self) -> EventHandlers:
        return {
            r"make (\w+)": self.make,
            r"begin (\w+)": self.begin,
            r"(\w+) goes on": lambda name: self.streams[name].takes(),
            r"(\w+) ends": lambda name: self.end(name, "end"),
            r"(\w+) breaks": lambda name: self.end(name, "break"),
            r"(\w+) is cancelled": lambda name: self.end(name, "cancelled"),
            r"(\w+) is left": lambda name: self.streams[name].leaves(),
            r"(\w+) is closed": lambda name: "closed" if self.streams[name].source.closed else "not closed",
            r"break": self.breaks,
            r"state": lambda: str(self.circuit.state()),
            r"in flight": lambda: f"in flight {self.circuit.view().in_flight}",
            r"stale": lambda: f"stale {self.circuit.view().stale_results}",
            r"begin (\w+) after ([\d.]+)": self.begin_late,
        }

    def make(self, name: str) -> None:
        self.streams[name] = Stream(self.circuit, self.face)

    def begin(self, name: str) -> str:
        if name not in self.streams:
            self.make(name)
        try:
            self.streams[name].takes()
        except GuardRejected as rejected:
            return rejection(rejected.rejection)
        return "begun"

    def begin_late(self, name: str, after_s: str) -> str:
        self.make(name)
        source = self.streams[name].source
        step = source.step

        def late() -> bool:
            self.wait(after_s)
            source.step = step  # type: ignore[method-assign]
            return step()

        source.step = late  # type: ignore[method-assign]
        return self.begin(name)

    def end(self, name: str, how: str) -> None:
        stream = self.streams[name]
        stream.source.run_event = how
        try:
            stream.takes()
        except (StopIteration, StopAsyncIteration, Broken, asyncio.CancelledError):
            return
        raise AssertionError(f"{name} goes on")

    def breaks(self) -> None:
        """A whole stream that breaks after its first item."""
        assert self.begin("another") == "begun"
        self.end("another", "break")
        del self.streams["another"]
