"""Work models of a simulated GPU: static batches, or continuous batching of token sequences. No clock.

The defaults are round numbers of this project, not those of a device.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, replace
from typing import NamedTuple

# NVML documents its sampling period as between 1/6 s and 1 s, depending on the product.
WINDOW_S = 1.0


def _check(spec: BatchSpec | LlmSpec, *names: str) -> None:
    for name in names:
        number = getattr(spec, name)
        if not 0.0 < number < math.inf:
            raise ValueError(f"{name} must be a finite number above 0, not {number!r}")


class Item(NamedTuple):
    """One request for the device."""

    id: int
    context_tokens: int = 0
    tokens: int = 1  # to generate; llm mode only, like ``context_tokens``


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSpec:
    """Static batching: an idle device takes at most ``max_batch`` queued requests, which end together."""

    max_batch: int = 16
    base_s: float = 0.010  # fixed cost of a batch: launch, copy, post-processing
    capacity_rps: float = 100.0  # requests/s in full batches: the maximal throughput

    def __post_init__(self) -> None:
        _check(self, "max_batch", "base_s", "capacity_rps")
        if self.per_item_s <= 0.0:
            full_s = self.max_batch / self.capacity_rps
            raise ValueError(f"base_s must be below max_batch / capacity_rps = {full_s:g} s")

    @property
    def per_item_s(self) -> float:
        """Time that each request adds to its batch, so that full batches run at ``capacity_rps``."""
        return (self.max_batch / self.capacity_rps - self.base_s) / self.max_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmSpec:
    """Continuous batching: each step gives each running sequence one token; new ones join between steps.

    A step lasts ``step_s + per_seq_s x running + context of new sequences / prefill_tps``.
    """

    step_s: float = 0.012
    per_seq_s: float = 0.0002
    prefill_tps: float = 20_000.0  # context tokens/s
    # Capacity for context and output tokens of running sequences; a sequence starts when it fits whole.
    kv_tokens: int = 400_000
    max_running: int = 64
    # 32 layers x 8 KV heads x 128 x 2 (key, value) x 2 bytes: the shape of Llama 3 8B in half precision.
    kv_bytes_per_token: int = 131_072

    def __post_init__(self) -> None:
        _check(self, "step_s", "per_seq_s", "prefill_tps", "kv_tokens", "max_running")

    def faster(self, factor: float) -> LlmSpec:
        """Return the same device with every duration divided by ``factor``."""
        step_s, per_seq_s = self.step_s / factor, self.per_seq_s / factor
        return replace(self, step_s=step_s, per_seq_s=per_seq_s, prefill_tps=self.prefill_tps * factor)


class _Sequence(NamedTuple):
    last_step: int
    serial: int
    first_step: int
    item: Item


class WorkEngine:
    """The work of a device, at a cost by request and not by token. Static batches are stretches of one step.

    Steps of equal length are modelled as one *stretch*. A new sequence ends it with the running step.
    """

    def __init__(self, spec: BatchSpec | LlmSpec) -> None:
        self._llm = spec if isinstance(spec, LlmSpec) else None  # None: static batches, which know no tokens
        if isinstance(spec, LlmSpec):
            self._max_running, self._base_s, self._per_item_s = spec.max_running, spec.step_s, spec.per_seq_s
        else:
            self._max_running, self._base_s, self._per_item_s = spec.max_batch, spec.base_s, spec.per_item_s
        self.queue: deque[Item] = deque()
        self.running: list[_Sequence] = []
        self.ends_s: float | None = None  # End of the running stretch; None while idle
        # Tokens reserved by all running sequences: context and all tokens they will generate.
        self.kv_used: int = 0
        self._serial = 0
        self._steps_done = 0
        self._start_s = self._step_s = 0.0
        self._steps = 0
        self._is_fixed = False  # Whether the end of the stretch can no longer come earlier
        # Start, end and fill of the stretches that ended in the last second.
        self._stretches: deque[tuple[float, float, float]] = deque()

    @property
    def fill(self) -> float:
        """Running requests as a share of the most that can run."""
        return len(self.running) / self._max_running

    def fits(self, item: Item) -> bool:
        """Whether the item could run on the empty device."""
        return self._llm is None or self._kv(item) <= self._llm.kv_tokens

    def add(self, item: Item, now: float) -> None:
        """Queue an item; it joins after the running step if there is capacity."""
        self.queue.append(item)
        if self._has_capacity():
            self.truncate(now)

    def begin(self, now: float, slowness: float) -> bool:
        """Start queued items that fit, and the next stretch; False if there is no work."""
        context, queued = 0, len(self.queue)
        while self._has_capacity():
            context += self._join(self.queue.popleft()).context_tokens
        joined = len(self.queue) < queued
        if not self.running:
            return False
        step_s = self._base_s + self._per_item_s * len(self.running)
        if self._llm is not None:
            step_s += context / self._llm.prefill_tps
        self._start_s, self._step_s = now, slowness * step_s
        # A step that reads new contexts is longer than the others, so it is a stretch of its own.
        self._steps = 1 if joined else self.running[0].last_step - self._steps_done
        self._is_fixed = joined
        self.ends_s = now + self._steps * self._step_s
        return True

    def finish(self) -> list[Item]:
        """End the stretch and return the sequences that generated their last token in it."""
        self._steps_done += self._steps
        self._end_stretch(self.ends_s)
        ended = []
        while self.running and self.running[0].last_step <= self._steps_done:
            item = heapq.heappop(self.running).item
            self.kv_used -= self._kv(item)
            ended.append(item)
        return ended

    def delay(self, now: float, by_s: float) -> None:
        """Postpone the end of the running step, and of the stretch."""
        self.truncate(now)
        if self.ends_s is not None:
            self.ends_s += by_s
            self._is_fixed = True

    def truncate(self, now: float) -> None:
        """End the stretch with the running step."""
        if self.ends_s is None or self._is_fixed:
            return
        # ceil: the running step is completed.
        self._steps = min(self._steps, math.ceil((now - self._start_s) / self._step_s))
        self.ends_s = self._start_s + self._steps * self._step_s

    def generated(self, item_id: int, now: float) -> int:
        """Return the tokens of a running sequence so far; 0 if it is queued or unknown."""
        sequence = next((sequence for sequence in self.running if sequence.item.id == item_id), None)
        if sequence is None or self._llm is None:
            return 0
        ended = min(self._steps, int((now - self._start_s) / self._step_s))
        return max(0, self._steps_done + ended - sequence.first_step)

    def clear(self, now: float) -> list[Item]:
        """Remove all items and return them."""
        self._end_stretch(now if self.ends_s is not None else None)
        lost = [*(sequence.item for sequence in sorted(self.running)), *self.queue]
        self.running.clear()
        self.queue.clear()
        self.kv_used = 0
        return lost

    def busy_shares(self, now: float) -> tuple[float, float]:
        """Return busy share and fill-weighted busy share of the second before ``now``, both 0..1.

        NVML defines utilization as the share of time in which any kernel ran. It saturates below capacity.
        """
        running = [] if self.ends_s is None else [(self._start_s, now, self.fill)]
        busy = weighted = 0.0
        for begin_s, end_s, fill in [*self._stretches, *running]:
            length = max(0.0, min(end_s, now) - max(begin_s, now - WINDOW_S))
            busy += length
            weighted += length * fill
        return min(1.0, busy / WINDOW_S), min(1.0, weighted / WINDOW_S)

    def _end_stretch(self, end_s: float | None) -> None:
        self._steps, self.ends_s = 0, None
        if end_s is not None:
            self._stretches.append((self._start_s, end_s, self.fill))
            while self._stretches[0][1] < end_s - WINDOW_S:
                self._stretches.popleft()

    def _kv(self, item: Item) -> int:
        return 0 if self._llm is None else item.context_tokens + item.tokens

    def _has_capacity(self) -> bool:
        if not self.queue or len(self.running) >= self._max_running:
            return False
        return self._llm is None or self.kv_used + self._kv(self.queue[0]) <= self._llm.kv_tokens

    def _join(self, item: Item) -> Item:
        self._serial += 1
        last_step = self._steps_done + (1 if self._llm is None else max(1, item.tokens))
        heapq.heappush(self.running, _Sequence(last_step, self._serial, self._steps_done, item))
        self.kv_used += self._kv(item)
        return item
