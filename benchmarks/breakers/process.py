"""Worker processes, controlled by one line of JSON per command."""

from __future__ import annotations

import json
import subprocess
import sys
from types import TracebackType
from typing import Any, Self

WORKER = "benchmarks.breakers.worker"


class Process:
    """One worker that is ready; a context manager.

    Args:
        url: address of the Redis of the shared breakers.
        open_s: open time of the breakers in seconds.
    """

    def __init__(self, url: str, open_s: float) -> None:
        command = [sys.executable, "-m", WORKER, url, str(open_s)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        self.receive()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def send(self, method: str, name: str, **more: object) -> None:
        """Send a command for a guard."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"method": method, "name": name, **more}) + "\n")
        self._process.stdin.flush()

    def receive(self) -> Any:
        """Wait for the next reply."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a worker ended without a reply")
        return json.loads(line)

    def request(self, method: str, name: str, **more: object) -> Any:
        """Send a command and wait for its reply."""
        self.send(method, name, **more)
        return self.receive()
