"""User limits in a storage of the ``limits`` package, for services without Redis.

Each decision makes its own round trips: there are no batches and no refunds. Several limits are all
read and then charged one after the other. So one may be spent when another, used up meanwhile by another
request, rejects. The storages count by each host's own clock: the hosts need NTP.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, NamedTuple

from autoglm_throttle.settings.storage_uri import StorageUri, parse_storage_uri
from autoglm_throttle.store.error_tracker import StoreErrorTracker
from autoglm_throttle.store.limits_loop import LoopStorage
from autoglm_throttle.store.limits_storage import (
    EDGE_US,
    TwoCounters,
    counting,
    error_kind,
    open_storage,
    sample,
)
from autoglm_throttle.store.per_event_loop import PerEventLoop
from autoglm_throttle.store.user_limit_store import Answer, StoreCharge, StoreErrorKind, StoreStats
from autoglm_throttle.store.window_protocol import key_safe
from autoglm_throttle.types import UserLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autoglm_throttle.store.limits_storage import Counting, StorageCountView

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
        self.uri: StorageUri = parse_storage_uri(uri)
        self.kind: str = self.uri.kind
        self._counting = counting(sample(self.uri))
        self.approximate: bool = self._counting is TwoCounters
        """Whether up to `WORST_WINDOW` times a limit may be admitted in one window."""
        self.deadline_s: float = deadline_s
        self.root: str = f"{prefix}:{service}:s1:"
        self._headers = headers
        self.errors: StoreErrorTracker = StoreErrorTracker(_password(self.uri.text))
        self.loops: PerEventLoop[LoopStorage] = PerEventLoop(self._storage)

    def __repr__(self) -> str:
        stats = self.stats()
        return f"LimitsWindow({self.kind}, {stats.sent} sent, {stats.waiting} waiting)"

    @property
    def last_error(self) -> str:
        """Text of the current error of the storage or its client."""
        return self.errors.text

    def listen(self, report: Callable[[StoreErrorKind | None], None]) -> None:
        """Report each answer and each failure; of those that failed together only the first."""
        self.errors.listen(report)

    async def charge(self, charges: Sequence[StoreCharge]) -> Answer | StoreErrorKind:
        """Spend all units of all charges, or none but for a race between several limits.

        The round trips of a cancelled caller end by themselves: aborting them would break the connection.
        """
        part = self.loops.current()
        if part is None:
            self.errors.notify(StoreErrorKind.LOOP)
            return StoreErrorKind.LOOP
        started_s = part.loop.time()
        part.sent += 1
        work = part.begin(self._spend(part, charges))
        try:
            ended = await part.in_time(work, started_s + self.deadline_s)
        except asyncio.CancelledError:
            part.detach(work, started_s + self.deadline_s)
            raise
        answer = work.result() if ended else StoreErrorKind.TIMEOUT
        if not ended:
            work.cancel()
            self.errors.record(StoreErrorKind.TIMEOUT, f"no answer within {self.deadline_s:g} s")
        if part.is_new_result(answer, started_s):
            self.errors.notify(answer if isinstance(answer, StoreErrorKind) else None)
        return answer

    def give_back(self, charges: Sequence[StoreCharge], answer: Answer) -> None:
        """Do nothing: these storages have no refunds; unused units count until their window has passed."""

    async def probe(self) -> StoreErrorKind | None:
        """Spend a unit of the probe's own limit over a new connection, which replaces the old one."""
        part = self.loops.current()
        if part is None:
            return StoreErrorKind.LOOP
        fresh = part.connect_new()
        try:
            async with asyncio.timeout(CONNECT_S):
                await fresh.hit(f"{self.root}probe", _PROBE, 1)
        except Exception as error:  # noqa: BLE001 - a client of any library may raise anything
            part.close(fresh)
            kind = self._record_error(error)
            self.errors.record_result(kind)
            return kind
        part.use(fresh)
        self.errors.record_result(None)
        return None

    def disconnect(self) -> None:
        """Close all connections, from any thread, without waiting for it."""
        for part in self.loops.all():
            with contextlib.suppress(RuntimeError):  # that loop is closed
                part.loop.call_soon_threadsafe(part.disconnect)

    def stats(self) -> StoreStats:
        """Return the counters of all event loops together."""
        return self.loops.stats()

    def _storage(self, loop: asyncio.AbstractEventLoop) -> LoopStorage:
        return LoopStorage(loop, lambda: self._counting(open_storage(self.uri)))

    def limit_checks(self, charges: Sequence[StoreCharge]) -> list[LimitCheck]:
        """Return a check of each limit of each charge."""
        checks = []
        for charge in charges:
            root, user = f"{self.root}{key_safe(charge.kind)}:", key_safe(charge.user)
            for limit in charge.limits:
                self.uri.check_window(limit.window_s)
                checks.append(LimitCheck(f"{root}{limit.window_s}:{user}", limit, charge.units))
        return checks

    async def _spend(self, part: LoopStorage, charges: Sequence[StoreCharge]) -> Answer | StoreErrorKind:
        try:
            return await _decide(part.counting(), self.limit_checks(charges), self._headers)
        except Exception as error:  # noqa: BLE001 - a client of any library may raise anything
            return self._record_error(error)

    def _record_error(self, error: Exception) -> StoreErrorKind:
        kind = error_kind(error)
        self.errors.record(kind, error)
        return kind


class LimitCheck(NamedTuple):
    """One limit of one caller."""

    key: str
    limit: UserLimit
    units: int

    def fits(self, view: StorageCountView) -> bool:
        """Whether the limit allows the units."""
        return view.used + self.units <= self.limit.limit


async def _decide(counts: Counting, checks: list[LimitCheck], headers: bool) -> Answer:
    """Read all, then charge each: the first rejection leaves the later ones uncharged."""
    views: list[StorageCountView] = []
    if headers or len(checks) > 1:
        views = [await counts.inspect(each.key, each.limit) for each in checks]
    rejected = {n for n, (each, view) in enumerate(zip(checks, views, strict=False)) if not each.fits(view)}
    spent = 0
    while not rejected and spent < len(checks):
        each = checks[spent]
        if each.units == 0 or (
            each.units <= each.limit.limit and await counts.hit(each.key, each.limit, each.units)
        ):
            spent += 1
        else:
            rejected = {spent}
            views[spent : spent + 1] = [await counts.inspect(each.key, each.limit)]
    if not views:
        (only,) = checks
        return (1, only.limit.limit - only.units, 0, 0, 0)
    return [
        value
        for n, (each, view) in enumerate(zip(checks, views, strict=True))
        for value in _values(each, view, rejected=n in rejected, spent=n < spent)
    ]


def _values(
    check: LimitCheck, view: StorageCountView, *, rejected: bool, spent: bool
) -> tuple[int, int, int, int, int]:
    """Return the `VALUES` integers of one limit."""
    most = check.limit.limit
    retry_us = 0
    if rejected:
        retry_us = -1 if check.units > most else max(EDGE_US, view.wait_us(view.used + check.units - most))
    after = view.after(check.units) if spent else view
    return (0 if rejected else 1, max(0, most - after.used), retry_us, after.wait_us(1), 0)


def _password(uri: str) -> str:
    """Return the password as the URI has it: a custom storage may repeat that in its errors."""
    return uri.partition("://")[2].rpartition("@")[0].partition(":")[2]
