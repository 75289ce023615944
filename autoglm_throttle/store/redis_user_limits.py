"""User limits on Redis: one batch of calls for each event loop, all over the same keys."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from autoglm_throttle.store import window_protocol as wires
from autoglm_throttle.store.batch import RedisBatch
from autoglm_throttle.store.batch_codec import BatchTransport
from autoglm_throttle.store.client import RedisClients
from autoglm_throttle.store.error_tracker import StoreErrorTracker
from autoglm_throttle.store.script import LuaScript
from autoglm_throttle.store.user_limit_store import VALUES, Answer, StoreCharge, StoreErrorKind, StoreStats
from autoglm_throttle.store.window_protocol import CheckRequest, RefundRequest, WindowEntry, WindowProtocol
from autoglm_throttle.types import UserLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autoglm_throttle.settings.groups.store import StoreSettings
    from autoglm_throttle.store.batch_codec import ScriptArguments
    from autoglm_throttle.store.client import AsyncClient

PROBES: Final = 16
"""Users that a probe of a cluster charges: with 16 partitions this reaches nearly every server."""

_PROBE = (UserLimit("probe-1s", 1000, 1),)


class RedisUserLimitStore:
    """A `UserLimitStore` on Redis.

    Args:
        settings: the URL, the names in keys, sizes and times.
        connect: creates the client of each event loop, instead of the URL.

    Raises:
        ValueError: there is neither a URL nor ``connect``.
        ImportError: redis is not installed; the text says how to install it.
    """

    kind = "redis"

    def __init__(self, settings: StoreSettings, connect: Callable[[], AsyncClient] | None = None) -> None:
        self.settings: StoreSettings = settings
        self.clients: RedisClients = RedisClients(settings, connect)
        self.protocol: WindowProtocol = WindowProtocol(
            settings.redis_prefix, settings.service, settings.redis_partitions
        )
        self._codec = _WindowCodec(self.protocol)
        url = self.clients.url
        secrets = (url.login.password, url.sentinel_login.password) if url else ()
        self.errors: StoreErrorTracker = StoreErrorTracker(*secrets)
        self.batches: LoopBatches = LoopBatches(self._batch)

    def __repr__(self) -> str:
        stats = self.stats()
        return f"RedisUserLimitStore({self.clients!r}, {stats.calls} calls, {stats.waiting} waiting)"

    @property
    def last_error(self) -> str:
        """Text of the current error from the server or its client; empty without one."""
        return self.errors.text

    def listen(self, report: Callable[[StoreErrorKind | None], None]) -> None:
        """Report each round trip and each firing of the deadline to ``report``."""
        self.errors.listen(report)

    async def charge(self, charges: Sequence[StoreCharge]) -> Answer | StoreErrorKind:
        """Spend all units of all charges, or none.

        A cancelled call refunds units that may have been spent.
        """
        batch = self.batches.current()
        if batch is None:
            self.errors.notify(StoreErrorKind.LOOP)
            return StoreErrorKind.LOOP
        request = self.protocol.build_check(charges)
        if request.tag < 0 and self.clients.cluster:  # keys on several servers: one script call is not enough
            return await self._charge_separately(batch, charges)
        future = batch.request(request)  # inlined `_await_reply`: one frame less to resume per decision
        try:
            return await future
        except asyncio.CancelledError:
            batch.caller_cancelled(request, future)
            raise

    def give_back(self, charges: Sequence[StoreCharge], answer: Answer) -> None:
        """Refund the units of an admission; returns at once, and a lost refund is conservative."""
        batch = self.batches.current() or next(iter(self.batches.all()), None)
        if batch is None:
            return
        for refund in self._refund_requests(charges, answer):
            with contextlib.suppress(RuntimeError):  # that loop is closed
                if batch.is_running():
                    batch.send_oneway(refund)
                else:
                    batch.loop.call_soon_threadsafe(batch.send_oneway, refund)

    async def probe(self) -> StoreErrorKind | None:
        """Charge a unit of the probe's own limit: reading alone would miss a replica or a full memory."""
        batch = self.batches.current()
        if batch is None:
            return StoreErrorKind.LOOP
        kind = await self._run_probe(batch)
        self.errors.record_result(kind)
        return kind

    def disconnect(self) -> None:
        """Close all connections, from any thread, without waiting for it."""
        for batch in self.batches.all():
            with contextlib.suppress(RuntimeError):  # that loop is closed
                batch.loop.call_soon_threadsafe(batch.abort)
        self.clients.close_current()

    def stats(self) -> StoreStats:
        """Return the counters of all event loops together."""
        return self.batches.stats()

    def _batch(self, loop: asyncio.AbstractEventLoop) -> LoopBatch:
        return LoopBatch(loop, self._codec, self.settings, self.errors, self.clients)

    async def _run_probe(self, batch: LoopBatch) -> StoreErrorKind | None:
        users = range(PROBES if self.clients.cluster else 1)
        requests = [
            self.protocol.build_check([StoreCharge("probe", _PROBE, f"{user:016x}", 1)]) for user in users
        ]
        settings = self.settings
        try:
            async with asyncio.timeout(settings.redis_connect_s + settings.redis_deadline_s):
                kind = await batch.script.ready(settings.redis_in_flight)
            if kind is not None:
                return kind
            async with asyncio.timeout(settings.redis_deadline_s):
                replies = await batch.script(
                    [self.protocol.encode([request]) for request in requests], lambda: True
                )
        except TimeoutError:
            return StoreErrorKind.TIMEOUT
        return next((kind for kind in map(self._probe_error, replies, requests) if kind is not None), None)

    def _probe_error(self, reply: object, request: CheckRequest) -> StoreErrorKind | None:
        """Return the error in the reply to a probe, if any."""
        if isinstance(reply, StoreErrorKind):
            return reply
        try:
            answer = self._codec.decode(reply, [request])[0]
        except ValueError:
            return StoreErrorKind.CONFUSED
        return answer if isinstance(answer, StoreErrorKind) else None

    def _refund_requests(self, charges: Sequence[StoreCharge], answer: Answer) -> list[RefundRequest]:
        request = self.protocol.build_check(charges)
        if request.tag >= 0 or not self.clients.cluster:
            return [self.protocol.build_refund(request, answer)]
        slices = _slices(charges, answer)
        return [
            self.protocol.build_refund(self.protocol.build_check([c]), part)
            for c, part in zip(charges, slices, strict=True)
        ]

    async def _charge_separately(
        self, batch: LoopBatch, charges: Sequence[StoreCharge]
    ) -> Answer | StoreErrorKind:
        """Charge keys on different servers: addresses first, with a refund if a later charge is rejected.

        The charges after a rejection are only read. All have one deadline together.
        """
        due = batch.due()
        order = sorted(range(len(charges)), key=lambda place: charges[place].kind != "address")
        spent: list[tuple[CheckRequest, list[int]]] = []
        parts: dict[int, list[int]] = {}
        rejected = False
        try:
            for place in order:
                charge = charges[place]
                request = self.protocol.build_check([charge if not rejected else _only_read(charge)])
                reply = await _await_reply(batch, request, due)
                if isinstance(reply, StoreErrorKind):
                    rejected = True
                    return reply
                parts[place] = answer = list(reply)
                if not rejected and all(ok == 1 for ok in answer[::VALUES]):
                    spent.append((request, answer))
                else:
                    rejected = True
        except asyncio.CancelledError:
            rejected = True
            raise
        finally:
            if rejected:
                self._refund(batch, spent)
        return [value for place in range(len(charges)) for value in parts[place]]

    def _refund(self, batch: LoopBatch, spent: list[tuple[CheckRequest, list[int]]]) -> None:
        """Refund, and add the refunded units to the remaining ones."""
        for request, answer in spent:
            undo = self._codec.undo(request, answer)
            if undo is not None:
                batch.send_oneway(undo)
                units = sum(charge.units for charge in request.charges)
                for place in range(1, len(answer), VALUES):
                    answer[place] += units


