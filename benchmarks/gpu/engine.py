"""The work in a process of its own, as inference engines have it: ``python -m benchmarks.gpu.engine``.

Hundreds of kernels are launched for a batch, and each launch gives the interpreter's lock away and wants it
back. Beside an event loop with a thousand requests a second the card would wait for the lock, and the rows
would be compared by what their event loops leave over.

One line of JSON says what to be, then each line is a number of requests, and an empty line comes back when
they are computed.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict

from benchmarks.gpu.card import Card, Told
from benchmarks.gpu.torch_work import TorchWork
from benchmarks.gpu.work import MAX_BATCH, Job, Sleeper, Work

WARM = (1, 2, 4, 8, MAX_BATCH)
"""Batches before the first request: the first of a size takes long, as kernels are loaded then."""

END_S = 10.0
"""After its input was closed; then it is killed."""


class Engine:
    """A work that another process does.

    Args:
        job: which.

    Raises:
        RuntimeError: the process ended before it was ready, having said why on the standard error.
    """

    def __init__(self, job: Job) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu.engine"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._ask(json.dumps(asdict(job)))

    def batch(self, count: int) -> None:
        """Compute a batch.

        Raises:
            RuntimeError: the process is gone.
        """
        self._ask(str(count))

    def kernel(self, name: str) -> Callable[[], None]:
        """Not this one's."""
        raise NotImplementedError(name)

    def close(self) -> None:
        """End the process."""
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _ask(self, line: str) -> None:
        if self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("no pipes")
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(line + "\n")
        if not self.process.stdout.readline():
            raise RuntimeError("the engine is gone")


def here(job: Job) -> Work:
    """What computes, in this process."""
    if job.kind == "cpu":
        return Sleeper(job.capacity_rps)
    return TorchWork("cpu" if job.stand_in else "cuda", job.depth)


def seen(inner: Work, job: Job) -> tuple[Work, tuple[str, ...]]:
    """A work, and where telemetry of it comes from: the value of the setting ``GPU``."""
    if not job.stand_in:
        return inner, ("nvml",)
    card = Card()
    return Told(inner, card), (f"fake:{card.path}",)


def main() -> None:
    """Compute until the input ends."""
    work = here(Job(**json.loads(sys.stdin.readline())))
    for count in WARM:
        work.batch(count)
    print(flush=True)
    for line in sys.stdin:
        work.batch(int(line))
        print(flush=True)
    work.close()


if __name__ == "__main__":
    main()
