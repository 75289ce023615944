"""A server that sends the same response to every read, so that it is never the bottleneck.

It does not parse: each client has one request in flight on a connection, and each fits into one read.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import cast

from autoglm_throttle.traffic.generator.launch import run_on_loop

ANSWER = (
    b"HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 2026 00:00:00 GMT\r\nserver: answerer\r\n"
    b'content-length: 11\r\ncontent-type: application/json\r\n\r\n{"ok":true}'
)
"""As long, and with as many fields, as a small JSON response of uvicorn."""


class FixedResponder(asyncio.Protocol):
    """One connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, _data: bytes) -> None:
        self._transport.write(ANSWER)


async def main() -> None:
    """Serve on a free port and print it; runs until killed."""
    server = await asyncio.get_running_loop().create_server(FixedResponder, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        run_on_loop(main())
