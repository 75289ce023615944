"""Serves the live page: HTML, one JSON document, server-sent events, and the login."""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.websockets import WebSocketClose

from autoglm_throttle.asgi.marks import exempt
from autoglm_throttle.observe.alerts import start_alerts
from autoglm_throttle.observe.page.access import COOKIE, SESSION_S, Access
from autoglm_throttle.observe.page.builder import PageBuilder, PageState
from autoglm_throttle.observe.page.html import page, resource
from autoglm_throttle.observe.timer import history_timer

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from autoglm_throttle.throttle import Throttle

MAX_READERS: Final = 100  # event streams of one process; further readers poll
STREAM_S: Final = 30.0  # a stream ends, and its reader comes again: servers wait for open ones when they stop
RETRY_MS: Final = 1000
FORM_BYTES: Final = 4096

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
_FILES: Final = {
    name: f"text/{kind}; charset=utf-8"
    for name, kind in {
        "page.css": "css",
        "uplot.css": "css",
        "page.js": "javascript",
        "uplot.js": "javascript",
    }.items()
}
_LOCAL_ONLY: Final = (
    "Without STATUS_TOKEN this page is for requests from this machine alone: open it at http://localhost or "
    "http://127.0.0.1, without a proxy, or set AUTOGLM_THROTTLE_STATUS_TOKEN.\n"
)
_LOGIN: Final = (
    '<p id="sentence">This page needs the token of the setting STATUS_TOKEN.</p>'
    '<form method="post" action="login"><p><label for="token">Token</label> '
    '<input id="token" name="token" type="password" autocomplete="current-password" required /> '
    "<button>Open</button></p></form>"
)


def status_app(throttle: Throttle) -> StatusApp:
    """Make the ASGI app of the live page, to be mounted at a path of its own or served alone.

    It starts the timer of the throttle's history, and the built-in alerts. ``STATUS_TOKEN`` protects the
    page; without it only requests from this machine are answered.
    """
    return StatusApp(throttle)


class StatusApp:
    """ASGI app made by `status_app`, exempt from the throttle wherever it is mounted."""

    def __init__(self, throttle: Throttle) -> None:
        token = throttle.settings.observe.status_token
        self._access = Access(None if token is None else token.get_secret_value())
        self._throttle = throttle  # the timer holds it weakly
        self._streams = 0
        self._timer = history_timer(throttle)
        self._builder = PageBuilder(throttle)
        self._timer.add_consumer(self._builder)
        self._timer.start()
        start_alerts(throttle)
        exempt(self)
        # Loaded by anyio at its first use, which would hold the event loop for 20 ms at the first visit.
        with contextlib.suppress(ImportError):
            importlib.import_module("anyio._backends._asyncio")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] == "websocket":
            await WebSocketClose()(scope, receive, send)
        elif scope["type"] == "http":
            response = await self._answer(Request(scope, receive))
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
            await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        scope = request.scope
        # Under a mount the path has the root path before it (ASGI 3.0), with some servers it has not.
        name = scope["path"].removeprefix(scope.get("root_path", "")).strip("/")
        if name == "login" and scope["method"] == "POST" and self._access.needs_token:
            return await self._login(request)
        if scope["method"] not in {"GET", "HEAD"}:
            return PlainTextResponse("Method Not Allowed\n", 405, {"allow": "GET, HEAD"})
        if name in _FILES:
            kept = {"cache-control": "max-age=86400"}  # the version is part of the address
            return Response(resource(name), headers=kept, media_type=_FILES[name])
        if self._access.is_allowed(scope, request.cookies.get(COOKIE, ""), time.time()):
            return await self._page(name, request)
        if not self._access.needs_token:
            return PlainTextResponse(_LOCAL_ONLY, 403)
        return self._login_page()

    async def _page(self, name: str, request: Request) -> Response:
        if name == "events":
            return await self._events(request)
        if name == "data.json":
            return await self._part("application/json", lambda state: state.document)
        if name:
            return PlainTextResponse("Not Found\n", 404)
        if not request.scope["path"].endswith("/"):  # links are relative
            return RedirectResponse(f"{request.scope['path']}/", 307)
        return await self._part("text/html", lambda state: state.html)

    def _login_page(self) -> Response:
        fields = {"www-authenticate": "Bearer"}
        return Response(page("Token needed", _LOGIN), 401, fields, media_type="text/html")

    async def _login(self, request: Request) -> Response:
        """Check the token of the form, and set the cookie."""
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > FORM_BYTES:
                return PlainTextResponse("Content Too Large\n", 413)
        fields = parse_qs(body.decode("latin-1"))
        if not self._access.accepts(fields.get("token", [""])[0]):
            return self._login_page()
        root, is_https = request.scope.get("root_path", ""), request.scope.get("scheme") == "https"
        response = RedirectResponse(f"{root}/", 303)
        response.set_cookie(
            COOKIE,
            self._access.new_cookie(time.time()),
            max_age=SESSION_S,
            path=f"{root}/",
            secure=is_https,
            httponly=True,
            samesite="strict",
        )
        return response

    async def _state(self) -> PageState:
        """Return the newest state; before the first step, make it."""
        if self._builder.state is None:
            await anyio.to_thread.run_sync(self._timer.step)
        state = self._builder.state
        assert state is not None  # noqa: S101 - the step has built it, or raised
        return state

    async def _part(self, kind: str, read: Callable[[PageState], bytes]) -> Response:
        state = await self._state()
        # On another thread: the first reader of a step builds the text, some milliseconds.
        return Response(await anyio.to_thread.run_sync(partial(read, state)), media_type=kind)

    async def _events(self, request: Request) -> Response:
        if self._streams >= MAX_READERS:
            return PlainTextResponse(f"{MAX_READERS} readers are here; poll data.json\n", 503)
        await self._state()
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        seen = request.headers.get("last-event-id", "")
        return StreamingResponse(self._messages(seen), media_type="text/event-stream")

    async def _messages(self, seen: str) -> AsyncIterator[bytes]:
        """Yield a message for each step, the first one at once unless the reader has seen it."""
        self._streams += 1
        try:
            yield b"retry: %d\n\n" % RETRY_MS
            ends_s = time.monotonic() + STREAM_S
            while (left_s := ends_s - time.monotonic()) > 0.0:
                state = await self._builder.next_state(seen, left_s)
                if state is not None:
                    seen = str(state.step)
                    yield b"id: %s\ndata: %s\n\n" % (seen.encode(), state.message)
        finally:
            self._streams -= 1
