"""A card that is not there: what one might tell while a stand-in works, in a live state file.

Its duty cycle is that of the stand-in; all else is made up, so that each finding has something to rest on.
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
"""Shares of power, multiprocessors, tensor cores and memory while it is at something: made up."""


def state(what: str, busy: float) -> dict[str, Any]:
    """The row of a card that was at something for a share of the time."""
    rest = FULL["idle"]
    power, sm, tensor, dram = (
        idle + busy * (full - idle) for idle, full in zip(rest, FULL[what], strict=True)
    )
    return {
        "device": "STAND-IN",
        "name": NAME,
        "utilization_pct": 0.0 if what == "idle" else 100.0 * busy,
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


class Card:
    """Writes its state until it is closed.

    Args:
        path: of the state; None: a new file that is removed in the end.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory() if path is None else None
        self.path: Path = path or Path(self._folder.name if self._folder else "") / "card.jsonl"
        self._lock = threading.Lock()
        self._what = "idle"
        self._since_s: float | None = None
        self._busy_s = 0.0
        self._stop = threading.Event()
        self._write(0.0)
        self._thread = threading.Thread(target=self._tell, daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Be at something meanwhile."""
        with self._lock:
            self._what, self._since_s = what, time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._busy_s += self._pending(time.monotonic())
                self._since_s = None

    def close(self) -> None:
        """Stop telling."""
        self._stop.set()
        self._thread.join()
        if self._folder is not None:
            self._folder.cleanup()

    def _pending(self, now: float) -> float:
        return 0.0 if self._since_s is None else now - self._since_s

    def _tell(self) -> None:
        told_s, told_busy_s = time.monotonic(), 0.0
        while not self._stop.wait(PERIOD_S):
            now = time.monotonic()
            with self._lock:
                busy_s = self._busy_s + self._pending(now)
            self._write(min(1.0, (busy_s - told_busy_s) / (now - told_s)))
            told_s, told_busy_s = now, busy_s

    def _write(self, busy: float) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(state(self._what, busy)) + "\n")
        os.replace(new, self.path)  # noqa: PTH105 - nobody reads half a state


class Told:
    """A stand-in whose work shows on a card."""

    def __init__(self, inner: Work, card: Card) -> None:
        self._inner = inner
        self._card = card

    def batch(self, count: int) -> None:
        """Compute a batch."""
        with self._card.busy("batch"):
            self._inner.batch(count)

    def kernel(self, name: str) -> Callable[[], None]:
        """Prepare a kernel."""
        step = self._inner.kernel(name)

        def told() -> None:
            with self._card.busy(name):
                step()

        return told

    def close(self) -> None:
        """Let go of both."""
        self._card.close()
        self._inner.close()
