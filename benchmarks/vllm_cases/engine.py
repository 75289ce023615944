"""One `vllm serve` on the CPU, in a process group of its own."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).parents[2]
START_S = 240.0
"""Longest start; 19 to 34 seconds on a quiet machine of two cores."""

STOP_S = 10.0
SLOTS = 8
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
OPTIONS = (
    "--load-format",
    "dummy",
    "--dtype",
    "float32",  # bfloat16 is emulated where the CPU lacks it
    "--enforce-eager",
    "--max-model-len",
    "2048",
    "--max-num-seqs",
    str(SLOTS),
    "--num-gpu-blocks-override",  # full contexts in all slots, and no gigabyte for each engine
    "256",
    "--disable-uvicorn-access-log",
)


class Engine:
    """A server of vLLM.

    Args:
        python: interpreter of the environment in which vLLM is installed.
        model: directory of the model.
        more: further options of the command.
        settings: environment variables of the middleware.
    """

    def __init__(
        self,
        python: Path,
        model: Path,
        more: tuple[str, ...] = (),
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.port = free_port()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed in stop()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AUTOGLM_THROTTLE_")}
        command = [str(python.with_name("vllm")), "serve", str(model), "--port", str(self.port)]
        self._process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--served-model-name", "m", *OPTIONS, *more],
            env=kept | ENVIRONMENT | {"PYTHONPATH": str(ROOT)} | dict(settings),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait(self) -> None:
        """Return once the server answers.

        Raises:
            RuntimeError: it ended, or took longer than START_S; the message has the end of its output.
        """
        deadline = time.monotonic() + START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"vLLM does not answer; it wrote:\n{self.output[-4000:]}")
            time.sleep(0.2)

    @property
    def output(self) -> str:
        """Return what the server has written so far."""
        self._output.seek(0)
        return self._output.read().decode(errors="replace")

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5.0)
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        return False

    def stop(self) -> None:
        """End the server and its engine process."""
        for kind in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, kind)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
        self._output.close()


def free_port() -> int:
    """Return a port of this host that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
