"""Fields of the app's answers that a rejection needs as well: CORS, and the id of the request."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Awaitable
from contextlib import suppress
from uuid import uuid4

from autoglm_throttle.asgi.dialects import Field
from autoglm_throttle.asgi.scope import Message, Scope, Send

MAX_ORIGINS = 1024  # Pairs of path and origin that are kept: both come from clients
MAX_LENGTH = 256  # Of a path or an origin that is kept

# Answers that are observed at the start, and after a rejection of an origin that is not known for its path.
FIRST_ANSWERS, ANSWERS = 16, 1000

_ANY = b"*"
_ID_NAMES = (b"x-request-id", b"request-id")
_ORIGIN = frozenset((b"origin",))  # A look-up takes less time than a comparison
_REQUEST_ID = re.compile(rb"[!-~]{1,128}")


class AppFields:
    """Learns from the app's answers what a rejection of the same path and origin has to carry.

    No origin is allowed that the app did not allow itself, on this path.
    """

    def __init__(self) -> None:
        self.is_learning: bool = True  # Whether the answers to all requests are observed
        self._answers_left = FIRST_ANSWERS  # Answers until that ends
        self._allowed: OrderedDict[tuple[str, bytes], tuple[Field, ...]] = OrderedDict()
        self._id_names: tuple[bytes, ...] = ()  # Names under which the app sends the id of a request

    def observe(self, scope: Scope, send: Send) -> Send:
        """Wrap ``send``, to learn from the answer to a request."""
        try:
            key = scope["path"], dict(scope["headers"]).get(b"origin", b"")
        except (KeyError, TypeError, ValueError):  # the server or a middleware sent something else
            return send
        is_preflight = scope.get("method") == "OPTIONS"

        def send_and_learn(message: Message) -> Awaitable[None]:
            headers = message.get("headers")
            if message["type"] == "http.response.start" and isinstance(headers, (list, tuple)):
                with suppress(TypeError, ValueError):  # the server reports malformed fields
                    self._learn(key, dict(headers), may_forget=is_preflight or message.get("status", 0) < 300)
            return send(message)

        return send_and_learn

    def add_to(self, fields: list[Field], scope: Scope) -> None:
        """Append to the fields of a rejection those of the app's answers to such requests."""
        try:
            headers = scope["headers"]
            if not self._id_names:
                for name, _ in headers:
                    if name in _ORIGIN:
                        break
                else:
                    return
            path, values = scope["path"], dict(headers)
            origin = values.get(b"origin")
            if self._id_names:
                sent = values.get(b"x-request-id", b"")
                request_id = sent if _REQUEST_ID.fullmatch(sent) else uuid4().hex.encode()
                fields += [(name, request_id) for name in self._id_names]
            if origin:
                allowed = self._allowed.get((path, origin)) or self._allowed.get((path, _ANY))
                if allowed is None:
                    self.is_learning, self._answers_left = True, ANSWERS
                else:
                    exposed = b", ".join(name for name, _ in fields)
                    fields += (*allowed, (b"access-control-expose-headers", exposed))
        except (KeyError, TypeError, ValueError):  # as above: the rejection goes out without them
            return

    def _learn(self, key: tuple[str, bytes], headers: dict[bytes, bytes], *, may_forget: bool) -> None:
        self._answers_left -= 1
        self.is_learning = self._answers_left > 0
        for name in _ID_NAMES:
            if name in headers and name not in self._id_names:
                self._id_names += (name,)
        path, origin = key
        if origin and len(path) <= MAX_LENGTH and len(origin) <= MAX_LENGTH:
            self._learn_origin(path, origin, headers, may_forget=may_forget)

    def _learn_origin(
        self, path: str, origin: bytes, headers: dict[bytes, bytes], *, may_forget: bool
    ) -> None:
        allowed = headers.get(b"access-control-allow-origin")
        if allowed is not None and allowed in (origin, _ANY):
            fields = [(b"access-control-allow-origin", allowed)]
            if allowed == origin:
                fields.append((b"vary", b"origin"))
            if headers.get(b"access-control-allow-credentials") == b"true":
                fields.append((b"access-control-allow-credentials", b"true"))
            self._allowed[path, allowed] = tuple(fields)
            if len(self._allowed) > MAX_ORIGINS:
                self._allowed.popitem(last=False)
        elif may_forget:  # errors from outside the app's own CORS middleware have no fields
            self._allowed.pop((path, origin), None)
            self._allowed.pop((path, _ANY), None)
