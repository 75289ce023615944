"""A child process that serves an ASGI application on loopback until its standard input ends.

One line of JSON on its standard input is the configuration; it writes its port to its standard output. The
end of the input ends the process, so that a killed parent leaves no child behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from starlette.types import ASGIApp

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.generator.connection_pool import allow_connections

if TYPE_CHECKING:
    import uvicorn

ROOT = Path(__file__).resolve().parents[2]
"""Folder that holds this package, which the child imports from any working directory."""

REQUEST_TIMEOUT_S = 2.0
"""Request timeout: an overloaded event loop may answer late; the live view then shows the last state."""

STOP_TIMEOUT_S = 5.0
"""Seconds from closing its input to killing the process."""

STDERR_LINES = 8
"""Lines shown of a traceback: its end names the error."""

BACKLOG = 1024
"""Connections that may wait to be accepted; Linux allows 4096 by default, macOS 128."""

SHUTDOWN_TIMEOUT_S = 3.0
"""Seconds after the end of the input to close connections before the process exits anyway."""


class DemoProcess:
    """The process of a service. Use it with ``with``.

    It has a session of its own: Ctrl-C in the terminal reaches only the parent, which then closes
    the child's input.
    """

    def __init__(self, module: str, config: Mapping[str, object]) -> None:
        self._module = module
        self._config = json.dumps(config)
        self.port: int = 0
        """Known once the process has started."""

    def __enter__(self) -> DemoProcess:
        """Start the process."""
        self._stderr = tempfile.TemporaryFile()
        paths = filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
        self._process = subprocess.Popen(
            [sys.executable, "-m", self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        )
        self._input = cast("IO[bytes]", self._process.stdin)
        self._output = cast("IO[bytes]", self._process.stdout)
        try:
            self.port = self._read_port()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the process; kill it if necessary."""
        self._stop()

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self._process.poll() is None

    def stderr_tail(self) -> list[str]:
        """Return the last lines of its standard error."""
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace").splitlines()[-STDERR_LINES:]

    async def request(self, path: str) -> dict[str, Any] | None:
        """Request a path of the service and return its JSON object; None on an error or a timeout."""
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
                # With `connection: close` the answer ends at the end of the stream.
                answer = await reader.read()
                writer.close()
        except OSError:
            return None
        if not answer.startswith(b"HTTP/1.1 200 "):
            return None
        return cast("dict[str, Any]", json.loads(answer.partition(b"\r\n\r\n")[2]))

    def _read_port(self) -> int:
        with contextlib.suppress(BrokenPipeError):
            self._input.write(self._config.encode() + b"\n")
            self._input.flush()
        port = self._output.readline()
        if not port:
            self._process.wait(STOP_TIMEOUT_S)
            raise TrafficError("the service did not start:\n" + "\n".join(self.stderr_tail()))
        return int(port)

    def _stop(self) -> None:
        for stream in (self._input, self._output, self._stderr):
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def read_config() -> dict[str, Any]:
    """Read the configuration from the first line of the standard input."""
    return cast("dict[str, Any]", json.loads(sys.stdin.readline()))


def serve(app: ASGIApp, *, connections: int, limit_concurrency: int | None = None) -> None:
    """Serve on a free port of loopback with uvicorn until the standard input ends."""
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
