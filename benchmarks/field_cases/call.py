"""One attempt of one caller, with what is known of its work."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.loop.request import Request

MIX = (0.1, 0.3, 0.6)
"""Shares of high, mid and low."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What the requests of one stream have in common.

    Args:
        name: its work class; empty: that of the service.
        slo_s: objective of the callers.
        declares_slo: whether the objective is that of a route in the settings.
        mix: shares of the priorities high, mid and low.
        first_slo_s: objective of the first token of a streamed answer; None: there is none.
        draw_work: draws the cost, or what the plant reads instead; None: cost 1.
    """

    name: str = ""
    slo_s: float = 2.0
    declares_slo: bool = False
    mix: tuple[float, float, float] = MIX
    first_slo_s: float | None = None
    draw_work: Callable[[random.Random], Any] | None = None


class Caller(Protocol):
    """The sender of a call, told about its end."""

    def rejected(self, call: Call) -> None:
        """Handle a rejection."""
        ...

    def answered(self, call: Call, *, ok: bool) -> None:
        """Handle the end of an admitted call."""
        ...


class Call(Request):
    """A request with its kind, its user and its worker."""

    __slots__ = (
        *("caller", "first_s", "group", "holds_s", "kind", "on_first_token", "retry_after_s"),
        *("slo_s", "user", "work", "worker"),
    )

    def __init__(self, number: int, sent_s: float, priority: int, kind: Kind, cost: float = 1.0) -> None:
        super().__init__(number, sent_s, priority, cost)
        self.kind = kind
        self.slo_s = kind.slo_s
        self.user = ""
        self.group = ""
        """Group of users, for the counts."""
        self.worker = 0
        self.work: Any = None
        """Work in the terms of a plant: token counts of an LLM."""
        self.first_s: float | None = None
        """Time of the first token of a streamed answer."""
        self.on_first_token: Callable[[float], object] | None = None
        """Told about that time; set by the limiter."""
        self.caller: Caller | None = None
        self.holds_s: float | None = None
        """Seconds after which an answer that never ends is idle; None: an ordinary request."""
        self.retry_after_s: float | None = None
        """Time told with the last rejection; None: none was told."""

    def again(self, now: float) -> Call:
        """Return the next attempt."""
        call = Call(self.number, now, self.priority, self.kind, self.cost)
        call.tries = self.tries + 1
        call.first = self.first
        call.user, call.group, call.worker = self.user, self.group, self.worker
        call.work, call.caller, call.holds_s = self.work, self.caller, self.holds_s
        return call
