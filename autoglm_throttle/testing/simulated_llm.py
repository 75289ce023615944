"""A model of an LLM engine: continuous batching, chunked prefill, a KV cache in blocks, preemption. No clock.

It schedules as vLLM does. Each step computes one token of each decoding sequence, and parts of prompts up
to ``max_num_batched_tokens``. A sequence joins if the cache has blocks for its whole context. If the cache
cannot grow, the last sequence is preempted: its blocks are freed, and later its context is computed again.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Literal, NamedTuple

# Mean and deviation of the logarithm, and the greatest value: lognormal distributions fitted to the 19,366
# requests of AzureLLMInferenceTrace_conv.csv (Azure/AzurePublicDataset, CC-BY 4.0), whose means are 1155
# prompt tokens and 211 generated tokens.
PROMPT_TOKENS = (6.63, 0.93, 8192)
OUTPUT_TOKENS = (5.02, 0.83, 1000)


class TokenLengths(NamedTuple):
    """Tokens of a request and of its answer."""

    prompt: int
    output: int


def draw_lengths(rng: random.Random) -> TokenLengths:
    """Draw lengths as those of a production chat service."""
    return TokenLengths(_lognormal(rng, *PROMPT_TOKENS), _lognormal(rng, *OUTPUT_TOKENS))


def _lognormal(rng: random.Random, mu: float, sigma: float, longest: int) -> int:
    return min(longest, max(1, round(rng.lognormvariate(mu, sigma))))


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmEngineSpec:
    """Costs and limits of an engine; limits are named as the options of vLLM.

    A step lasts ``step_s + sequence_s x decoding sequences + prompt_token_s x prompt tokens``. The defaults
    are those of a model of 8 billion parameters in half precision on an A100 with 80 GB, computed from its
    data sheet: 2.0 TB/s, 312 TFLOP/s. They are not measured.
    """

    step_s: float = 0.008  # 16 GB of weights are read once
    sequence_s: float = 0.0001  # keys and values of 1,500 tokens, 128 KiB each, are read
    prompt_token_s: float = 0.0001  # 16 GFLOP, at half of the peak rate
    block_size: int = 16  # tokens in a block of the cache: vLLM's default
    num_gpu_blocks: int = 25_000  # 90 % of the memory less weights and 3 GB, in blocks of 2 MiB
    max_num_seqs: int = 256  # running sequences: vLLM's default, like the next one
    max_num_batched_tokens: int = 2048  # tokens in a step
    max_model_len: int = 16_384  # tokens of prompt and answer
    max_num_queued_reqs: int | None = None  # waiting and running requests; None: no limit
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"

    def __post_init__(self) -> None:
        for field in fields(self):
            number = getattr(self, field.name)
            if not isinstance(number, str | None) and not 0 < number < math.inf:
                raise ValueError(f"{field.name} must be a finite number above 0, not {number!r}")
        if self.max_num_batched_tokens <= self.max_num_seqs:
            raise ValueError("max_num_batched_tokens must be above max_num_seqs: else no prompt is computed")
        if self.max_model_len > self.num_gpu_blocks * self.block_size:
            raise ValueError("max_model_len must be at most num_gpu_blocks x block_size, the whole cache")
        if self.scheduling_policy not in {"fcfs", "priority"}:
            raise ValueError(f"scheduling_policy must be fcfs or priority, not {self.scheduling_policy!r}")

    def faster(self, factor: float) -> LlmEngineSpec:
        """Return the same engine with every duration divided by ``factor``."""
        durations = {
            name: getattr(self, name) / factor for name in ("step_s", "sequence_s", "prompt_token_s")
        }
        return replace(self, **durations)


class EngineEvent(NamedTuple):
    """Progress of a request in a step."""

    id: int
    kind: Literal["first_token", "finished"]


class _LlmRequest:
    """A request in the engine; ``context`` and ``generated`` are those of its last start."""

    __slots__ = ("context", "generated", "id", "joined", "output", "prompt", "rank", "uncomputed")

    def __init__(self, id_: int, lengths: TokenLengths, rank: tuple[int, int]) -> None:
        self.id = id_
        self.prompt, self.output = lengths
        self.rank = rank  # (priority, arrival): smaller ones start earlier and are preempted later
        self.context = self.prompt  # Tokens whose keys and values are computed before the next token
        self.uncomputed = self.prompt  # Part of them that is still to be computed
        self.generated = 0
        self.joined: int | None = None  # Number of the step at which it began to decode; None: it does not


class LlmEngine:
    """The scheduler and the KV cache of a simulated engine.

    Call `begin` after `submit`, and `finish` at the time that `begin` returns, then `begin` again.
    """

    def __init__(self, spec: LlmEngineSpec | None = None) -> None:
        self.spec: LlmEngineSpec = spec or LlmEngineSpec()
        self.speed: float = 1.0  # of the steps that begin from now on; 1 is normal
        self.ends_s: float | None = None  # End of the running step; None between steps
        self.free_blocks: int = self.spec.num_gpu_blocks
        self.finished: int = 0
        self.aborted: int = 0
        self.rejected: int = 0
        self.preemptions: int = 0
        self.prompt_tokens: int = 0
        self.generation_tokens: int = 0
        self._arrivals = 0
        self._steps = 0  # Steps that ended
        self._sequences: dict[int, _LlmRequest] = {}
        self._waiting: list[tuple[tuple[int, int], _LlmRequest]] = []  # Heap
        self._prefilling: deque[_LlmRequest] = deque()
        # Heap of the step in which the last token is generated, the rank, and the sequence.
        self._decoding: list[tuple[int, tuple[int, int], _LlmRequest]] = []
        # Decoding sequences by the step, modulo the size of a block, in which they need another block.
        self._growth = [0] * self.spec.block_size

    @property
    def running(self) -> int:
        """Sequences that have blocks of the cache."""
        return len(self._prefilling) + len(self._decoding)

    @property
    def waiting(self) -> int:
        """Requests that wait for a sequence or for blocks, preempted ones included."""
        return len(self._waiting)

    @property
    def kv_used_ratio(self) -> float:
        """Blocks in use as a share of all."""
        return 1.0 - self.free_blocks / self.spec.num_gpu_blocks

    @property
    def decoding_ids(self) -> Iterator[int]:
        """The requests that had a token in the step that ended last, finished ones excepted."""
        return (sequence.id for _, _, sequence in self._decoding)

    def submit(self, id_: int, lengths: TokenLengths, priority: int = 0) -> bool:
        """Enqueue a request; False: ``max_num_queued_reqs`` are there, and it is rejected.

        A smaller ``priority`` is earlier, if the scheduling policy is ``priority``.

        Raises:
            ValueError: a length is below 1, their sum above ``max_model_len``, or the id in use.
        """
        if min(lengths) < 1 or sum(lengths) > self.spec.max_model_len:
            raise ValueError(f"{lengths} must be 1 or more each, {self.spec.max_model_len} at most together")
        if id_ in self._sequences:
            raise ValueError(f"request {id_} is in the engine already")
        limit = self.spec.max_num_queued_reqs
        if limit is not None and len(self._sequences) >= limit:
            self.rejected += 1
            return False
        self._arrivals += 1
        rank = (priority if self.spec.scheduling_policy == "priority" else 0, self._arrivals)
        self._sequences[id_] = sequence = _LlmRequest(id_, lengths, rank)
        heapq.heappush(self._waiting, (rank, sequence))
        return True

    def abort(self, id_: int) -> bool:
        """Remove a request and free its blocks; False if it is not in the engine."""
        sequence = self._sequences.pop(id_, None)
        if sequence is None:
            return False
        if (sequence.rank, sequence) in self._waiting:
            self._waiting.remove((sequence.rank, sequence))
            heapq.heapify(self._waiting)
        else:
            self._stop(sequence)
        self.aborted += 1
        return True

    def begin(self, now: float) -> float | None:
        """Begin a step, unless one runs, and return its end; None if there is no work."""
        if self.ends_s is not None:
            return self.ends_s
        while self._growth[self._steps % self.spec.block_size] > self.free_blocks:
            self._preempt()
        self._join()  # not of those just preempted: they need more than they gave back
        if not self.running:
            return None
        spec, decoding = self.spec, len(self._decoding)
        computed = self._prefill(spec.max_num_batched_tokens - decoding)
        self.free_blocks -= self._growth[self._steps % spec.block_size]
        lasts_s = spec.step_s + spec.sequence_s * decoding + spec.prompt_token_s * computed
        self.ends_s = now + lasts_s / self.speed
        return self.ends_s

    def finish(self) -> list[EngineEvent]:
        """End the running step and return the progress made in it."""
        self.ends_s = None
        self._steps += 1
        self.generation_tokens += len(self._decoding)
        events = []
        while self._decoding and self._decoding[0][0] <= self._steps:
            events.append(self._end(self._decoding[0][2]))
        while self._prefilling and not self._prefilling[0].uncomputed:
            sequence = self._prefilling[0]
            if not sequence.generated:
                self.prompt_tokens += sequence.prompt
                events.append(EngineEvent(sequence.id, "first_token"))
            self.generation_tokens += 1
            sequence.generated += 1
            if sequence.generated >= sequence.output:
                events.append(self._end(sequence))
                continue
            self._prefilling.popleft()
            sequence.joined = self._steps
            last_step = self._steps + sequence.output - sequence.generated
            heapq.heappush(self._decoding, (last_step, sequence.rank, sequence))
            self._growth[(sequence.joined - sequence.context) % self.spec.block_size] += 1
        return events

    def _end(self, sequence: _LlmRequest) -> EngineEvent:
        del self._sequences[sequence.id]
        self._stop(sequence)
        self.finished += 1
        return EngineEvent(sequence.id, "finished")

    def _join(self) -> None:
        """Start waiting requests in their order, as long as there are blocks for the next one."""
        grow = self._growth[self._steps % self.spec.block_size]
        while self._waiting and self.running < self.spec.max_num_seqs:
            sequence = self._waiting[0][1]
            blocks = self._blocks(sequence.context)
            if blocks + grow > self.free_blocks:
                return
            heapq.heappop(self._waiting)
            self.free_blocks -= blocks
            self._prefilling.append(sequence)

    def _prefill(self, budget: int) -> int:
        """Compute tokens of prompts, in their order, and return how many."""
        left = budget
        for sequence in self._prefilling:
            part = min(left, sequence.uncomputed)
            sequence.uncomputed -= part
            left -= part
            if not left:
                break
        return budget - left

    def _preempt(self) -> None:
        """Stop the running sequence of the last rank; it waits again, and keeps its generated tokens."""
        running = [*self._prefilling, *(sequence for _, _, sequence in self._decoding)]
        sequence = max(running, key=lambda one: one.rank)
        self._stop(sequence)
        if sequence.joined is not None:
            sequence.generated += self._steps - sequence.joined
            sequence.joined = None
        sequence.context = sequence.uncomputed = sequence.prompt + sequence.generated
        heapq.heappush(self._waiting, (sequence.rank, sequence))
        self.preemptions += 1

    def _stop(self, sequence: _LlmRequest) -> None:
        """Remove a running sequence and free its blocks."""
        if sequence.joined is None:
            self._prefilling.remove(sequence)
            self.free_blocks += self._blocks(sequence.context)
            return
        index = next(at for at, entry in enumerate(self._decoding) if entry[2] is sequence)
        if index:
            del self._decoding[index]
            heapq.heapify(self._decoding)
        else:
            heapq.heappop(self._decoding)
        self._growth[(sequence.joined - sequence.context) % self.spec.block_size] -= 1
        cached = sequence.context + self._steps - sequence.joined + (self.ends_s is not None)
        self.free_blocks += self._blocks(cached)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.spec.block_size)
