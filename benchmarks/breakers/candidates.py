"""Circuit breakers of several libraries, each used as documented, in its cheapest form.

One instance is one breaker of that kind, with the default number of failures.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, ClassVar

from autoglm_throttle import Settings, Throttle
from autoglm_throttle.types import GuardRejected

Coroutine = Callable[[], Awaitable[int]]
Function = Callable[[], int]

FAILURES_AT_MOST = 50
"""Number of consecutive failures after which each breaker is open."""

NAME = "vector-db"

_ALIVE: list[Throttle] = []
"""References that keep throttles alive, as an application does."""


class Broken(Exception):
    """Exception of a failing dependency."""


class Candidate(ABC):
    """One circuit breaker.

    Args:
        open_s: seconds that it stays open.
    """

    name: ClassVar[str]
    package: ClassVar[str]
    rejection: type[Exception]
    """Exception of a rejected call."""
    blocks: ClassVar[bool] = True
    """Whether it can guard a block inside a coroutine."""
    one_by_one: ClassVar[bool] = False
    """Whether threads pass it one after another."""

    def __init__(self, open_s: float) -> None:
        self.open_s = open_s

    @abstractmethod
    def coroutine(self, fn: Coroutine) -> Coroutine:
        """Guard a coroutine function."""

    @abstractmethod
    def function(self, fn: Function) -> Function:
        """Guard a plain function."""

    def block(self, fn: Coroutine) -> Coroutine:
        """Call a coroutine function in a block of the breaker."""
        raise NotImplementedError(f"{self.name} has no block for coroutines")

    def open_time_left(self, error: Any) -> object:
        """Return the remaining open time, from the rejection or the breaker; None if unknown."""
        _ = error
        return None

    async def trip(self, failing: Coroutine) -> None:
        """Fail until calls are rejected."""
        for _ in range(FAILURES_AT_MOST):
            try:
                await failing()
            except self.rejection:
                return
            except Broken:
                pass
        raise RuntimeError(f"{self.name} does not open")

    def trip_sync(self, failing: Function) -> None:
        """Fail until calls of a plain function are rejected."""
        for _ in range(FAILURES_AT_MOST):
            try:
                failing()
            except self.rejection:
                return
            except Broken:
                pass
        raise RuntimeError(f"{self.name} does not open")


class Ours(Candidate):
    """A guard of a throttle."""

    name = "autoglm_throttle"
    package = "autoglm-throttle"
    rejection = GuardRejected

    def __init__(self, open_s: float, **settings: Any) -> None:
        super().__init__(open_s)
        self.throttle = Throttle(Settings(gpu="none", breaker_open_s=open_s, **settings))
        _ALIVE.append(self.throttle)

    def coroutine(self, fn: Coroutine) -> Coroutine:
        return self.throttle.guard(NAME)(fn)

    def function(self, fn: Function) -> Function:
        return self.throttle.guard(NAME)(fn)

    def block(self, fn: Coroutine) -> Coroutine:
        throttle = self.throttle

        async def guarded() -> int:
            async with throttle.guard(NAME):
                return await fn()

        return guarded

    def open_time_left(self, error: Any) -> object:
        return error.retry_after_s


class CircuitBreaker(Candidate):
    """circuitbreaker: its ``with`` counts, but never rejects, so it has no block."""

    name = package = "circuitbreaker"
    blocks = False

    def __init__(self, open_s: float) -> None:
        import circuitbreaker

        super().__init__(open_s)
        self.rejection = circuitbreaker.CircuitBreakerError
        self.breaker: Any = circuitbreaker.CircuitBreaker(recovery_timeout=open_s, name=NAME)

    def coroutine(self, fn: Coroutine) -> Coroutine:
        guarded: Coroutine = self.breaker(fn)
        return guarded

    def function(self, fn: Function) -> Function:
        guarded: Function = self.breaker(fn)
        return guarded

    def open_time_left(self, error: Any) -> object:
        del error
        return self.breaker.open_remaining


class Purgatory(Candidate):
    """purgatory, with one factory for coroutines and another for functions."""

    name = package = "purgatory"

    def __init__(self, open_s: float) -> None:
        import purgatory
        from purgatory.domain.model import OpenedState

        super().__init__(open_s)
        self.rejection = OpenedState
        self.waiting: Any = purgatory.AsyncCircuitBreakerFactory(default_ttl=open_s)
        self.plain: Any = purgatory.SyncCircuitBreakerFactory(default_ttl=open_s)

    def coroutine(self, fn: Coroutine) -> Coroutine:
        guarded: Coroutine = self.waiting(NAME)(fn)
        return guarded

    def function(self, fn: Function) -> Function:
        guarded: Function = self.plain(NAME)(fn)
        return guarded

    def block(self, fn: Coroutine) -> Coroutine:
        factory = self.waiting

        async def guarded() -> int:
            async with await factory.get_breaker(NAME):
                return await fn()

        return guarded


class AioBreaker(Candidate):
    """aiobreaker."""

    name = package = "aiobreaker"
    blocks = False

    def __init__(self, open_s: float) -> None:
        import aiobreaker

        super().__init__(open_s)
        self.rejection = aiobreaker.CircuitBreakerError
        self.breaker: Any = aiobreaker.CircuitBreaker(timeout_duration=timedelta(seconds=open_s))

    def coroutine(self, fn: Coroutine) -> Coroutine:
        guarded: Coroutine = self.breaker(fn)
        return guarded

    def function(self, fn: Function) -> Function:
        guarded: Function = self.breaker(fn)
        return guarded

    def open_time_left(self, error: Any) -> object:
        return error.time_remaining


class PyBreaker(Candidate):
    """pybreaker: asyncio goes through its block, since its decorator does not await anything."""

    name = package = "pybreaker"
    one_by_one = True

    def __init__(self, open_s: float, **options: Any) -> None:
        import pybreaker

        super().__init__(open_s)
        self.rejection = pybreaker.CircuitBreakerError
        self.breaker: Any = pybreaker.CircuitBreaker(reset_timeout=open_s, **options)

    def coroutine(self, fn: Coroutine) -> Coroutine:
        return self.block(fn)

    def function(self, fn: Function) -> Function:
        guarded: Function = self.breaker(fn)
        return guarded

    def block(self, fn: Coroutine) -> Coroutine:
        breaker = self.breaker

        async def guarded() -> int:
            with breaker.calling():
                return await fn()

        return guarded


class Interlock(Candidate):
    """interlock-cb; its counting of slow calls cannot be turned off."""

    name = "interlock"
    package = "interlock-cb"

    def __init__(self, open_s: float, **options: Any) -> None:
        import interlock

        super().__init__(open_s)
        self.rejection = interlock.CircuitOpenError
        config = interlock.Config(wait_duration_in_open=open_s)
        self.breaker: Any = interlock.CircuitBreaker(name=NAME, config=config, **options)

    def coroutine(self, fn: Coroutine) -> Coroutine:
        guarded: Coroutine = self.breaker(fn)
        return guarded

    def function(self, fn: Function) -> Function:
        guarded: Function = self.breaker(fn)
        return guarded

    def block(self, fn: Coroutine) -> Coroutine:
        breaker = self.breaker

        async def guarded() -> int:
            async with breaker:
                return await fn()

        return guarded

    def open_time_left(self, error: Any) -> object:
        return error.retry_after


CANDIDATES: tuple[type[Candidate], ...] = (
    Ours,
    CircuitBreaker,
    Purgatory,
    AioBreaker,
    PyBreaker,
    Interlock,
)
PEERS = CANDIDATES[1:]
PACKAGES = tuple(peer.package for peer in PEERS)
