"""A simulated GPU: plausible telemetry of a stand-in for real work, in a live state file.

Its duty cycle is that of the stand-in; all other fields are invented, so that each verdict can occur.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu.work import Work

NAME = "stand-in: no GPU"
LIMIT_W = 700.0
PERIOD_S = 0.05
"""Time from one state to the next."""

FULL: dict[str, tuple[float, float, float, float]] = {
    "batch": (0.70, 0.85, 0.45, 0.30),
    "idle": (0.10, 0.0, 0.0, 0.0),
    "spin": (0.17, 0.008, 0.0, 0.0),
    "small": (0.22, 0.12, 0.02, 0.02),
    "decode": (0.55, 0.60, 0.05, 0.80),
    "gemm": (0.95, 0.95, 0.80, 0.30),
}
"""Invented shares of power, multiprocessors, tensor cores and memory for each kernel."""


def state(kernel: str, busy: float) -> dict[str, Any]:
    """Build the row of a device that ran a kernel for a share of the time."""
    rest = FULL["idle"]
    power, sm, tensor, dram = (
        idle + busy * (full - idle) for idle, full in zip(rest, FULL[kernel], strict=True)
    )
    return {
        "device": "STAND-IN",
        "name": NAME,
        "utilization_pct": 0.0 if kernel == "idle" else 100.0 * busy,
        "power_w": LIMIT_W * power,
        "power_limit_w": LIMIT_W,
        "sm_active_ratio": sm,
        "tensor_active_ratio": tensor,
        "dram_active_ratio": dram,
        "sm_clock_mhz": 1980.0,
        "sm_clock_max_mhz": 1980.0,
        "memory_used_bytes": 8 << 30,
        "memory_total_bytes": 80 << 30,
        "throttle": [],
    }


class SimulatedDevice:
    """Writes the state of the device until it is closed.

    Args:
        path: file of the state; None: a temporary file.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory() if path is None else None
        self.path: Path = path or Path(self._folder.name if self._folder else "") / "card.jsonl"
        self._lock = threading.Lock()
        self._kernel = "idle"
        self._since_s: float | None = None
        self._busy_s = 0.0
        self._stop = threading.Event()
        self._write(0.0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def busy(self, kernel: str) -> Iterator[None]:
        """Report a kernel as running inside the block."""
        with self._lock:
            self._kernel, self._since_s = kernel, time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._busy_s += self._pending(time.monotonic())
                self._since_s = None

    def close(self) -> None:
        """Stop writing."""
        self._stop.set()
        self._thread.join()
        if self._folder is not None:
            self._folder.cleanup()

    def _pending(self, now: float) -> float:
        return 0.0 if self._since_s is None else now - self._since_s

    def _run(self) -> None:
        written_s, written_busy_s = time.monotonic(), 0.0
        while not self._stop.wait(PERIOD_S):
            now = time.monotonic()
            with self._lock:
                busy_s = self._busy_s + self._pending(now)
            self._write(min(1.0, (busy_s - written_busy_s) / (now - written_s)))
            written_s, written_busy_s = now, busy_s

    def _write(self, busy: float) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(state(self._kernel, busy)) + "\n")
        os.replace(new, self.path)  # noqa: PTH105 - no reader sees half a state


class ObservedWork:
    """A stand-in whose work is reported by a simulated device."""

    def __init__(self, inner: Work, device: SimulatedDevice) -> None:
        self._inner = inner
        self._device = device

    def batch(self, count: int) -> None:
        """Compute a batch."""
        with self._device.busy("batch"):
            self._inner.batch(count)

    def kernel(self, name: str) -> Callable[[], None]:
        """Prepare a kernel."""
        step = self._inner.kernel(name)

        def run_step() -> None:
            with self._device.busy(name):
                step()

        return run_step

    def close(self) -> None:
        """Close the device and the work."""
        self._device.close()
        self._inner.close()
