"""Samples a service once a second, outside the generator's event loop."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from autoglm_throttle._runtime.worker import Worker

INTERVAL_S: Final = 1.0
"""Seconds between two samples: the grid of the report."""

JOIN_S: Final = 0.5
"""Seconds to wait for the end of a sample; a hung probe is abandoned."""


class ProbeTargetLostError(Exception):
    """The target of a probe is lost for good; without a text it is not reported."""


class Probe(Protocol):
    """A target that can be sampled."""

    name: str
    """Name for people."""

    def sample(self, now: float) -> dict[str, float]:
        """Take a sample; blocks for 2 s at most.

        Args:
            now: seconds, monotonic.

        Raises:
            ProbeTargetLostError: the target is lost for good.
            Exception: no sample this time.
        """


class Prober:
    """Samples each target on a thread of its own, so that a hung one delays no other.

    A failing probe never ends a run: its samples are missing, and `faults` say why. Use it with ``with``.

    Args:
        probes: the targets.
        every_s: seconds between two samples.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        probes: Sequence[Probe],
        *,
        every_s: float = INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._probes = probes
        self._every_s = every_s
        self._clock = clock
        self._lock = threading.Lock()
        self._samples: list[tuple[float, dict[str, float]]] = []
        self._faults: dict[str, str] = {}
        self._missed: dict[str, int] = {}
        self._workers: list[Worker] = []

    def __enter__(self) -> Prober:
        """Start sampling."""
        for probe in self._probes:
            steps = _ProbeSteps(self, probe, self._every_s, self._clock)
            worker = Worker(f"watch {probe.name}", steps.run, on_crash=steps.record_crash)
            self._workers.append(worker)
            worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop sampling."""
        for worker in self._workers:
            worker.stop(0.0)
        for worker in self._workers:
            worker.stop(JOIN_S)

    @property
    def faults(self) -> list[str]:
        """Last error of each failing probe, one sentence each."""
        with self._lock:
            return [
                f"{text} ({self._missed[name]} failed samples)" if self._missed.get(name, 0) > 1 else text
                for name, text in self._faults.items()
            ]

    def samples(self, start_s: float, end_s: float) -> tuple[dict[str, float], ...]:
        """Return the samples of all probes, second by second: ``t_s`` and the numbers.

        Args:
            start_s: start of the run, by the clock.
            end_s: its end.
        """
        rows: dict[int, dict[str, float]] = {}
        with self._lock:
            samples = sorted(self._samples, key=lambda one: one[0])
        for at_s, numbers in samples:
            if start_s <= at_s <= end_s:
                second = math.floor((at_s - start_s) / self._every_s)
                rows.setdefault(second, {"t_s": round(at_s - start_s, 3)}).update(numbers)
        return tuple(rows[second] for second in sorted(rows))

    def record_sample(self, at_s: float, numbers: dict[str, float]) -> None:
        """Record the numbers of one sample."""
        with self._lock:
            self._samples.append((at_s, numbers))

    def record_fault(self, probe: Probe, text: str) -> None:
        """Record a missing sample and its reason."""
        with self._lock:
            self._faults[probe.name] = text
            self._missed[probe.name] = self._missed.get(probe.name, 0) + 1


class _ProbeSteps:
    """Samples one target at regular times, on a thread of its own."""

    def __init__(self, prober: Prober, probe: Probe, every_s: float, clock: Callable[[], float]) -> None:
        self._prober = prober
        self._probe = probe
        self._every_s = every_s
        self._clock = clock
        self._next_s = clock()

    def run(self) -> float | None:
        """Take a sample; return the seconds until the next one, None if the target is lost."""
        now = self._clock()
        # After a slow sample the next one follows at once; missed ones are not caught up.
        self._next_s = max(self._next_s + self._every_s, now)
        try:
            numbers = self._probe.sample(now)
        except ProbeTargetLostError as error:
            if str(error):
                self._prober.record_fault(self._probe, str(error))
            return None
        except Exception as error:  # noqa: BLE001 - whatever it is, the run goes on
            self._prober.record_fault(self._probe, f"{self._probe.name} {error}")
        else:
            self._prober.record_sample(now, numbers)
        return max(0.0, self._next_s - self._clock())

    def record_crash(self, error: BaseException) -> None:
        """Record an error that ends the thread of a probe for some seconds, or prevents its start."""
        self._prober.record_fault(self._probe, f"{self._probe.name} {error}")
