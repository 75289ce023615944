"""User limits on Redis: one batch of calls for each event loop, all over the same keys."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, cast

from autoglm_throttle.limiting.shared import wire as wires
from autoglm_throttle.limiting.shared.batch_rules import BatchRules
from autoglm_throttle.limiting.shared.news import News
from autoglm_throttle.limiting.shared.per_loop import PerLoop
from autoglm_throttle.limiting.shared.redis_batch import RedisBatch
from autoglm_throttle.limiting.shared.redis_script import RedisScript
from autoglm_throttle.limiting.shared.store import VALUES, Answer, Charge, Health, Trouble
from autoglm_throttle.limiting.shared.wire import Ask, Settlement, WindowWire
from autoglm_throttle.model import UserLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autoglm_throttle.limiting.shared.batch_codec import Words
    from autoglm_throttle.redis_client import RedisClients

PROBES: Final = 16
"""Users that a probe of a cluster charges: with 16 partitions this reaches nearly every server."""

_PROBE = (UserLimit("probe-1s", 1000, 1),)


class RedisWindow:
    """A `UserLimitStore` on Redis.

    Args:
        clients: the clients of its URL.
        protocol: encodes charges and decodes replies.
        rules: sizes and times of the batches.
    """

    kind = "redis"
    approximate = False

    def __init__(self, clients: RedisClients, wire: WindowWire, rules: BatchRules | None = None) -> None:
        self.clients: RedisClients = clients
        self._wire = wire
        self._codec = _WindowCodec(wire)
        self._rules = rules or BatchRules()
        url = clients.url
        self._news = News(*((url.password, url.sentinel_password) if url else ()))
        self._batches = PerLoop(self._batch)

    def __repr__(self) -> str:
        health = self.health()
        return f"RedisWindow({self.clients!r}, {health.calls} calls, {health.waiting} waiting)"

    @property
    def last_error(self) -> str:
        """Text of the current error from the server or its client; empty without one."""
        return self._news.text

    def listen(self, report: Callable[[Trouble | None], None]) -> None:
        """Report each round trip and each firing of the deadline to ``report``."""
        self._news.listen(report)

    async def charge(self, charges: Sequence[Charge]) -> Answer | Trouble:
        """Spend all units of all charges, or none.

        A cancelled call refunds units that may have been spent.
        """
        batch = self._batches.here()
        if batch is None:
            self._news.tell(Trouble.LOOP)
            return Trouble.LOOP
        ask = self._wire.ask(charges)
        # Keys on several servers: one script call cannot cover them.
        if ask.tag < 0 and self.clients.cluster:
            return await self._one_by_one(batch, charges)
        future = batch.ask(ask)  # inlined `_await_reply`: one frame less to resume per decision
        try:
            return await future
        except asyncio.CancelledError:
            batch.unheard(ask, future)
            raise

    def give_back(self, charges: Sequence[Charge], answer: Answer) -> None:
        """Refund the units of an admission; returns at once, and a lost refund is conservative."""
        batch = self._batches.here() or next(iter(self._batches.all()), None)
        if batch is None:
            return
        for settlement in self._settlements(charges, answer):
            with contextlib.suppress(RuntimeError):  # that loop is closed
                if batch.running():
                    batch.tell(settlement)
                else:
                    batch.loop.call_soon_threadsafe(batch.tell, settlement)

    async def probe(self) -> Trouble | None:
        """Charge a unit of the probe's own limit: reading alone would miss a replica or a full memory."""
        batch = self._batches.here()
        if batch is None:
            return Trouble.LOOP
        trouble = await self._probed(batch)
        self._news.note(trouble)
        return trouble

    def drop(self) -> None:
        """Close all connections, from any thread, without waiting for it."""
        for batch in self._batches.all():
            with contextlib.suppress(RuntimeError):  # that loop is closed
                batch.loop.call_soon_threadsafe(batch.abort)
        self.clients.drop()

    def forget(self) -> None:
        """Reset in a forked process: loops and connections belong to the parent."""
        self._batches.forget()
        self.clients.forget()

    def health(self) -> Health:
        """Return the counters of all event loops together."""
        return self._batches.health()

    def _batch(self, loop: asyncio.AbstractEventLoop) -> _LoopBatch:
        return _LoopBatch(loop, self._codec, self._rules, self._news, self.clients)

    async def _probed(self, batch: _LoopBatch) -> Trouble | None:
        users = range(PROBES if self.clients.cluster else 1)
        asks = [self._wire.ask([Charge("probe", _PROBE, f"{user:016x}", 1)]) for user in users]
        connect_s = self.clients.options.connect_s + self._rules.deadline_s
        try:
            async with asyncio.timeout(connect_s):
                trouble = await batch.script.ready(self._rules.in_flight)
            if trouble is not None:
                return trouble
            async with asyncio.timeout(self._rules.deadline_s):
                replies = await batch.script([self._wire.encode([ask]) for ask in asks], lambda: True)
        except TimeoutError:
            return Trouble.TIMEOUT
        return next((trouble for trouble in map(self._heard, replies, asks) if trouble is not None), None)

    def _heard(self, reply: object, ask: Ask) -> Trouble | None:
        """Return the error in the reply to a probe, if any."""
        if isinstance(reply, Trouble):
            return reply
        try:
            answer = self._codec.decode(reply, [ask])[0]
        except ValueError:
            return Trouble.CONFUSED
        return answer if isinstance(answer, Trouble) else None

    def _settlements(self, charges: Sequence[Charge], answer: Answer) -> list[Settlement]:
        ask = self._wire.ask(charges)
        if ask.tag >= 0 or not self.clients.cluster:
            return [self._wire.back(ask, answer)]
        slices = _slices(charges, answer)
        return [self._wire.back(self._wire.ask([c]), part) for c, part in zip(charges, slices, strict=True)]

    async def _one_by_one(self, batch: _LoopBatch, charges: Sequence[Charge]) -> Answer | Trouble:
        """Charge keys on different servers: addresses first, with a refund if a later charge is rejected.

        The charges after a rejection are only read. All have one deadline together.
        """
        due = batch.due()
        order = sorted(range(len(charges)), key=lambda place: charges[place].kind != "address")
        spent: list[tuple[Ask, list[int]]] = []
        parts: dict[int, list[int]] = {}
        refused = False
        try:
            for place in order:
                charge = charges[place]
                ask = self._wire.ask([charge if not refused else _only_read(charge)])
                heard = await _asked(batch, ask, due)
                if isinstance(heard, Trouble):
                    refused = True
                    return heard
                parts[place] = answer = list(heard)
                if not refused and all(ok == 1 for ok in answer[::VALUES]):
                    spent.append((ask, answer))
                else:
                    refused = True
        except asyncio.CancelledError:
            refused = True
            raise
        finally:
            if refused:
                self._take_back(batch, spent)
        return [value for place in range(len(charges)) for value in parts[place]]

    def _take_back(self, batch: _LoopBatch, spent: list[tuple[Ask, list[int]]]) -> None:
        """Refund, and add the refunded units to the remaining ones."""
        for ask, answer in spent:
            undo = self._codec.undo(ask, answer)
            if undo is not None:
                batch.tell(undo)
                units = sum(charge.units for charge in ask.charges)
                for place in range(1, len(answer), VALUES):
                    answer[place] += units


