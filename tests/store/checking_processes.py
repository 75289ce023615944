"""Several processes on the same limits: each reads jobs as lines of JSON and reports its allowed checks."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from autoglm_throttle.store.protocol import StoreErrorKind
from tests.store.store_checks import ask, window_at


async def allowed(job: dict[str, Any]) -> int:
    """Ask for one user, all at once; a trouble is an error here."""
    window = window_at(job["url"], job["prefix"])
    answers = await asyncio.gather(*(ask(window, 1, limit=job["limit"]) for _ in range(job["asks"])))
    troubles = [answer for answer in answers if isinstance(answer, StoreErrorKind)]
    assert not troubles, troubles
    return sum(answer[0] == 0 for answer in answers if not isinstance(answer, StoreErrorKind))


class Crowd:
    """Processes that do the same job at the same time; a context manager.

    Args:
        processes: how many.
        module: what each runs.
    """

    def __init__(self, processes: int, module: str = "tests.store.checking_processes") -> None:
        self._many = processes
        self._module = module
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        for _ in range(self._many):
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", self._module],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    bufsize=1,
                    cwd=Path(__file__).parents[2],
                )
            )
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()

    def __call__(self, **job: object) -> list[int]:
        """The number of checks that each process was allowed."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(job) + "\n")
        answers = [process.stdout.readline() for process in self._processes if process.stdout is not None]
        assert all(answers), "a process failed; its error stands in the captured output"
        return [int(answer) for answer in answers]


if __name__ == "__main__":
    for line in sys.stdin:
        print(asyncio.run(allowed(json.loads(line))), flush=True)
