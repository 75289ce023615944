"""Guards inside the clients requests and aiohttp: a rejected call raises an exception of the client.

Code around a client catches the client's exceptions, so a rejection is one of them here. It stays the cause:
`GuardRejected.find` returns it, and `guard_rejected` answers with 503 and Retry-After. The guard sees the
status of each response, and each redirect is a call of its own. Retries of the client would be inside the
guard: leave them off, which is the default of both.
"""

from __future__ import annotations

from typing import Any

import aiohttp
import requests
from requests.adapters import HTTPAdapter

from autoglm_throttle import GuardRejected, Throttle


class GuardedAdapter(HTTPAdapter):
    """Guards requests: ``session.mount("https://models.test", GuardedAdapter(throttle, "models"))``.

    A rejection is a ``requests.ConnectionError``.
    """

    def __init__(self, throttle: Throttle, name: str) -> None:
        super().__init__()
        self.guarded_send = throttle.guard(name)(super().send)

    def send(self, request: requests.PreparedRequest, *rest: Any, **options: Any) -> requests.Response:  # noqa: ANN401 - those of HTTPAdapter
        """Send one request, or raise the rejection of the guard."""
        try:
            return self.guarded_send(request, *rest, **options)
        except GuardRejected as rejected:
            raise requests.ConnectionError(rejected, request=request) from rejected


def guarded(throttle: Throttle, name: str) -> aiohttp.ClientMiddlewareType:
    """Guard aiohttp 3.12 or newer: ``ClientSession(middlewares=[guarded(throttle, "models")])``.

    A rejection is an ``aiohttp.ClientConnectionError``; the time limit of the guard is a `TimeoutError`, as
    that of aiohttp.
    """
    guard = throttle.guard(name)

    async def middleware(
        request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        try:
            return await guard(handler)(request)
        except GuardRejected as rejected:
            raise aiohttp.ClientConnectionError(str(rejected)) from rejected

    return middleware
