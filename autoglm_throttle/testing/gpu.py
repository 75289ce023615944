"""Simulated GPUs with readings set by the test, and the failures of real ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, Literal

from autoglm_throttle.types import Clock, GpuSample, ThrottleBit

Reading = float | frozenset[ThrottleBit] | None  # `throttle` holds a set of reasons, all others a number

MEMORY_BYTES = 80 * 1024**3  # Memory of each fake device: the size of a common data-centre GPU

# Field that a source may know -> first value: those of devices, then, from ``running``, of engines.
_DEFAULTS: Final[dict[str, Any]] = {
    field.name: field.default for field in fields(GpuSample) if field.default is None or field.name == "age_s"
} | {
    "utilization_pct": 0.0,
    "memory_used_bytes": 0,
    "memory_total_bytes": MEMORY_BYTES,
    "running": 0,
    "queued": 0,
    "kv_used_ratio": 0.0,
}

TIMING: Final = ("age_s", "period_s")
ENGINE_READINGS: Final = tuple(_DEFAULTS)[tuple(_DEFAULTS).index("running") :]
# The attributes that describe all devices at once.
READINGS: Final = tuple(name for name in _DEFAULTS if name not in ENGINE_READINGS)

_COUNTS: Final = ("devices", "engines")
_NAMES: Final = {"device": READINGS, "engine": (*ENGINE_READINGS, *TIMING)}


class FakeGpu:
    """A `GpuProvider` with readings as attributes.

    Every field of a `GpuSample` that a source may know is an attribute. It counts for all devices (requests,
    caches and tokens: for all engines). `set` and `set_engine` replace it for one; None is "not
    known". Counters keep their value until changed. Each failure lasts until `recover`.

    Args:
        devices: number of devices.
        engines: number of inference engines reported beside them. Lowering the attribute
            ``engines`` later removes engines.
        clock: monotonic seconds, as the throttle's; None: those of the first throttle for tests that it
            is given to, and `time.monotonic` until then.
        blocks: whether a hang really blocks the reading thread, as with ``sampling="thread"``.
            If not, a read that hangs gives no rows instead, so that `Throttle.tick` returns.

    Raises:
        ValueError: a number is negative, or there is neither a device nor an engine.
    """

    name = "fake"
    min_interval_s: float = 0.0
    kind: Literal["gpu", "mig"] = "gpu"

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # noqa: ANN401 - a number, or a set of reasons

    def __init__(
        self, devices: int = 1, *, engines: int = 0, clock: Clock | None = None, blocks: bool = False
    ) -> None:
        if min(devices, engines) < 0 or devices + engines < 1:
            raise ValueError(f"there must be at least one device or engine, not {devices} and {engines}")
        self.devices: int = devices
        self.engines: int = engines
        self._clock: Clock = time.monotonic if clock is None else clock
        self._has_clock = clock is not None
        self._blocks = blocks
        self._overrides: dict[tuple[str, int], dict[str, Any]] = {}
        self._lost: set[int] = set()
        self._error: Exception | None = None
        self._stale = False
        self._hangs_until_s = float("-inf")
        self._hangs_s: float | None = None
        self._released = threading.Event()
        self._released.set()
        self._last: tuple[GpuSample, ...] = ()

    def __setattr__(self, name: str, value: object) -> None:
        """Set an existing attribute. A misspelt reading would leave the GPU idle, and the test green.

        Raises:
            AttributeError: no attribute has this name.
        """
        own = type(self) is FakeGpu and not name.startswith("_")
        if own and not hasattr(type(self), name) and name not in _COUNTS:
            raise AttributeError(_unknown_reading(name, {*READINGS, *ENGINE_READINGS, *_COUNTS}))
        super().__setattr__(name, value)

    def set(self, index: int, **readings: Reading) -> None:
        """Give one device readings of its own.

        Args:
            index: which device, from 0.
            readings: attributes by name, such as ``utilization_pct=92``.

        Raises:
            IndexError: there is no such device.
            AttributeError: a name is not that of a reading.
        """
        self._override("device", index, readings)

    def set_engine(self, index: int, **readings: Reading) -> None:
        """Give one engine readings of its own.

        Args:
            index: which engine, from 0.
            readings: attributes by name, such as ``queued=12``.

        Raises:
            IndexError: there is no such engine.
            AttributeError: a name is not that of a reading of an engine.
        """
        self._override("engine", index, readings)

    def default_clock(self, clock: Clock) -> None:
        """Use this clock, unless the GPUs have one already; a hang keeps the time that is left of it.

        Args:
            clock: monotonic seconds, as the throttle's.
        """
        if not self._has_clock:
            self._hangs_until_s += clock() - self._clock()
            self._clock, self._has_clock = clock, True

    def lose(self, index: int = 0) -> None:
        """Make a device fall off the bus: it is listed as lost and reports nothing.

        Raises:
            IndexError: there is no such device.
        """
        self._check("device", index)
        self._lost.add(index)

    def hang(self, for_s: float | None = None) -> None:
        """Make every read hang.

        Args:
            for_s: seconds; None: until `recover`.
        """
        if self._blocks:
            self._hangs_s = for_s
            self._released.clear()
        else:
            self._hangs_until_s = float("inf") if for_s is None else self._clock() + for_s

    @property
    def is_hanging(self) -> bool:
        """Whether the next read blocks its thread."""
        return not self._released.is_set()

    def stale(self) -> None:
        """Make every read return the rows of the last good one, with their old times."""
        self._stale = True

    def fail_with(self, error: Exception) -> None:
        """Make every read raise ``error``."""
        self._error = error

    def recover(self) -> None:
        """End every failure; the readings keep their values."""
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
            self._last = (
                *(self._row("device", index) for index in range(self.devices)),
                *(self._row("engine", index) for index in range(self.engines)),
            )
        return self._last

    def close(self) -> None:
        """Do nothing: there is no driver."""

    def reset_after_fork(self) -> None:
        """Replace the event: a thread of the parent may have held its lock at the fork."""
        is_hanging = self.is_hanging
        self._released = threading.Event()
        if not is_hanging:
            self._released.set()

    def _row(self, kind: str, index: int) -> GpuSample:
        is_device = kind == "device"
        row: dict[str, Any] = {"index": index, "source": self.name, "taken_at_s": self._clock()}
        row["device"] = f"FAKE-{index}" if is_device else f"FAKE-ENGINE-{index}"
        row["kind"] = self.kind if is_device else kind
        if is_device and index in self._lost:
            return GpuSample(**row, health="lost")
        readings = {name: getattr(self, name) for name in _NAMES[kind]}
        return GpuSample(**row, **(readings | self._overrides.get((kind, index), {})))

    def _override(self, kind: str, index: int, readings: Mapping[str, Reading]) -> None:
        self._check(kind, index)
        unknown = readings.keys() - set(_NAMES[kind])
        if unknown:
            raise AttributeError(_unknown_reading(", ".join(sorted(unknown)), _NAMES[kind]))
        self._overrides.setdefault((kind, index), {}).update(readings)

    def _check(self, kind: str, index: int) -> None:
        count = self.devices if kind == "device" else self.engines
        if not 0 <= index < count:
            raise IndexError(f"there is no {kind} {index}, only {count} of them, counted from 0")

    def __repr__(self) -> str:
        engines = f", {self.engines} engines" if self.engines else ""
        return f"FakeGpu({self.devices} devices{engines}, {self.utilization_pct} %)"


for _name, _value in _DEFAULTS.items():
    setattr(FakeGpu, _name, _value)


def _unknown_reading(name: str, known: Iterable[str]) -> str:
    return f"no reading is called {name}; there are {', '.join(sorted(known))}"
