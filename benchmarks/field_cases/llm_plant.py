"""An LLM engine with a cache of limited size, and the lengths of its requests."""

from __future__ import annotations

import csv
import functools
import heapq
import random
from collections import deque
from pathlib import Path
from typing import NamedTuple

from benchmarks.field_cases.call import Call
from benchmarks.loop.plant import DeviceReading, Listener
from benchmarks.loop.request import Request
from benchmarks.loop.scheduler import EventScheduler

STEP_S, PER_DECODING_S, PER_PREFILL_TOKEN_S = 0.015, 0.0001, 0.00005
CACHE_TOKENS = 50_000
SEQUENCES_MAX = 256
CHUNK_TOKENS = 2048
"""Tokens that a step computes: one for each decoding sequence, the others for prompts."""

PROMPT = (6.63, 0.93, 8192)
OUTPUT = (5.02, 0.83, 1000)
"""Mean and deviation of the logarithm, and the longest: lognormal distributions fitted to the 19,366 requests
of AzureLLMInferenceTrace_conv.csv (Azure/AzurePublicDataset, CC-BY 4.0), whose means are 1155 and 211 tokens.
"""


class Lengths(NamedTuple):
    """Tokens of a request."""

    prompt: int
    output: int


def draw_lengths(rng: random.Random) -> Lengths:
    """Draw the lengths of a request."""
    return Lengths(_lognormal(rng, *PROMPT), _lognormal(rng, *OUTPUT))


def _lognormal(rng: random.Random, mu: float, sigma: float, longest: int) -> int:
    return min(longest, max(1, round(rng.lognormvariate(mu, sigma))))


@functools.cache
def read_trace(path: str) -> tuple[Lengths, ...]:
    """Read the lengths of an Azure trace."""
    with Path(path).open(newline="") as file:
        rows = csv.DictReader(file)
        return tuple(
            Lengths(max(1, int(row["ContextTokens"])), max(1, int(row["GeneratedTokens"]))) for row in rows
        )


def traced_lengths(path: str, rng: random.Random) -> Lengths:
    """Choose a request of a trace."""
    return rng.choice(read_trace(path))


class _Sequence:
    __slots__ = ("cached", "call", "joined", "output_left", "prompt_left")

    def __init__(self, call: Call) -> None:
        self.call = call
        lengths: Lengths = call.work
        self.prompt_left = lengths.prompt
        """Tokens to compute before the next one is generated."""
        self.output_left = lengths.output
        self.cached = 0
        """Tokens of the prompt, or of the context after a preemption, for which the cache is reserved."""
        self.joined = 0
        """Step at which it began to decode."""


class LlmEnginePlant:
    """Continuous batching with chunked prefill; the last sequence is preempted when the cache is full.

    Args:
        scheduler: time.
        listener: told about the ends.
    """

    def __init__(self, scheduler: EventScheduler, listener: Listener) -> None:
        self.inside = 0
        self.kills = 0
        self.preempted = 0
        self._scheduler = scheduler
        self._listener = listener
        self._speed = 1.0
        self._step = 0
        self._runs = False
        self._waiting: deque[_Sequence] = deque()
        self._prefilling: deque[_Sequence] = deque()
        self._decoding: list[tuple[int, int, _Sequence]] = []
        """Heap of the last step, a serial number, and the sequence."""
        self._serial = 0
        self._cached = 0
        """Tokens in the cache."""

    def admit(self, request: Request, replica: int | None = None) -> None:  # noqa: ARG002
        """Enqueue a request; it joins between two steps."""
        assert isinstance(request, Call)
        self.inside += 1
        self._waiting.append(_Sequence(request))
        if not self._runs:
            self._begin()

    def speed(self, change: tuple[int, float]) -> None:
        """Change the speed of the steps that begin from now on."""
        self._speed = change[1]

    def readings(self) -> list[DeviceReading]:
        """Return nothing: no case reads it."""
        return []

    def _begin(self) -> None:
        """Begin a step, if there is work."""
        while self._decoding and self._cached + len(self._decoding) > CACHE_TOKENS:
            self._preempt()
        self._join()
        decoding = len(self._decoding)
        if not decoding and not self._prefilling:
            self._runs = False
            return
        computed = self._prefill(CHUNK_TOKENS - decoding)
        self._runs = True
        lasts_s = STEP_S + PER_DECODING_S * decoding + PER_PREFILL_TOKEN_S * computed
        self._cached += decoding
        self._scheduler.at(self._scheduler.now + lasts_s / self._speed, self._end)

    def _join(self) -> None:
        """Reserve the cache for the prompts of waiting requests, in their order."""
        while self._waiting and len(self._decoding) + len(self._prefilling) < SEQUENCES_MAX:
            sequence = self._waiting[0]
            if self._cached + sequence.prompt_left + len(self._decoding) > CACHE_TOKENS:
                return
            self._waiting.popleft()
            sequence.cached = sequence.prompt_left
            self._cached += sequence.cached
            self._prefilling.append(sequence)

    def _prefill(self, budget: int) -> int:
        """Compute prompts, in their order, and return the number of tokens."""
        left = budget
        for sequence in self._prefilling:
            part = min(left, sequence.prompt_left)
            sequence.prompt_left -= part
            left -= part
            if not left:
                break
        return budget - left

    def _preempt(self) -> None:
        """Put the sequence that began last back to the head of the queue, to compute its context anew."""
        if self._prefilling:
            sequence = self._prefilling.pop()
            sequence.prompt_left = sequence.cached
        else:
            index = max(range(len(self._decoding)), key=lambda at: self._decoding[at][1])
            last_step, _, sequence = self._decoding.pop(index)
            heapq.heapify(self._decoding)
            generated = self._step - sequence.joined
            sequence.cached += generated
            sequence.prompt_left = sequence.cached
            sequence.output_left = last_step - self._step
        self.preempted += 1
        self._cached -= sequence.cached
        sequence.cached = 0
        self._waiting.appendleft(sequence)

    def _end(self, _event: object) -> None:
        """End a step: each decoding sequence has a token more, each computed prompt its first one."""
        self._step += 1
        ended: list[Call] = []
        while self._decoding and self._decoding[0][0] <= self._step:
            _, _, sequence = heapq.heappop(self._decoding)
            self._cached -= sequence.cached + self._step - sequence.joined
            ended.append(sequence.call)
        while self._prefilling and not self._prefilling[0].prompt_left:
            sequence = self._prefilling.popleft()
            if sequence.output_left <= 1:
                self._cached -= sequence.cached
                ended.append(sequence.call)
                continue
            self._serial += 1
            sequence.joined = self._step
            heapq.heappush(self._decoding, (self._step + sequence.output_left - 1, self._serial, sequence))
        self.inside -= len(ended)
        for call in ended:
            self._listener.ended(call, ok=True)
        if ended:
            self._listener.settled(0)
        self._begin()