class _LoopBatch(RedisBatch["Ask | Settlement", Answer]):
    """The batch of one loop, and the script that it sends."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        codec: _WindowCodec,
        rules: BatchRules,
        news: News,
        clients: RedisClients,
    ) -> None:
        self.script = RedisScript(clients.current, wires.script(), news, cluster=clients.cluster)
        super().__init__(
            loop,
            codec,
            self.script,
            rules,
            news.tell,
            read_s=clients.options.read_s,
            split=clients.cluster,
        )

    def running(self) -> bool:
        """Whether the caller is in this loop."""
        try:
            return asyncio.get_running_loop() is self.loop
        except RuntimeError:
            return False


class _WindowCodec:
    """`WindowProtocol` as a `BatchCodec`."""

    def __init__(self, wire: WindowWire) -> None:
        self._wire = wire
        self.encode: Callable[[Sequence[Ask | Settlement]], Words] = wire.encode

    def decode(self, reply: object, entries: Sequence[Ask | Settlement]) -> list[Answer | Trouble]:
        """Decode a reply; a foreign key under one request is an error of that request alone."""
        answers = cast("list[Answer | Trouble]", self._wire.decode(reply, entries))
        if -1 not in cast("list[int]", reply):
            return answers
        for place, answer in enumerate(answers):
            if not isinstance(answer, (Trouble, int)) and -1 in answer and -1 in answer[::VALUES]:
                answers[place] = Trouble.FOREIGN
        return answers

    def undo(self, entry: Ask | Settlement, answer: Answer) -> Settlement | None:
        """Return the refund of an admitted check; None without spent units."""
        if isinstance(entry, Settlement) or any(ok != 1 for ok in answer[::VALUES]):
            return None
        return self._wire.back(entry, answer) if any(charge.units for charge in entry.charges) else None


async def _asked(batch: _LoopBatch, ask: Ask, due: float | None = None) -> Answer | Trouble:
    """Await the answer to a check; a cancelled caller refunds its grant."""
    future = batch.ask(ask, due)
    try:
        return await future
    except asyncio.CancelledError:
        batch.unheard(ask, future)
        raise


def _only_read(charge: Charge) -> Charge:
    return Charge(charge.kind, charge.limits, charge.user, 0)


def _slices(charges: Sequence[Charge], answer: Answer) -> list[Answer]:
    """Split an answer into the parts of its charges."""
    slices, start = [], 0
    for charge in charges:
        end = start + VALUES * len(charge.limits)
        slices.append(answer[start:end])
        start = end
    return slices
