"""Continuous batching: each step gives every running sequence a token; new sequences join between steps.

Steps of equal length are modelled as one *stretch*, so the cost is by sequence and not by token.
A new sequence ends the stretch with the running step.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from autoglm_throttle.traffic.simulate.spec import Item, LlmSpec


class _Running(NamedTuple):
    last_step: int
    serial: int
    first_step: int
    item: Item


@dataclass(slots=True)
class _Stretch:
    """Steps of equal length."""

    start_s: float = 0.0
    step_s: float = 0.0
    """Length of each step."""
    steps: int = 0
    is_fixed: bool = False
    """Whether the end can no longer come earlier."""
    ends_s: float | None = None
    """None while idle."""

    def steps_at(self, now: float) -> int:
        """Whole steps from the start."""
        return int((now - self.start_s) / self.step_s)

    def truncate(self, now: float) -> None:
        """End with the running step."""
        if self.ends_s is None or self.is_fixed:
            return
        # ceil: the running step is completed.
        self.steps = min(self.steps, math.ceil((now - self.start_s) / self.step_s))
        self.ends_s = self.start_s + self.steps * self.step_s

    def stop(self) -> None:
        """Become idle."""
        self.steps, self.ends_s = 0, None


class LlmEngine:
    """Models the work of a device in llm mode. Pure: time is passed in."""

    def __init__(self, spec: LlmSpec) -> None:
        self._spec = spec
        self._queue: deque[Item] = deque()
        self._running: list[_Running] = []
        self._by_id: dict[int, _Running] = {}
        self._serial = 0
        self._steps_done = 0
        self._stretch = _Stretch()
        self.kv_used: int = 0
        """Tokens reserved by all running sequences: context and all tokens they will generate."""

    @property
    def ends_s(self) -> float | None:
        """End of the running stretch; None while idle."""
        return self._stretch.ends_s

    @property
    def resident(self) -> int:
        """Requests on the device, queued or running."""
        return len(self._queue) + len(self._running)

    @property
    def queued(self) -> int:
        """Queued requests."""
        return len(self._queue)

    @property
    def fill(self) -> float:
        """Running sequences as a share of ``max_running``."""
        return len(self._running) / self._spec.max_running

    def fits(self, item: Item) -> bool:
        """Whether the item could run on the empty device."""
        return _kv(item) <= self._spec.kv_tokens

    def add(self, item: Item, now: float) -> None:
        """Queue an item; it joins after the running step if there is capacity."""
        self._queue.append(item)
        if self._has_capacity():
            self._stretch.truncate(now)

    def begin(self, now: float, slowness: float) -> bool:
        """Start queued items that fit, and the next stretch; False if there is no work."""
        context = 0
        joined = False
        while self._has_capacity():
            item = self._queue.popleft()
            self._join(item)
            context += item.context_tokens
            joined = True
        if not self._running:
            return False
        step_s = self._spec.step_s + self._spec.per_seq_s * len(self._running)
        step_s = slowness * (step_s + context / self._spec.prefill_tps)
        # A step that reads new contexts is longer than the others, so it is a stretch of its own.
        steps = 1 if joined else self._running[0].last_step - self._steps_done
        self._stretch = _Stretch(now, step_s, steps, is_fixed=joined, ends_s=now + steps * step_s)
        return True

    def finish(self) -> list[Item]:
        """End the stretch and return the sequences that generated their last token in it."""
        self._steps_done += self._stretch.steps
        self._stretch.stop()
        ended = []
        while self._running and self._running[0].last_step <= self._steps_done:
            item = heapq.heappop(self._running).item
            del self._by_id[item.id]
            self.kv_used -= _kv(item)
            ended.append(item)
        return ended

    def delay(self, now: float, by_s: float) -> None:
        """Postpone the end of the running step, and of the stretch."""
        self._stretch.truncate(now)
        if self._stretch.ends_s is not None:
            self._stretch.ends_s += by_s
            self._stretch.is_fixed = True

    def truncate(self, now: float) -> None:
        """End the stretch with the running step."""
        self._stretch.truncate(now)

    def drop(self, item_id: int, now: float) -> bool:
        """Remove a queued or running item; a running one frees its capacity after the running step."""
        sequence = self._by_id.pop(item_id, None)
        if sequence is None:
            waiting = [item for item in self._queue if item.id != item_id]
            removed = len(waiting) < len(self._queue)
            self._queue = deque(waiting)
            return removed
        self._stretch.truncate(now)
        self._running.remove(sequence)
        # list.remove breaks the heap order.
        heapq.heapify(self._running)
        self.kv_used -= _kv(sequence.item)
        return True

    def generated(self, item_id: int, now: float) -> int:
        """Return the tokens of a running sequence so far; 0 if it is queued or unknown."""
        sequence = self._by_id.get(item_id)
        if sequence is None:
            return 0
        ended = min(self._stretch.steps, self._stretch.steps_at(now))
        return max(0, self._steps_done + ended - sequence.first_step)

    def clear(self) -> list[Item]:
        """Remove all items and return them."""
        lost = [*(sequence.item for sequence in sorted(self._running)), *self._queue]
        self._running.clear()
        self._by_id.clear()
        self._queue.clear()
        self.kv_used = 0
        self._stretch.stop()
        return lost

    def _has_capacity(self) -> bool:
        if not self._queue or len(self._running) >= self._spec.max_running:
            return False
        return self.kv_used + _kv(self._queue[0]) <= self._spec.kv_tokens

    def _join(self, item: Item) -> None:
        self._serial += 1
        last_step = self._steps_done + max(1, item.tokens)
        sequence = _Running(last_step, self._serial, self._steps_done, item)
        heapq.heappush(self._running, sequence)
        self._by_id[item.id] = sequence
        self.kv_used += _kv(item)


def _kv(item: Item) -> int:
    return item.context_tokens + item.tokens
