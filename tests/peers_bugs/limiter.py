"""Limiters to hold against the bugs that others have lived with: ours, and a plain one to plant them in.

`Plain` is right as it stands; each test derives a limiter with one bug from it. A check that passes for
`ours` and `Plain` and fails for the planted bug has shown that it looks for that bug and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from autoglm_throttle.asgi import ThrottleMiddleware
from autoglm_throttle.testing import ManualClock, throttle_for_tests
from tests.asgi.run_app import CLIENT, Answer, App, at_once, http_scope

LIMIT = 3
WINDOW_S = 60


@dataclass
class Subject:
    """A limiter round an app, with its clock, and how many users it remembers."""

    app: App
    clock: ManualClock
    remembered: Callable[[], int]

    def ask(self, client: str = CLIENT[0], **more: Any) -> Answer:
        """One request of one client."""
        return at_once(self.app, http_scope("/x", client=(client, 1), **more))

    def passed(self, times: int, **more: Any) -> int:
        """How many of so many equal requests pass."""
        return [self.ask(**more).status for _ in range(times)].count(200)


Make = Callable[..., Subject]


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """An app that answers in two parts."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"a", "more_body": True})
    await send({"type": "http.response.body", "body": b"b"})


def ours(app: App = answer, **settings: Any) -> Subject:
    """The throttle, with ``LIMIT`` requests per user in ``WINDOW_S`` and no other limit in the way."""
    defaults: dict[str, Any] = {"user_limit": f"{LIMIT}/{WINDOW_S} second", "rate_mid_rps": 1_000_000}
    throttle = throttle_for_tests(**defaults | settings)
    return Subject(
        ThrottleMiddleware(app, throttle=throttle), throttle.clock, lambda: throttle.snapshot().users
    )


class Plain:
    """The simplest limiter that is right: a log of times for each client address."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.clock = ManualClock()
        self.logs: dict[str, list[float]] = {}

    @classmethod
    def subject(cls, app: App = answer, **_: Any) -> Subject:
        """This limiter round an app; settings are for others."""
        limiter = cls(app)
        return Subject(limiter, limiter.clock, lambda: len(limiter.logs))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        wait = self.hit(self.key(scope), self.clock())
        if wait > 0:
            headers = self.headers(wait)
            await send({"type": "http.response.start", "status": 429, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
        else:
            await self.run(scope, receive, send)

    def key(self, scope: Any) -> str:
        """Who asks."""
        return str(scope["client"][0])

    def hit(self, key: str, now: float) -> float:
        """Charge a request; 0, or the seconds to wait."""
        self.expire(now)
        log = self.logs[key] = [spent for spent in self.logs.get(key, ()) if spent + WINDOW_S > now]
        if len(log) >= LIMIT:
            return log[0] + WINDOW_S - now
        log.append(now)
        return 0.0

    def expire(self, now: float) -> None:
        """Look at the two users who were looked at longest ago, and forget them if they are idle."""
        for key in list(islice(self.logs, 2)):
            log = self.logs.pop(key)
            if log[-1] + WINDOW_S > now:
                self.logs[key] = log

    def headers(self, wait: float) -> list[tuple[bytes, bytes]]:
        """The fields of a refusal."""
        return [(b"retry-after", b"%d" % math.ceil(wait))]

    async def run(self, scope: Any, receive: Any, send: Any) -> None:
        """Run the app."""
        await self.app(scope, receive, send)
