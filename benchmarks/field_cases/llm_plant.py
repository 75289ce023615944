"""An LLM engine with a cache of limited size, and the lengths of its requests."""

from __future__ import annotations

import csv
import functools
import random
from pathlib import Path

from autoglm_throttle.testing.simulated_llm import LlmEngine, LlmEngineSpec, TokenLengths
from autoglm_throttle.types import GpuSample
from benchmarks.field_cases.call import Call
from benchmarks.loop.plant import DeviceReading, Listener
from benchmarks.loop.request import Request
from benchmarks.loop.scheduler import EventScheduler

SMALL_CACHE = LlmEngineSpec(
    step_s=0.015,
    sequence_s=0.0001,
    prompt_token_s=0.00005,
    block_size=1,
    num_gpu_blocks=50_000,
    max_model_len=10_000,
)


@functools.cache
def read_trace(path: str) -> tuple[TokenLengths, ...]:
    """Read the lengths of an Azure trace."""
    with Path(path).open(newline="") as file:
        rows = csv.DictReader(file)
        return tuple(
            TokenLengths(max(1, int(row["ContextTokens"])), max(1, int(row["GeneratedTokens"])))
            for row in rows
        )


def traced_lengths(path: str, rng: random.Random) -> TokenLengths:
    """Choose a request of a trace."""
    return rng.choice(read_trace(path))


class LlmEnginePlant:
    """The simulated LLM engine of the package, driven by the calls of a case.

    Args:
        scheduler: time.
        listener: told about the ends.
        spec: costs and limits of the engine.
    """

    def __init__(
        self, scheduler: EventScheduler, listener: Listener, spec: LlmEngineSpec = SMALL_CACHE
    ) -> None:
        self.inside = 0
        self.kills = 0
        self.engine = LlmEngine(spec)
        self._scheduler = scheduler
        self._listener = listener
        self._calls: dict[int, Call] = {}
        self._serial = 0
        self._is_ending = False
        """True while the requests of the last step end: one admitted meanwhile joins the next step."""

    def admit(self, request: Request, replica: int | None = None) -> None:  # noqa: ARG002
        """Enqueue a request; it joins between two steps."""
        assert isinstance(request, Call)
        self._serial += 1
        self.inside += 1
        self._calls[self._serial] = request
        self.engine.submit(self._serial, request.work)
        if self.engine.ends_s is None and not self._is_ending:
            self._begin()

    def speed(self, change: tuple[int, float]) -> None:
        """Change the speed of the steps that begin from now on."""
        self.engine.speed = change[1]

    def readings(self) -> list[DeviceReading]:
        """Return nothing: no case reads it."""
        return []

    def read(self) -> list[GpuSample]:
        """Return a sample of the engine, as its metrics would."""
        engine = self.engine
        return [
            GpuSample(
                device="engine",
                index=0,
                taken_at_s=self._scheduler.now,
                source="engine",
                kind="engine",
                running=engine.running,
                queued=engine.waiting,
                kv_used_ratio=engine.kv_used_ratio,
            )
        ]

    def _begin(self) -> None:
        ends_s = self.engine.begin(self._scheduler.now)
        if ends_s is not None:
            self._scheduler.at(ends_s, self._end)

    def _end(self, _event: object) -> None:
        calls = []
        for event in self.engine.finish():
            if event.kind == "finished":
                calls.append(self._calls.pop(event.id))
            else:
                call = self._calls[event.id]
                call.first_s = self._scheduler.now
                if call.on_first_token is not None:
                    call.on_first_token(call.first_s)
        self._is_ending = True
        self.inside -= len(calls)
        for call in calls:
            self._listener.ended(call, ok=True)
        if calls:
            self._listener.settled(0)
        self._is_ending = False
        self._begin()
