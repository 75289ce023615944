"""Real server processes on loopback, and a client that speaks raw HTTP to them."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.store.server import free_port

ROOT = Path(__file__).parents[2]
START_S = 60.0
STOP_S = 5.0
ANSWER_S = 60.0
"""Seconds until a server counts as hung. No answer takes as long, however busy the machine is."""

ENVIRONMENT: dict[str, str] = {}
"""What is added to the environment of a server."""

FAST = "uvicorn httptools uvloop"
"""The server of the fast tests."""

_keys = itertools.count()


def cases(servers: Mapping[str, object], fast: str = FAST) -> list[pytest.ParameterSet]:
    """The value of each server as a test case with its name; all but one are slow."""
    return [
        pytest.param(value, id=name, marks=() if name == fast else pytest.mark.slow)
        for name, value in servers.items()
    ]


def fresh_key() -> dict[str, str]:
    """Headers of a caller who has not been seen before."""
    return {"x-api-key": f"caller-{os.getpid()}-{next(_keys)}"}


class Server:
    """One server in a process group of its own.

    Args:
        command: arguments of this interpreter; ``{port}`` becomes the port.
    """

    def __init__(self, *command: str) -> None:
        self.port = free_port()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed in stop()
        arguments = [part.format(port=self.port) for part in command]
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            self._wait_until_it_answers()
        except BaseException:
            self.stop()
            raise

    @property
    def output(self) -> str:
        """The output of the server so far."""
        self._output.seek(0)
        return self._output.read().decode(errors="replace")

    @property
    def stopped(self) -> bool:
        """Whether it was stopped: what it wrote is gone then."""
        return self._output.closed

    def connection(self) -> http.client.HTTPConnection:
        """A new connection."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S)

    def get(self, path: str, headers: dict[str, str] | None = None, method: str = "GET") -> Reply:
        """One request on a connection of its own."""
        with contextlib.closing(self.connection()) as connection:
            return ask(connection, path, headers, method)

    def state(self) -> dict[str, Any]:
        """The state of the throttle in the worker."""
        found: dict[str, Any] = json.loads(self.get("/state").body)
        return found

    def until(self, name: str, wanted: object, within_s: float = ANSWER_S) -> object:
        """The part of the state once it is ``wanted``, or as it is at the end of the time."""
        deadline = time.monotonic() + within_s
        while (found := self.state()[name]) != wanted and time.monotonic() < deadline:
            time.sleep(0.02)
        return found

    def handshake(
        self, headers: dict[str, str], path: str = "/ws"
    ) -> tuple[int, dict[str, str], socket.socket]:
        """Ask for a websocket: status, headers and the open socket."""
        lines = [
            f"GET {path} HTTP/1.1",
            f"Host: 127.0.0.1:{self.port}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            "Sec-WebSocket-Version: 13",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=ANSWER_S)
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        head = b""
        while b"\r\n\r\n" not in head:
            part = connection.recv(1)
            if not part:
                break
            head += part
        status, *fields = head.decode("latin-1").strip().split("\r\n")
        pairs = (field.partition(":") for field in fields)
        found = {name.lower(): value.strip() for name, _, value in pairs}
        return int(status.split()[1]), found, connection

    def end(self, within_s: float) -> tuple[float, int | None]:
        """Ask the server to end: how many seconds that took, and its exit status; None if it did not end."""
        started = time.monotonic()
        os.killpg(self.process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(within_s)
        return time.monotonic() - started, self.process.poll()

    def stop(self) -> None:
        """End the server and everything it has started; its port is free afterwards."""
        for kind, patience_s in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, ANSWER_S)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, kind)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(patience_s)
        self._output.close()
        self._wait_until_the_port_is_free()

    def _wait_until_the_port_is_free(self) -> None:
        deadline = time.monotonic() + ANSWER_S
        while True:
            try:
                socket.create_server(("127.0.0.1", self.port)).close()
            except OSError as error:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"something still listens on port {self.port}") from error
                time.sleep(0.02)
            else:
                return

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.get("/state").status == 200:
                    return
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server does not answer; it wrote:\n{self.output}")
            time.sleep(0.02)


class Reply:
    """A whole answer."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.names = [name.lower() for name, _ in response.getheaders()]
        self.body = response.read()


def ask(
    connection: http.client.HTTPConnection,
    path: str,
    headers: dict[str, str] | None = None,
    method: str = "GET",
) -> Reply:
    """One request on an open connection."""
    connection.request(method, path, headers=headers or {})
    return Reply(connection.getresponse())


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _environment() -> dict[str, str]:
    """That of the tests, with no settings of ours but ``ENVIRONMENT``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AUTOGLM_THROTTLE_")}
    return kept | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"} | ENVIRONMENT
