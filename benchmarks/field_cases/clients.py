"""Callers that come back: at a Retry-After, as SDKs do, in a closed loop; and idle streams."""

from __future__ import annotations

import math
import random

from benchmarks.field_cases.call import Call, Kind
from benchmarks.field_cases.world import World, make_call

RETRY_JITTER = 0.1
"""Share by which the middleware lengthens a Retry-After at random."""

SDK_RETRIES = 2
SDK_RETRY_AFTER_MAX_S = 60.0
SDK_BACKOFF_S, SDK_BACKOFF_MAX_S, SDK_JITTER = 0.5, 8.0, 0.25
"""Defaults of the packages openai and anthropic, from their sources."""


def sdk_wait_s(call: Call, rng: random.Random, longest_s: float = SDK_RETRY_AFTER_MAX_S) -> float:
    """Return the wait of an SDK before the next attempt.

    The middleware lengthens a Retry-After at random; the SDKs read its milliseconds, up to a minute.
    """
    told_s = call.retry_after_s
    if told_s is not None and math.isfinite(told_s):
        told_s *= 1.0 + RETRY_JITTER * rng.random()
        if 0.0 < told_s <= longest_s:
            return told_s
    wait_s = min(SDK_BACKOFF_S * 2.0**call.tries, SDK_BACKOFF_MAX_S)
    return wait_s * (1.0 - SDK_JITTER * rng.random())


class RetryingCaller:
    """Callers of a stream that come back after a rejection.

    Args:
        world: where they arrive.
        retries: attempts after the first one.
        seed: of their waits.
        longest_s: a longer Retry-After is not followed.
    """

    def __init__(
        self, world: World, retries: int, seed: str, longest_s: float = SDK_RETRY_AFTER_MAX_S
    ) -> None:
        self._world = world
        self._retries = retries
        self._longest_s = longest_s
        self._rng = random.Random(seed)

    def rejected(self, call: Call) -> None:
        """Send the next attempt later, or give up."""
        if call.tries < self._retries:
            at_s = self._world.scheduler.now + sdk_wait_s(call, self._rng, self._longest_s)
            self._world.scheduler.at(at_s, self._repeat, call)

    def answered(self, call: Call, *, ok: bool) -> None:
        """Do nothing: the caller has its answer."""

    def _repeat(self, call: Call) -> None:
        self._world.arrive(call.again(self._world.scheduler.now))


class Crowd:
    """Callers in a closed loop: each sends its next call some time after the end of the last one.

    Args:
        world: where they arrive.
        kind: of their calls.
        count: of callers.
        pause_s: between the end of a call and the next call.
        until_s: no new call begins after it.
        seed: of their waits.
    """

    def __init__(
        self, world: World, kind: Kind, count: int, pause_s: float, until_s: float, seed: str
    ) -> None:
        self._world, self._kind, self._pause_s, self._until_s = world, kind, pause_s, until_s
        self._rng = random.Random(seed)
        self.ended = 0
        self.failed = 0
        self.served_in_time = 0
        """Calls that were answered before no new call begins."""
        for number in range(count):
            world.scheduler.at(self._rng.random() * pause_s, self._begin, f"caller{number}")

    def rejected(self, call: Call) -> None:
        """Retry as an SDK does; at the end the call has failed."""
        now = self._world.scheduler.now
        if call.tries < SDK_RETRIES:
            self._world.scheduler.at(now + sdk_wait_s(call, self._rng), self._repeat, call)
            return
        self.failed += 1
        self._end(call)

    def answered(self, call: Call, *, ok: bool) -> None:
        """Begin the next call after the pause."""
        self.failed += not ok
        self.served_in_time += ok and self._world.scheduler.now < self._until_s
        self._end(call)

    def _begin(self, user: object) -> None:
        if self._world.scheduler.now >= self._until_s:
            return
        call = make_call(self._world, self._kind, self._rng)
        call.user, call.caller = str(user), self
        self._world.arrive(call)

    def _repeat(self, call: Call) -> None:
        self._world.arrive(call.again(self._world.scheduler.now))

    def _end(self, call: Call) -> None:
        self.ended += 1
        self._world.scheduler.at(self._world.scheduler.now + self._pause_s, self._begin, call.user)


class Holders:
    """Streams that begin within a second, send for a second, and are idle from then on.

    Args:
        world: where they arrive.
        kind: of the streams.
        count: of them.
        from_s: when they begin.
        seed: of their instants.
    """

    IDLE_AFTER_S = 1.0
    RETRY_S = 1.0

    def __init__(self, world: World, kind: Kind, count: int, from_s: float, seed: str) -> None:
        self._world, self._kind = world, kind
        self._rng = random.Random(seed)
        for _ in range(count):
            world.scheduler.at(from_s + self._rng.random(), self._begin)

    def rejected(self, call: Call) -> None:
        """Come back until there is a slot."""
        self._world.scheduler.at(self._world.scheduler.now + self.RETRY_S, self._repeat, call)

    def answered(self, call: Call, *, ok: bool) -> None:
        """Do nothing: an idle stream has no end."""

    def _begin(self, _event: object) -> None:
        call = make_call(self._world, self._kind, self._rng)
        call.caller, call.holds_s, call.group = self, self.IDLE_AFTER_S, "idle"
        self._world.arrive(call)

    def _repeat(self, call: Call) -> None:
        self._world.arrive(call.again(self._world.scheduler.now))
