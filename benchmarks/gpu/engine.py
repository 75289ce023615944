"""The work in a process of its own, as in inference engines: ``python -m benchmarks.gpu.engine``.

Hundreds of kernels are launched for a batch, and each launch releases and acquires the interpreter lock. In
the process of an event loop with a thousand requests a second the device would wait for the lock, and the
rows would be compared by the load of their event loops.

The first line is the job in JSON, each further line a number of requests; the reply is an empty line when
they are computed.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict

from benchmarks.gpu.simulated_device import ObservedWork, SimulatedDevice
from benchmarks.gpu.torch_work import TorchWork
from benchmarks.gpu.work import MAX_BATCH, Job, Sleeper, Work

WARM = (1, 2, 4, 8, MAX_BATCH)
"""Batch sizes of the warm-up: the first batch of a size takes long, because its kernels are loaded."""

END_S = 10.0
"""Seconds from the closing of the input to the kill."""


class Engine:
    """Work in another process.

    Args:
        job: the work.

    Raises:
        RuntimeError: the process ended before it was ready; the cause is on standard error.
    """

    def __init__(self, job: Job) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu.engine"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._request(json.dumps(asdict(job)))

    def batch(self, count: int) -> None:
        """Compute a batch.

        Raises:
            RuntimeError: the process is gone.
        """
        self._request(str(count))

    def kernel(self, name: str) -> Callable[[], None]:
        """Reject the call: kernels run in the process itself."""
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

    def _request(self, line: str) -> None:
        if self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("no pipes")
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(line + "\n")
        if not self.process.stdout.readline():
            raise RuntimeError("the engine is gone")


def local_work(job: Job) -> Work:
    """Build the work in this process."""
    if job.kind == "cpu":
        return Sleeper(job.capacity_rps)
    return TorchWork("cpu" if job.stand_in else "cuda", job.depth)


def with_telemetry(inner: Work, job: Job) -> tuple[Work, tuple[str, ...]]:
    """Return the work and the source of its telemetry: the value of the setting ``GPU``."""
    if not job.stand_in:
        return inner, ("nvml",)
    device = SimulatedDevice()
    return ObservedWork(inner, device), (f"fake:{device.path}",)


def main() -> None:
    """Compute until the input ends."""
    work = local_work(Job(**json.loads(sys.stdin.readline())))
    for count in WARM:
        work.batch(count)
    print(flush=True)
    for line in sys.stdin:
        work.batch(int(line))
        print(flush=True)
    work.close()


if __name__ == "__main__":
    main()
