"""A server that gives the same answer to every read, so that it is never the one who is slow.

It does not parse: each client has one request under way on a connection, and each fits into one read.
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
"""As long, and with as many fields, as uvicorn's to a small JSON answer."""


class Answerer(asyncio.Protocol):
    """One connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, _data: bytes) -> None:
        self._transport.write(ANSWER)


async def main() -> None:
    """Serve on a free port, print it, and go on until killed."""
    server = await asyncio.get_running_loop().create_server(Answerer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        run_on_loop(main())
