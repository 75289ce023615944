"""Other processes that do what they are told, one line of JSON at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from types import TracebackType
from typing import Any, Self

WORKER = "benchmarks.breakers.worker"


class Process:
    """One worker, which has said that it is ready; a context manager.

    Args:
        url: of the Redis that it shares its breakers over.
        open_s: seconds that they stay open.
    """

    def __init__(self, url: str, open_s: float) -> None:
        command = [sys.executable, "-m", WORKER, url, str(open_s)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        self.hear()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def say(self, what: str, name: str, **more: object) -> None:
        """Tell it what to do with a guard."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"what": what, "name": name, **more}) + "\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        """Wait for its next answer."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a worker ended without an answer")
        return json.loads(line)

    def ask(self, what: str, name: str, **more: object) -> Any:
        """Both."""
        self.say(what, name, **more)
        return self.hear()
