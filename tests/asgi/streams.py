"""An app that streams, and the counts of its throttle."""

from __future__ import annotations

from typing import Any

from autoglm_throttle.testing import ManualThrottle, throttle_for_tests
from tests.asgi.run_app import Message

CHUNKS = (b"data: one\n\n", b"", b"\x00\xff\r\n", b"data: [DONE]\n\n")


def limited(**settings: Any) -> ManualThrottle:
    return throttle_for_tests(**{"user_limit": "100/minute", **settings})


def outcomes(throttle: ManualThrottle) -> dict[str, int]:
    counted = throttle.snapshot().outcomes
    return {outcome.value: n for (_, outcome), n in counted.items() if n}


class Streaming:
    """An app that sends its chunks and looks at what has arrived after each."""

    def __init__(self, headers: list[tuple[bytes, bytes]] | None = None, status: int = 200) -> None:
        self.start: Message = {
            "type": "http.response.start",
            "status": status,
            "headers": headers if headers is not None else [(b"content-type", b"text/event-stream")],
        }

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send(self.start)
        for chunk in CHUNKS:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body"})
