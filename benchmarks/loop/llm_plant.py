"""A service with continuous batching: each step gives each sequence a token, new ones join between steps."""

from __future__ import annotations

from dataclasses import dataclass

from autoglm_throttle.testing.simulated_engines import Item, LlmSpec, WorkEngine
from benchmarks.loop.plant import DeviceReading, Listener
from benchmarks.loop.request import Request
from benchmarks.loop.scheduler import EventScheduler

BOUNDLESS = 1 << 40
"""Unlimited memory for keys and values: other scenarios measure memory."""


@dataclass(frozen=True, slots=True)
class LlmPlantSpec:
    """A service that batches continuously; the defaults are round numbers of this project."""

    step_s: float = 0.020
    per_sequence_s: float = 0.0003
    """Seconds that each running sequence adds to a step."""
    steps: int = 200
    """Steps of a request of cost 1."""
    batch: int = 64
    """Sequences that run at a time."""
    memory: float = 0.4

    @property
    def capacity_rps(self) -> float:
        """Return the requests/s of a full batch."""
        return self.batch / (self.steps * (self.step_s + self.batch * self.per_sequence_s))


class LlmPlant:
    """The simulated LLM engine of the load tests, driven by the requests of this loop."""

    def __init__(self, spec: LlmPlantSpec, scheduler: EventScheduler, listener: Listener) -> None:
        self.spec = spec
        self.inside = 0
        self.kills = 0
        self._scheduler = scheduler
        self._listener = listener
        self._engine = WorkEngine(
            LlmSpec(
                step_s=spec.step_s,
                per_seq_s=spec.per_sequence_s,
                kv_tokens=BOUNDLESS,
                max_running=spec.batch,
            )
        )
        self._by_id: dict[int, Request] = {}
        self._serial = 0
        self._run = 0
        self._is_ending = False
        """True while the requests of the last step end: one admitted meanwhile joins the next step."""
        self._since_s = 0.0
        self._read_s = 0.0
        self._busy_s = 0.0
        self._work_s = 0.0

    def admit(self, request: Request, replica: int | None = None) -> None:  # noqa: ARG002 - there is one
        """Enqueue a request until a sequence slot is free."""
        now = self._scheduler.now
        self._account(now)
        self._serial += 1
        self._by_id[self._serial] = request
        self.inside += 1
        self._engine.add(Item(self._serial, tokens=max(1, round(self.spec.steps * request.cost))), now)
        if self._engine.ends_s is not None:
            self._schedule_end()
        elif not self._is_ending:
            self._begin()

    def speed(self, change: tuple[int, float]) -> None:
        """Reject the change: no scenario changes the speed of this service."""
        raise NotImplementedError(change)

    def readings(self) -> list[DeviceReading]:
        """Return the reading of the one device for the time since the last call."""
        now = self._scheduler.now
        self._account(now)
        span = max(now - self._read_s, 1e-9)
        self._read_s = now
        reading = DeviceReading(
            min(100.0, 100.0 * self._busy_s / span), min(1.0, self._work_s / span), self.spec.memory
        )
        self._busy_s = self._work_s = 0.0
        return [reading]

    def _begin(self) -> None:
        if self._engine.begin(self._scheduler.now, 1.0):
            self._schedule_end()

    def _schedule_end(self) -> None:
        self._run += 1
        ends_s = self._engine.ends_s
        if ends_s is not None:
            self._scheduler.at(ends_s, self._end, self._run)

    def _end(self, run: int) -> None:
        if run != self._run:
            return
        now = self._scheduler.now
        self._account(now)
        ended = self._engine.finish()
        self.inside -= len(ended)
        self._is_ending = True
        for item in ended:
            self._listener.ended(self._by_id.pop(item.id), ok=True)
        if ended:
            self._listener.settled(0)
        self._is_ending = False
        self._begin()

    def _account(self, now: float) -> None:
        if self._engine.running or self._engine.queue:
            self._busy_s += now - self._since_s
            self._work_s += (now - self._since_s) * self._engine.fill
        self._since_s = now
