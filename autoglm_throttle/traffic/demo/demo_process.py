"""Runs the demonstration's service in a child process and stops it at the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import IO, Any, cast

from autoglm_throttle.traffic.errors import TrafficError

REQUEST_TIMEOUT_S = 2.0
"""Request timeout: an overloaded event loop may answer late; the live view then shows the last state."""

STOP_TIMEOUT_S = 5.0
"""Seconds from closing its input to killing the process."""

STDERR_LINES = 8
"""Lines shown of a traceback: its end names the error."""


class DemoProcess:
    """The process of the service. Use it with ``with``.

    It has a session of its own: Ctrl-C in the terminal reaches only the parent, which then closes
    the child's input.

    Args:
        module: module to run; it calls `serve` of ``serving.py``.
        config: configuration of the service, sent as JSON on its standard input.
    """

    def __init__(self, module: str, config: Mapping[str, object]) -> None:
        self._module = module
        self._config = json.dumps(config)
        self.port: int = 0
        """Known once the process has started."""

    def __enter__(self) -> DemoProcess:
        """Start the process.

        Raises:
            TrafficError: it ended before it printed its port.
        """
        self._stderr = tempfile.TemporaryFile()
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,
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
