"""Loads and applications for the tests of runs in process."""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from autoglm_throttle.traffic.plan import LoadPlan
from autoglm_throttle.traffic.request_source import PlannedRequest, RequestSource
from autoglm_throttle.types import Priority

Behave = Callable[[Scope, Receive, Send], Awaitable[None]]


def a_load(
    offsets: list[float],
    *requests: PlannedRequest,
    kinds: list[int] | None = None,
    clients: list[int] | None = None,
    priorities: bytes | None = None,
) -> RequestSource:
    count = len(offsets)
    return RequestSource(
        LoadPlan(
            offsets=array("d", offsets),
            priorities=priorities or bytes([Priority.MID] * count),
            segments=array("H", [0] * count),
            clients=array("I", clients or [0] * count),
            kinds=array("I", kinds or [0] * count),
            names=("all",),
            ends_s=(max(offsets, default=0.0) + 1.0,),
        ),
        requests or (PlannedRequest(),),
    )


def http(behave: Behave) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError
        await behave(scope, receive, send)

    return app


async def answer(send: Send, status: int, body: bytes = b"", **headers: str) -> None:
    fields = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})
