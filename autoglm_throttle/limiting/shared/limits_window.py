"""User limits in a storage of the ``limits`` package, for services without Redis.

Each decision makes its own round trips: there are no batches and no refunds. Several limits are all
read and then charged one after the other. So one may be spent when another, used up meanwhile by another
request, rejects. The storages count by each host's own clock: the hosts need NTP.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, NamedTuple

from autoglm_throttle.limiting.shared.limits_loop import LoopStorage
from autoglm_throttle.limiting.shared.limits_storage import (
    EDGE_US,
    TwoCounters,
    counting,
    open_storage,
    sample,
    trouble_of,
)
from autoglm_throttle.limiting.shared.news import News
from autoglm_throttle.limiting.shared.per_loop import PerLoop
from autoglm_throttle.limiting.shared.store import Answer, Charge, Health, Trouble
from autoglm_throttle.limiting.shared.wire import key_safe
from autoglm_throttle.model import UserLimit
from autoglm_throttle.settings.storage_uri import parse_storage_uri

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autoglm_throttle.limiting.shared.limits_storage import Counting, View

DEADLINE_S: Final = 0.05
"""Same value as for Redis: its 99th percentile at 5000 decisions a second is 8 ms."""

CONNECT_S: Final = 0.25
"""For a probe, which has to connect first."""

_PROBE = UserLimit("probe-1s", 1_000_000, 1)


class LimitsWindow:
    """A `UserLimitStore` on any asynchronous storage of `limits`.

    Args:
        uri: ``async+memory://``, which counts for each event loop apart, ``async+memcached://HOST:PORT``,
            ``async+mongodb://HOST:PORT``, or the scheme of a custom storage.
        deadline_s: seconds within which a decision is wanted.
        prefix: of every key.
        service: name of the service; part of every key.
        headers: whether an admission must return the remaining units, which costs a round trip more. Without
            it an admission under a single limit returns ``limit - units``: an upper bound.

    Raises:
        ValueError: the URI names no usable storage, or its client is missing; the text names the remedy.
    """

    def __init__(
        self,
        uri: str,
        deadline_s: float = DEADLINE_S,
        *,
        prefix: str = "athr",
        service: str = "default",
        headers: bool = True,
    ) -> None:
        self._uri = parse_storage_uri(uri)
        self.kind: str = self._uri.kind
        self._counting = counting(sample(self._uri))
        self.approximate: bool = self._counting is TwoCounters
        """Whether up to `WORST_WINDOW` times a limit may pass in one window."""
        self._deadline_s = deadline_s
        self._root = f"{prefix}:{service}:s1:"
        self._headers = headers
        self._news = News(_password(self._uri.text))
        self._loops = PerLoop(self._storage)

    def __repr__(self) -> str:
        health = self.health()
        return f"LimitsWindow({self.kind}, {health.asked} asked, {health.waiting} waiting)"

    @property
    def last_error(self) -> str:
        """Text of the current error of the storage or its client."""
        return self._news.text

    def listen(self, report: Callable[[Trouble | None], None]) -> None:
        """Report each answer and each failure; of those that failed together only the first."""
        self._news.listen(report)

    async def charge(self, charges: Sequence[Charge]) -> Answer | Trouble:
        """Spend all units of all charges, or none but for a race between several limits.

        The round trips of a cancelled caller end by themselves: aborting them would break the connection.
        """
        here = self._loops.here()
        if here is None:
            self._news.tell(Trouble.LOOP)
            return Trouble.LOOP
        asked_s = here.loop.time()
        here.asked += 1
        work = here.begin(self._spend(here, charges))
        try:
            ended = await here.in_time(work, asked_s + self._deadline_s)
        except asyncio.CancelledError:
            here.leave(work, asked_s + self._deadline_s)
            raise
        answer = work.result() if ended else Trouble.TIMEOUT
        if not ended:
            work.cancel()
            self._news.said(Trouble.TIMEOUT, f"no answer within {self._deadline_s:g} s")
        if here.is_news(answer, asked_s):
            self._news.tell(answer if isinstance(answer, Trouble) else None)
        return answer

    def give_back(self, charges: Sequence[Charge], answer: Answer) -> None:
        """Do nothing: these storages have no refunds; unused units count until their window has passed."""

    async def probe(self) -> Trouble | None:
        """Spend a unit of the probe's own limit over a new connection, which replaces the old one."""
        here = self._loops.here()
        if here is None:
            return Trouble.LOOP
        fresh = here.another()
        try:
            async with asyncio.timeout(CONNECT_S):
                await fresh.hit(f"{self._root}probe", _PROBE, 1)
        except Exception as error:  # noqa: BLE001 - a client of any library may raise anything
            here.end(fresh)
            trouble = self._failed(error)
            self._news.note(trouble)
            return trouble
        here.take(fresh)
        self._news.note(None)
        return None

    def drop(self) -> None:
        """Close all connections, from any thread, without waiting for it."""
        for here in self._loops.all():
            with contextlib.suppress(RuntimeError):  # that loop is closed
                here.loop.call_soon_threadsafe(here.drop)

    def forget(self) -> None:
        """Reset in a forked process: loops and connections belong to the parent."""
        self._loops.forget()

    def health(self) -> Health:
        """Return the counters of all event loops together."""
        return self._loops.health()

    def _storage(self, loop: asyncio.AbstractEventLoop) -> LoopStorage:
        return LoopStorage(loop, lambda: self._counting(open_storage(self._uri)))

    def _asked(self, charges: Sequence[Charge]) -> list[_Asked]:
        asked = []
        for charge in charges:
            root, user = f"{self._root}{key_safe(charge.kind)}:", key_safe(charge.user)
            for limit in charge.limits:
                self._uri.check_window(limit.window_s)
                asked.append(_Asked(f"{root}{limit.window_s}:{user}", limit, charge.units))
        return asked

    async def _spend(self, here: LoopStorage, charges: Sequence[Charge]) -> Answer | Trouble:
        try:
            return await _decide(here.counting(), self._asked(charges), self._headers)
        except Exception as error:  # noqa: BLE001 - a client of any library may raise anything
            return self._failed(error)

    def _failed(self, error: Exception) -> Trouble:
        trouble = trouble_of(error)
        self._news.said(trouble, error)
        return trouble


