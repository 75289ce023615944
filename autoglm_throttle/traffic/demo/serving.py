"""A uvicorn process that serves until its standard input ends.

One line of JSON on the standard input is the configuration; the port is written to the standard output. The
end of the input ends the process, so that a killed parent leaves no child behind.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, cast

from starlette.types import ASGIApp

from autoglm_throttle.traffic.files import allow_connections

if TYPE_CHECKING:
    import uvicorn

BACKLOG = 1024
"""Connections that may wait to be accepted; Linux allows 4096 by default, macOS 128."""

SHUTDOWN_TIMEOUT_S = 3.0
"""Seconds after the end of the input to close connections before the process exits anyway."""


def read_config() -> dict[str, Any]:
    """Read the configuration from the first line of the standard input."""
    return cast("dict[str, Any]", json.loads(sys.stdin.readline()))


def serve(app: ASGIApp, *, connections: int, limit_concurrency: int | None = None) -> None:
    """Serve on a free port of loopback until the standard input ends.

    Args:
        app: the application.
        connections: connections that must be possible at once.
        limit_concurrency: uvicorn's own limit; None: no limit.

    Raises:
        TrafficError: this process may not open that number of connections.
    """
    import uvicorn

    allow_connections(connections)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_keep_alive=300,
        timeout_graceful_shutdown=1,
        limit_concurrency=limit_concurrency,
    )
    server = uvicorn.Server(config)
    threading.Thread(target=_exit_at_eof, args=(server,), daemon=True).start()
    # asyncio disables Nagle's algorithm only if the protocol is given; otherwise answers wait for an ACK.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(BACKLOG)
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        server.run(sockets=[listener])


def _exit_at_eof(server: uvicorn.Server) -> None:
    sys.stdin.read()
    server.should_exit = True
    time.sleep(SHUTDOWN_TIMEOUT_S)
    # Not sys.exit: this is not the main thread, and uvicorn may still wait for connections.
    os._exit(1)
