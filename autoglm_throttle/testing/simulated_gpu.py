"""The simulated device: work model, utilization and faults behind one lock, and a provider for the sampler.

The model reads no clock: callers pass the time.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, field
from typing import NamedTuple

from autoglm_throttle.testing.simulated_engines import BatchSpec, Item, LlmSpec, WorkEngine
from autoglm_throttle.types import Clock, GpuSample

GIB = 1 << 30
DEVICE = "GPU-simulated-0"

FAKE_BUSY_PCT = 98.0  # Utilization shown by a device with kernels that spin without working
FAKE_BUSY_DRAW = 0.1  # Power draw meanwhile, as a share of the span from idle to peak power


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedGpuSpec:
    """Memory, power and work model of a device."""

    work: BatchSpec | LlmSpec = field(default_factory=BatchSpec)
    memory_total_bytes: int = 80 * GIB
    memory_idle_bytes: int = 2 * GIB
    request_bytes: int = GIB // 4  # of each request, queued or running; batch mode only
    restart_s: float = 5.0  # for which the device is lost after it ran out of memory
    idle_w: float = 70.0
    peak_w: float = 700.0

    def __post_init__(self) -> None:
        if not 0 <= self.memory_idle_bytes < self.memory_total_bytes:
            raise ValueError("memory_idle_bytes must be below memory_total_bytes")
        if not 0.0 <= self.idle_w <= self.peak_w or not self.restart_s >= 0.0:
            raise ValueError("idle_w must not be above peak_w, restart_s not negative")


class Done(NamedTuple):
    """Result of one request on the device."""

    id: int
    done_s: float
    failed: str = ""  # reason of the failure: memory, lost or too_large; empty for success


class SimulatedGpu:
    """A modelled GPU that works in batches. Every method may be called from any thread.

    Time never goes back: a ``now`` before the latest one counts as the latest one. Only ``read``, and the
    service in front of it, use the clock.
    """

    name = "simulated"
    min_interval_s: float = 0.05

    def __init__(self, spec: SimulatedGpuSpec | None = None, *, clock: Clock = time.monotonic) -> None:
        self.spec: SimulatedGpuSpec = spec or SimulatedGpuSpec()
        self.clock = clock
        self._engine = WorkEngine(self.spec.work)
        self._lock = threading.Lock()
        self._now = -math.inf
        self._finished: list[Done] = []
        self._submitted = self._done = self._failed = 0
        self._clear_faults()

    def _clear_faults(self) -> None:
        self._slowness = 1.0  # Factor of the duration of batches and steps
        self._is_fake_busy = False
        self._stalled_until_s = self._lost_until_s = -math.inf

    def submit(self, item: Item, now: float) -> None:
        """Submit a request; ``advance`` returns its result later."""
        with self._lock:
            now = self._run_until(now)
            self._submitted += 1
            if now < self._lost_until_s:
                self._fail([item], now, "lost")
            elif not self._engine.fits(item):
                self._fail([item], now, "too_large")
            else:
                self._engine.add(item, now)
                self._overflow(now)
                self._start(now)

    def next_event(self) -> float | None:
        """Return the earliest time at which ``advance`` can return results; None if no work is pending."""
        with self._lock:
            return self._now if self._finished else self._next()

    def advance(self, now: float) -> list[Done]:
        """Return results up to ``now`` that were not returned yet, in order of time."""
        with self._lock:
            self._run_until(now)
            finished, self._finished = self._finished, []
            return finished

    def generated(self, item_id: int, now: float) -> int:
        """Return the tokens generated so far by a running sequence; 0 if it is queued or unknown."""
        with self._lock:
            return self._engine.generated(item_id, self._run_until(now))

    def sample(self, now: float) -> GpuSample:
        """Return the sample that a driver would report at ``now``."""
        with self._lock:
            now = self._run_until(now)
            if now < self._lost_until_s:
                return GpuSample(device=DEVICE, index=0, taken_at_s=now, source=self.name, health="lost")
            busy, drawn = self._engine.busy_shares(now)
            utilization_pct = 100.0 * busy
            if self._is_fake_busy:
                utilization_pct, drawn = FAKE_BUSY_PCT, FAKE_BUSY_DRAW
            return GpuSample(
                device=DEVICE,
                index=0,
                taken_at_s=now,
                source=self.name,
                name="Simulated GPU",
                utilization_pct=utilization_pct,
                memory_used_bytes=min(self._memory_bytes(), self.spec.memory_total_bytes),
                memory_total_bytes=self.spec.memory_total_bytes,
                power_w=self.spec.idle_w + (self.spec.peak_w - self.spec.idle_w) * drawn,
                power_limit_w=self.spec.peak_w,
            )

    def state(self, now: float) -> dict[str, int | bool]:
        """Return counters and gauges at ``now``; always ``submitted = done + failed + resident``."""
        with self._lock:
            now = self._run_until(now)
            return {
                "submitted": self._submitted,
                "done": self._done,
                "failed": self._failed,
                "resident": self._resident,
                "queued": len(self._engine.queue),
                "kv_used": self._engine.kv_used,
                "lost": now < self._lost_until_s,
            }

    def read(self) -> tuple[GpuSample]:
        """Return one sample at the time of the own clock."""
        return (self.sample(self.clock()),)

    def close(self) -> None:
        """Do nothing: there is no driver to release."""

    def reset_after_fork(self) -> None:
        """Replace the lock; there are no handles to drop."""
        # A thread that the fork left in the parent may have held it.
        self._lock = threading.Lock()

    def stall(self, duration_s: float, now: float) -> None:
        """Stop all progress for ``duration_s``; running work counts as busy, as with a hung kernel."""
        with self._lock:
            now = self._run_until(now)
            until_s = max(self._stalled_until_s, now + duration_s)
            self._engine.delay(now, until_s - max(self._stalled_until_s, now))
            self._stalled_until_s = until_s

    def slow(self, factor: float, now: float) -> None:
        """Multiply the duration of batches and steps that start from now on; 1 is normal."""
        if not 0.0 < factor < math.inf:
            raise ValueError(f"factor must be a finite number above 0, not {factor!r}")
        with self._lock:
            self._engine.truncate(self._run_until(now))
            self._slowness = factor

    def fake_busy(self, *, on: bool) -> None:
        """Show 98 % utilization at low power, at normal speed."""
        with self._lock:
            self._is_fake_busy = on

    def lose(self, now: float) -> None:
        """Lose the device: all current and new requests fail until ``recover``."""
        with self._lock:
            self._lose_all(self._run_until(now), math.inf, "lost")

    def recover(self, now: float) -> None:
        """End every fault; delays caused by a stall remain."""
        with self._lock:
            now = self._run_until(now)
            self._clear_faults()
            self._start(now)

    def _run_until(self, now: float) -> float:
        now = max(now, self._now)
        due = self._next()
        while due is not None and due <= now:
            if self._engine.ends_s is not None:
                ended = self._engine.finish()
                self._done += len(ended)
                self._finished.extend(Done(item.id, due) for item in ended)
            self._start(due)
            due = self._next()
        self._now = now
        return now

    def _next(self) -> float | None:
        if self._engine.ends_s is not None:
            return self._engine.ends_s
        return self._stalled_until_s if self._engine.queue else None

    def _start(self, now: float) -> None:
        if self._engine.ends_s is not None or now < self._stalled_until_s:
            return
        if self._engine.begin(now, self._slowness):
            self._overflow(now)

    def _overflow(self, now: float) -> None:
        if self._memory_bytes() > self.spec.memory_total_bytes:
            self._lose_all(now, now + self.spec.restart_s, "memory")

    def _lose_all(self, now: float, until_s: float, reason: str) -> None:
        self._fail(self._engine.clear(now), now, reason)
        self._lost_until_s = until_s

    def _fail(self, items: list[Item], now: float, reason: str) -> None:
        self._failed += len(items)
        self._finished.extend(Done(item.id, now, reason) for item in items)

    @property
    def _resident(self) -> int:
        return len(self._engine.queue) + len(self._engine.running)

    def _memory_bytes(self) -> int:
        work, used = self.spec.work, self._resident * self.spec.request_bytes
        if isinstance(work, LlmSpec):  # tokens occupy memory when a sequence starts, requests on arrival
            used = self._engine.kv_used * work.kv_bytes_per_token
        return self.spec.memory_idle_bytes + used
