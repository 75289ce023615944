"""User limits on Redis: one batch of calls for each event loop, all over the same keys."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import _get_running_loop as running_loop
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Final, TypeVar

from autoglm_throttle.store.batch import RedisBatch
from autoglm_throttle.store.client import RedisClients
from autoglm_throttle.store.protocol import (
    VALUES,
    AnyCharge,
    StoreCharge,
    StoreErrorKind,
    StoreStats,
    WindowProtocol,
    script,
)
from autoglm_throttle.store.running_time import TICKS
from autoglm_throttle.store.script import LuaScript, error_text
from autoglm_throttle.types import UserLimit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from autoglm_throttle.settings.groups.store import StoreSettings
    from autoglm_throttle.store.client import AsyncClient
    from autoglm_throttle.store.protocol import Answer, WindowEntry

# Users that a probe of a cluster charges: with 16 partitions this reaches nearly every server.
PROBES: Final = 16

_PROBE = (UserLimit("probe-1s", 1000, 1),)

T = TypeVar("T")


class RedisUserLimitStore:
    """A shared store of user limits. Its calls never raise but for a caller's cancellation."""

    kind = "redis"

    def __init__(self, settings: StoreSettings, connect: Callable[[], AsyncClient] | None = None) -> None:
        self.settings: StoreSettings = settings
        self.clients: RedisClients = RedisClients(settings, connect)
        self.protocol: WindowProtocol = WindowProtocol(
            settings.redis_prefix, settings.service, settings.redis_partitions
        )
        url = self.clients.url
        passwords = (url.login[1], url.sentinel_login[1]) if url else ()
        self._secrets = [password for password in passwords if password]
        self._listener: Callable[[StoreErrorKind | None], None] | None = None
        # Error of the newest call or probe, and the last text with its error. A text is shown only with its
        # own error, and only until the next answer: an outage by timeouts is not explained by an older error.
        self._current_error: StoreErrorKind | None = None
        self._last_text: tuple[StoreErrorKind | None, str] = (None, "")
        # The batch of each event loop, made at its first use: a connection belongs to its loop.
        self.batches: dict[int, RedisBatch] = {}
        self._closed_stats = StoreStats()

    @property
    def last_error(self) -> str:
        """Text of the current error from the server or its client; empty without one."""
        kind, text = self._last_text
        return text if kind is not None and kind is self._current_error else ""

    def listen(self, report: Callable[[StoreErrorKind | None], None]) -> None:
        """Call ``report`` for each round trip and each firing of the deadline; None: it answered."""
        # Not for each caller: one slow server would count a failure for every waiting request.
        self._listener = report

    def notify(self, kind: StoreErrorKind | None, *, is_probe: bool = False) -> None:
        """Record a call's result, and report it unless it is a probe's; None: it was answered."""
        self._current_error = kind
        if kind is None:
            self._last_text = (None, "")
        if self._listener is not None and not is_probe:
            self._listener(kind)

    def record_error(self, kind: StoreErrorKind, error: BaseException) -> str:
        """Store the text of an error, until it is known to be the current one; secrets are masked."""
        text = error_text(error)
        for secret in self._secrets:
            text = text.replace(secret, "***")
        self._last_text = (kind, text)
        return text

    def charge(self, request: WindowEntry) -> Awaitable[Answer | StoreErrorKind]:
        """Spend all units of a check, or none; ends before the deadline, with or without an answer.

        A caller whose wait for it is cancelled calls `abandon`.
        """
        batch = self.batches.get(id(running_loop())) or self.batch()
        if batch is None:
            self.notify(StoreErrorKind.LOOP)
            return _immediate(StoreErrorKind.LOOP)
        if request.tag < 0 and self.clients.cluster:  # keys on several servers: one script call is not enough
            return self._charge_separately(batch, request.charges)
        return batch.request(request)

    def abandon(self, request: WindowEntry, reply: Awaitable[Answer | StoreErrorKind]) -> None:
        """Refund the units of a reply that its cancelled caller has not read."""
        batch = self.batch()
        if batch is not None and isinstance(reply, asyncio.Future):
            batch.caller_cancelled(request, reply)

    def give_back(self, request: WindowEntry, answer: Answer) -> None:
        """Refund the units of an admission; returns at once, and a lost refund is conservative."""
        running = self.batch()
        batch = running or next(iter(list(self.batches.values())), None)
        if batch is None:
            return
        parts = [(request, answer)]
        if request.tag < 0 and self.clients.cluster:
            checks = [self.protocol.build_check([charge]) for charge in request.charges]
            ends = accumulate((check.values for check in checks), initial=0)
            slices = [answer[start:end] for start, end in pairwise(ends)]
            parts = list(zip(checks, slices, strict=True))
        for part_request, part in parts:
            refund = self.protocol.build_refund(part_request, part)
            with contextlib.suppress(RuntimeError):  # that loop is closed
                if batch is running:
                    batch.send_oneway(refund)
                else:
                    batch.loop.call_soon_threadsafe(batch.send_oneway, refund)

    async def probe(self) -> StoreErrorKind | None:
        """Check on new connections if the store decides: reading would miss a replica or a full memory."""
        batch = self.batch()
        if batch is None:
            return StoreErrorKind.LOOP
        kind = await self._run_probe(batch)
        self.notify(kind, is_probe=True)
        return kind

    def disconnect(self) -> None:
        """Close all connections, so that no call stays blocked; from any thread, without waiting for it."""
        for batch in list(self.batches.values()):
            with contextlib.suppress(RuntimeError):  # that loop is closed
                batch.loop.call_soon_threadsafe(batch.abort)
        self.clients.close_current()

    def stats(self) -> StoreStats:
        """Return the counters of all event loops together, closed ones included."""
        return sum((batch.stats() for batch in list(self.batches.values())), self._closed_stats)

    def batch(self) -> RedisBatch | None:
        """Return the batch of the running loop; None if it is no asyncio loop, or none runs."""
        loop = running_loop()
        return None if loop is None else self.batches.get(id(loop)) or self._new_batch(loop)

    def _new_batch(self, loop: asyncio.AbstractEventLoop) -> RedisBatch:
        # A copy: another thread may add its loop's batch meanwhile.
        for key, other in list(self.batches.items()):
            if other.loop.is_closed() and self.batches.pop(key, None) is not None:
                stats = other.stats()
                stats.waiting = 0
                self._closed_stats += stats
        lua = LuaScript(self.clients.current, script(), self.record_error, cluster=self.clients.cluster)
        batch = RedisBatch(loop, self.protocol, lua, self.settings, self.notify)
        self.batches[id(loop)] = batch
        return batch

    async def _run_probe(self, batch: RedisBatch) -> StoreErrorKind | None:
        requests = [
            self.protocol.build_check([StoreCharge("probe", _PROBE, f"{user:016x}", 1)])
            for user in range(PROBES if self.clients.cluster else 1)
        ]
        settings = self.settings
        try:
            limit_s = settings.redis_connect_s + settings.redis_deadline_s
            kind = await _within(limit_s, batch.script.ready(settings.redis_in_flight))
            if kind is not None:
                return kind
            calls = [self.protocol.encode([request]) for request in requests]
            replies = await _within(settings.redis_deadline_s, batch.script(calls, lambda: True))
            results = [
                reply if isinstance(reply, StoreErrorKind) else self.protocol.decode(reply, [request])[0]
                for reply, request in zip(replies, requests, strict=True)
            ]
        except TimeoutError:
            return StoreErrorKind.TIMEOUT
        except ValueError:
            return StoreErrorKind.CONFUSED
        return next((result for result in results if isinstance(result, StoreErrorKind)), None)

    async def _charge_separately(
        self, batch: RedisBatch, charges: Sequence[AnyCharge]
    ) -> Answer | StoreErrorKind:
        """Charge keys on different servers: addresses first, with a refund if a later charge is rejected.

        The charges after a rejection are only read. All have one deadline together.
        """
        due = batch.running_time() + batch.deadline_s
        spent: list[tuple[WindowEntry, list[int]]] = []
        parts: dict[str, list[int]] = {}
        rejected = False
        for caller in reversed(dict.fromkeys(charge.user for charge in charges)):  # a user, then its address
            request = self.protocol.build_check(
                [
                    StoreCharge(charge.kind, charge.limits, caller, 0 if rejected else charge.units)
                    for charge in charges
                    if charge.user == caller
                ]
            )
            future = batch.request(request, due)
            try:
                reply = await future
            except asyncio.CancelledError:
                batch.caller_cancelled(request, future)
                self._refund(batch, spent)
                raise
            if isinstance(reply, StoreErrorKind):
                self._refund(batch, spent)
                return reply
            parts[caller] = answer = list(reply)
            if not rejected and not any(answer[::VALUES]):
                spent.append((request, answer))
            else:
                rejected = True
                self._refund(batch, spent)
        values = {caller: iter(answer) for caller, answer in parts.items()}
        return [next(values[each.user]) for each in charges for _ in range(VALUES * len(each.limits))]

    def _refund(self, batch: RedisBatch, spent: list[tuple[WindowEntry, list[int]]]) -> None:
        """Refund, and add the refunded units to the remaining ones."""
        while spent:
            request, answer = spent.pop()
            undo = self.protocol.undo(request, answer)
            if undo is not None:
                batch.send_oneway(undo)
                for place, units in enumerate(undo.refunds):
                    answer[VALUES * place + 1] += units


async def _immediate(result: T) -> T:
    return result


async def _within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of ``work``; a TimeoutError after so many seconds in which the loop was not late."""
    task = asyncio.ensure_future(work)
    try:
        for _ in range(TICKS):
            if (await asyncio.wait({task}, timeout=seconds / TICKS))[0]:
                return task.result()
        raise TimeoutError
    finally:
        task.cancel()