class _Asked(NamedTuple):
    """One limit of one caller."""

    key: str
    limit: UserLimit
    units: int

    def fits(self, view: View) -> bool:
        """Whether the limit allows the units."""
        return view.used + self.units <= self.limit.limit


async def _decide(counts: Counting, asked: list[_Asked], headers: bool) -> Answer:
    """Read all, then charge each: the first rejection leaves the later ones uncharged."""
    views: list[View] = []
    if headers or len(asked) > 1:
        views = [await counts.look(each.key, each.limit) for each in asked]
    refused = {n for n, (each, view) in enumerate(zip(asked, views, strict=False)) if not each.fits(view)}
    spent = 0
    while not refused and spent < len(asked):
        each = asked[spent]
        if each.units == 0 or (
            each.units <= each.limit.limit and await counts.hit(each.key, each.limit, each.units)
        ):
            spent += 1
        else:
            refused = {spent}
            views[spent : spent + 1] = [await counts.look(each.key, each.limit)]
    if not views:
        (only,) = asked
        return (1, only.limit.limit - only.units, 0, 0, 0)
    return [
        value
        for n, (each, view) in enumerate(zip(asked, views, strict=True))
        for value in _values(each, view, refused=n in refused, spent=n < spent)
    ]


def _values(asked: _Asked, view: View, *, refused: bool, spent: bool) -> tuple[int, int, int, int, int]:
    """Return the `VALUES` integers of one limit."""
    most = asked.limit.limit
    retry_us = 0
    if refused:
        retry_us = -1 if asked.units > most else max(EDGE_US, view.wait_us(view.used + asked.units - most))
    left = view.after(asked.units) if spent else view
    return (0 if refused else 1, max(0, most - left.used), retry_us, left.wait_us(1), 0)


def _password(uri: str) -> str:
    """Return the password as the URI has it: a custom storage may repeat that in its errors."""
    return uri.partition("://")[2].rpartition("@")[0].partition(":")[2]