class LoopBatch(RedisBatch[WindowEntry, Answer]):
    """The batch of one loop, and the script that it sends."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        codec: _WindowCodec,
        settings: StoreSettings,
        errors: StoreErrorTracker,
        clients: RedisClients,
    ) -> None:
        self.script: LuaScript = LuaScript(clients.current, wires.script(), errors, cluster=clients.cluster)
        transport: BatchTransport[WindowEntry, Answer] = BatchTransport(codec, self.script, clients.cluster)
        super().__init__(loop, transport, settings, errors.notify)

    def is_running(self) -> bool:
        """Whether the caller is in this loop."""
        try:
            return asyncio.get_running_loop() is self.loop
        except RuntimeError:
            return False


class LoopBatches:
    """The batches of all event loops, each made at its first use: a connection belongs to its loop.

    Args:
        make: makes the batch of the running loop.
    """

    def __init__(self, make: Callable[[asyncio.AbstractEventLoop], LoopBatch]) -> None:
        self._make = make
        self._batches: dict[int, LoopBatch] = {}
        self._closed_stats = StoreStats()

    def current(self) -> LoopBatch | None:
        """Return the batch of the running loop; None if it is no asyncio loop, or none runs."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return None
        return self._batches.get(id(loop)) or self._new(loop)

    def all(self) -> list[LoopBatch]:
        """Return the batches of all loops; from any thread."""
        return list(self._batches.values())

    def stats(self) -> StoreStats:
        """Return the counters of all loops together, closed ones included."""
        return sum((batch.stats() for batch in self.all()), self._closed_stats)

    def _new(self, loop: asyncio.AbstractEventLoop) -> LoopBatch:
        # A copy: another thread may add its loop's batch meanwhile.
        for key, other in list(self._batches.items()):
            if other.loop.is_closed() and self._batches.pop(key, None) is not None:
                self._closed_stats += replace(other.stats(), waiting=0)
        batch = self._batches[id(loop)] = self._make(loop)
        return batch


