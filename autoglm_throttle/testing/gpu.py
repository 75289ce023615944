"""GPUs that say what the test wants, and fail as real ones do."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from autoglm_throttle.model import Clock, GpuSample

READINGS: Final = (
    "utilization_pct",
    "memory_busy_pct",
    "memory_used_bytes",
    "memory_total_bytes",
    "power_w",
    "power_limit_w",
    "temperature_c",
    "sm_clock_mhz",
    "sm_clock_max_mhz",
)
"""The attributes that describe all devices at once."""

MEMORY_BYTES = 80 * 1024**3
"""Of each fake device: the size of a common data-centre card."""


class FakeGpu:
    """A `GpuProvider` whose readings are attributes.

    An attribute counts for all devices, `set` replaces it for one of them; None is "not known".
    Each trouble lasts until `recover`.

    Args:
        devices: how many there are, at least 1.
        clock: monotonic seconds, as the throttle's.
        blocks: whether a hang really blocks the reading thread, as with ``sampling="thread"``.
            If not, a read that hangs gives no rows instead, so that `Throttle.tick` returns.

    Raises:
        ValueError: ``devices`` is less than 1.
    """

    name = "fake"
    min_interval_s: float = 0.0

    def __init__(self, devices: int = 1, *, clock: Clock = time.monotonic, blocks: bool = False) -> None:
        if devices < 1:
            raise ValueError(f"there must be at least one device, not {devices}")
        self.devices = devices
        self.utilization_pct: float | None = 0.0
        self.memory_busy_pct: float | None = None
        self.memory_used_bytes: int | None = 0
        self.memory_total_bytes: int | None = MEMORY_BYTES
        self.power_w: float | None = None
        self.power_limit_w: float | None = None
        self.temperature_c: float | None = None
        self.sm_clock_mhz: float | None = None
        self.sm_clock_max_mhz: float | None = None
        self._clock = clock
        self._blocks = blocks
        self._own: dict[int, dict[str, Any]] = {}
        self._lost: set[int] = set()
        self._error: Exception | None = None
        self._stale = False
        self._hangs_until_s = float("-inf")
        self._hangs_s: float | None = None
        self._released = threading.Event()
        self._released.set()
        self._last: tuple[GpuSample, ...] = ()

    def set(self, index: int, **readings: float | None) -> None:
        """Give one device readings of its own.

        Args:
            index: which device, from 0.
            readings: attributes by name, such as ``utilization_pct=92``.

        Raises:
            IndexError: there is no such device.
            AttributeError: a name is not that of a reading.
        """
        self._check(index)
        unknown = readings.keys() - set(READINGS)
        if unknown:
            raise AttributeError(f"no reading is called {', '.join(sorted(unknown))}")
        self._own.setdefault(index, {}).update(readings)

    def lose(self, index: int = 0) -> None:
        """Let a device fall off the bus: it is listed as lost and tells nothing.

        Raises:
            IndexError: there is no such device.
        """
        self._check(index)
        self._lost.add(index)

    def hang(self, for_s: float | None = None) -> None:
        """Let every read hang.

        Args:
            for_s: seconds; None: until `recover`.
        """
        if self._blocks:
            self._hangs_s = for_s
            self._released.clear()
        else:
            self._hangs_until_s = float("inf") if for_s is None else self._clock() + for_s

    def stale(self) -> None:
        """Let every read return the rows of the last good one, with their old times."""
        self._stale = True

    def raises(self, error: Exception) -> None:
        """Let every read raise ``error``."""
        self._error = error

    def recover(self) -> None:
        """End every trouble; the readings stay as they were set."""
        self._lost.clear()
        self._error = None
        self._stale = False
        self._hangs_until_s = float("-inf")
        self._released.set()

    def read(self) -> Sequence[GpuSample]:
        """Read all devices, as the sampler does."""
        if not self._released.wait(self._hangs_s):
            self._released.set()
        if self._clock() < self._hangs_until_s:
            return ()
        if self._error is not None:
            raise self._error
        if not (self._stale and self._last):
            self._last = tuple(self._row(index) for index in range(self.devices))
        return self._last

    def close(self) -> None:
        """Do nothing: there is no driver."""

    def forget(self) -> None:
        """Leave behind what a thread of the parent may have held at a fork."""
        hangs = not self._released.is_set()
        self._released = threading.Event()
        if not hangs:
            self._released.set()

    def _row(self, index: int) -> GpuSample:
        device: dict[str, Any] = {"device": f"FAKE-{index}", "index": index, "source": self.name}
        taken_at_s = self._clock()
        if index in self._lost:
            return GpuSample(**device, taken_at_s=taken_at_s, health="lost")
        readings = {name: getattr(self, name) for name in READINGS} | self._own.get(index, {})
        return GpuSample(**device, taken_at_s=taken_at_s, **readings)

    def _check(self, index: int) -> None:
        if not 0 <= index < self.devices:
            raise IndexError(f"there is no device {index}, only {self.devices} of them, counted from 0")

    def __repr__(self) -> str:
        return f"FakeGpu({self.devices} devices, {self.utilization_pct} %)"
