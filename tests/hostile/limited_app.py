"""An app behind a low user limit, and requests to it without a server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from autoglm_throttle import Priority
from autoglm_throttle.asgi import ThrottleMiddleware
from autoglm_throttle.testing import ManualThrottle, throttle_for_tests
from tests.asgi.run_app import Scope, at_once, http_scope

LIMIT = 3
PROXY = ("10.0.0.1", 1234)
STRANGER = ("198.51.100.200", 1234)

Fields = list[tuple[bytes, bytes]]


async def ok(scope: Any, receive: Any, send: Any) -> None:
    """Answer at once."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body"})


class LimitedApp:
    """An app whose callers may send three requests a minute; priority rates limit nobody."""

    def __init__(self, **settings: Any) -> None:
        plenty = {f"rate_{priority.label}_rps": 1_000_000 for priority in Priority}
        identify = settings.pop("identify", None)
        self.throttle: ManualThrottle = throttle_for_tests(
            **{"user_limit": f"{LIMIT}/minute", **plenty, **settings}
        )
        self._app = ThrottleMiddleware(ok, throttle=self.throttle, identify=identify)

    def admitted(self, scopes: Iterable[Scope]) -> int:
        """Send the requests, and return how many were admitted."""
        return [at_once(self._app, scope).status for scope in scopes].count(200)

    def admitted_fields(self, requests: Iterable[Fields], client: Any = STRANGER) -> int:
        """Send requests with these header fields, and return how many were admitted."""
        return self.admitted(http_scope("/x", headers=fields, client=client) for fields in requests)

    @property
    def users(self) -> int:
        """Callers with counts of their own."""
        return self.throttle.snapshot().users

    @property
    def oddities(self) -> dict[str, int]:
        """Oddities that were counted."""
        return dict(self.throttle.snapshot().oddities)
