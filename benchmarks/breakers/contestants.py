"""Breakers of others and ours, each used as its own documentation says, in its cheapest form.

One instance is one breaker of that kind; it opens at as many failures as it does by default.
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
"""After so many failures in a row each of them is open."""

NAME = "vector-db"

_ALIVE: list[Throttle] = []
"""A guarded function does not keep its throttle alive; an application does."""


class Broken(Exception):
    """What the dependency fails with."""


class Contestant(ABC):
    """One breaker.

    Args:
        open_s: seconds that it stays open.
    """

    name: ClassVar[str]
    package: ClassVar[str]
    refusal: type[Exception]
    """What a refused caller sees."""
    blocks: ClassVar[bool] = True
    """Whether it can guard a block of a coroutine."""
    one_by_one: ClassVar[bool] = False
    """Whether threads go through it one after the other."""

    def __init__(self, open_s: float) -> None:
        self.open_s = open_s

    @abstractmethod
    def coroutine(self, fn: Coroutine) -> Coroutine:
        """Put the breaker before a coroutine function."""

    @abstractmethod
    def function(self, fn: Function) -> Function:
        """Put the breaker before a plain function."""

    def block(self, fn: Coroutine) -> Coroutine:
        """Call a coroutine function in a block of the breaker."""
        raise NotImplementedError(f"{self.name} has no block for coroutines")

    def left(self, error: Any) -> object:
        """How long the breaker stays open, read from a refusal or from the breaker; None: neither tells."""
        _ = error
        return None

    async def trip(self, failing: Coroutine) -> None:
        """Fail until calls are refused."""
        for _ in range(FAILURES_AT_MOST):
            try:
                await failing()
            except self.refusal:
                return
            except Broken:
                pass
        raise RuntimeError(f"{self.name} does not open")

    def trip_now(self, failing: Function) -> None:
        """The same of a plain function."""
        for _ in range(FAILURES_AT_MOST):
            try:
                failing()
            except self.refusal:
                return
            except Broken:
                pass
        raise RuntimeError(f"{self.name} does not open")


class Ours(Contestant):
    """A guard of a throttle."""

    name = "autoglm_throttle"
    package = "autoglm-throttle"
    refusal = GuardRejected

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

    def left(self, error: Any) -> object:
        return error.retry_after_s


class CircuitBreaker(Contestant):
    """circuitbreaker: its ``with`` counts, but lets everybody in, so it has no block."""

    name = package = "circuitbreaker"
    blocks = False

    def __init__(self, open_s: float) -> None:
        import circuitbreaker

        super().__init__(open_s)
        self.refusal = circuitbreaker.CircuitBreakerError
        self.breaker: Any = circuitbreaker.CircuitBreaker(recovery_timeout=open_s, name=NAME)

    def coroutine(self, fn: Coroutine) -> Coroutine:
        guarded: Coroutine = self.breaker(fn)
        return guarded

    def function(self, fn: Function) -> Function:
        guarded: Function = self.breaker(fn)
        return guarded

    def left(self, error: Any) -> object:
        del error
        return self.breaker.open_remaining


class Purgatory(Contestant):
    """purgatory: one factory for coroutines, another for functions."""

    name = package = "purgatory"

    def __init__(self, open_s: float) -> None:
        import purgatory
        from purgatory.domain.model import OpenedState

        super().__init__(open_s)
        self.refusal = OpenedState
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


class AioBreaker(Contestant):
    """aiobreaker."""

    name = package = "aiobreaker"
    blocks = False

    def __init__(self, open_s: float) -> None:
        import aiobreaker

        super().__init__(open_s)
        self.refusal = aiobreaker.CircuitBreakerError
        self.breaker: Any = aiobreaker.CircuitBreaker(timeout_duration=timedelta(seconds=open_s))

    def coroutine(self, fn: Coroutine) -> Coroutine:
        guarded: Coroutine = self.breaker(fn)
        return guarded

    def function(self, fn: Function) -> Function:
        guarded: Function = self.breaker(fn)
        return guarded

    def left(self, error: Any) -> object:
        return error.time_remaining


class PyBreaker(Contestant):
    """pybreaker: asyncio goes through its block, since its decorator does not await anything."""

    name = package = "pybreaker"
    one_by_one = True

    def __init__(self, open_s: float, **options: Any) -> None:
        import pybreaker

        super().__init__(open_s)
        self.refusal = pybreaker.CircuitBreakerError
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


class Interlock(Contestant):
    """interlock-cb; slow calls count in it, and nothing turns that off."""

    name = "interlock"
    package = "interlock-cb"

    def __init__(self, open_s: float, **options: Any) -> None:
        import interlock

        super().__init__(open_s)
        self.refusal = interlock.CircuitOpenError
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

    def left(self, error: Any) -> object:
        return error.retry_after


CONTESTANTS: tuple[type[Contestant], ...] = (
    Ours,
    CircuitBreaker,
    Purgatory,
    AioBreaker,
    PyBreaker,
    Interlock,
)
RIVALS = CONTESTANTS[1:]
PACKAGES = tuple(rival.package for rival in RIVALS)