class _WindowCodec:
    """`WindowProtocol` as a `BatchCodec`."""

    def __init__(self, protocol: WindowProtocol) -> None:
        self._protocol = protocol
        self.encode: Callable[[Sequence[CheckRequest | RefundRequest]], ScriptArguments] = protocol.encode

    def decode(
        self, reply: object, entries: Sequence[CheckRequest | RefundRequest]
    ) -> list[Answer | StoreErrorKind]:
        """Decode a reply; a foreign key under one request is an error of that request alone."""
        answers = cast("list[Answer | StoreErrorKind]", self._protocol.decode(reply, entries))
        if -1 not in cast("list[int]", reply):
            return answers
        for place, answer in enumerate(answers):
            if not isinstance(answer, (StoreErrorKind, int)) and -1 in answer and -1 in answer[::VALUES]:
                answers[place] = StoreErrorKind.FOREIGN
        return answers

    def undo(self, entry: CheckRequest | RefundRequest, answer: Answer) -> RefundRequest | None:
        """Return the refund of an admitted check; None without spent units."""
        if isinstance(entry, RefundRequest) or any(ok != 1 for ok in answer[::VALUES]):
            return None
        return (
            self._protocol.build_refund(entry, answer)
            if any(charge.units for charge in entry.charges)
            else None
        )


async def _await_reply(
    batch: LoopBatch, request: CheckRequest, due: float | None = None
) -> Answer | StoreErrorKind:
    """Await the answer to a check; a cancelled caller refunds its grant."""
    future = batch.request(request, due)
    try:
        return await future
    except asyncio.CancelledError:
        batch.caller_cancelled(request, future)
        raise


def _only_read(charge: StoreCharge) -> StoreCharge:
    return StoreCharge(charge.kind, charge.limits, charge.user, 0)


def _slices(charges: Sequence[StoreCharge], answer: Answer) -> list[Answer]:
    """Split an answer into the parts of its charges."""
    slices, start = [], 0
    for charge in charges:
        end = start + VALUES * len(charge.limits)
        slices.append(answer[start:end])
        start = end
    return slices
