"""Bounds of admission by the inference engine behind it: its capacity, its cache, its first tokens."""

from __future__ import annotations

import math

from autoglm_throttle.limiting.cache_cap import CacheCap
from autoglm_throttle.limiting.first_token import OBSERVATIONS_MIN, FirstTokenEstimator
from autoglm_throttle.settings.groups.control import ConcurrencySettings
from autoglm_throttle.types import EngineCapacity

# Work that may be queued before a request of mid or low, in latencies of an engine of known capacity.
ENGINE_QUEUE = 0.75

# Time between two starts under overload, as a share of that between two ends: requests that begin together
# make the others wait for their prompts, and those of equal length end together, too.
ENGINE_SPREAD = 0.5

# Share of the least objective of the first token that the engine may take for it on the average, or else
# multiples of the least that it has taken; and the most by which the limit falls in a period.
FIRST_TOKEN_SHARE, FIRST_TOKEN_LOADED, STEP_DOWN = 0.25, 2.0, 0.3

NO_ENGINE = EngineCapacity()


class EngineLimits:
    """What the limiter knows of the engine behind it; without a known one, nothing is bounded.

    Args:
        settings: the settings of the limit.
        capacity: the capacity of the engine.
        workers: processes in front of the same engine.
    """

    __slots__ = ("_capacity", "_least_s", "_workers", "cache", "first_token_slos", "first_tokens", "most")

    def __init__(self, settings: ConcurrencySettings, capacity: EngineCapacity, workers: int) -> None:
        self._capacity = capacity
        self._workers = workers
        # Requests in flight at most: the hard limit, and what the engine runs and does not reject.
        self.most: float = min(float(settings.inflight_max) or capacity.ceiling, capacity.most)
        self.cache: CacheCap = CacheCap()
        # Objectives of the first token, in seconds, for high, mid and low; None: there is none.
        self.first_token_slos: tuple[float | None, ...] = settings.first_token_slos
        self._least_s = math.inf  # Least mean time that the engine has taken for a first token
        # None without an objective of the first token.
        self.first_tokens: FirstTokenEstimator | None = None
        if any(self.first_token_slos):
            self.first_tokens = FirstTokenEstimator()

    @property
    def cached(self) -> float:
        """Requests in flight that the cache holds, >= 1; infinite: not known."""
        return max(1.0, self.cache.requests / self._workers)

    @property
    def first_limit(self) -> float | None:
        """The limit to begin with; None if the capacity is not known."""
        return None if self._capacity.slots is None else self._capacity.ceiling

    def start_interval_s(self, latency_s: float) -> float:
        """Return the seconds between the starts of two requests under overload; 0 without a capacity."""
        slots = self._capacity.slots
        return ENGINE_SPREAD * latency_s / slots if slots is not None else 0.0

    def queue_s(self, max_wait_s: float, latency_s: float) -> float:
        """Return the seconds of work that may be queued before a request of mid or low."""
        return max_wait_s if self._capacity.slots is None else min(max_wait_s, ENGINE_QUEUE * latency_s)

    def others(self, in_flight: int) -> int:
        """Count the requests in the engine that are not ``in_flight``, such as paused ones."""
        return max(0, self._capacity.unfinished() - in_flight)

    def first_token_wait_s(self, rank: int) -> float:
        """Return the longest wait after which the first token is in time; infinite without an objective."""
        first, objective_s = self.first_tokens, self.first_token_slos[rank]
        if first is None or objective_s is None:
            return math.inf
        return first.longest_wait_s(objective_s)

    def lowered(self, limit: float, present: float) -> float:
        """Return the next limit, lower than the ``present`` one if first tokens take the engine too long.

        They wait there for the prompts of others, or for blocks of the cache.
        """
        first = self.first_tokens
        if first is None or first.seen < OBSERVATIONS_MIN:
            return limit
        self._least_s = min(self._least_s, first.engine_s)
        objective_s = min(one for one in self.first_token_slos if one)
        allowed_s = max(FIRST_TOKEN_SHARE * objective_s, FIRST_TOKEN_LOADED * self._least_s)
        if first.engine_s <= allowed_s:
            return limit
        return min(limit, present * max(1.0 - STEP_DOWN, allowed_s / first.engine_s))
