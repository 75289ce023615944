"""Gives slots back while requests wait for their clients, and ends transfers without progress."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import sys
import weakref
from asyncio import _get_running_loop as running_loop  # a call of C
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from types import CoroutineType
from typing import Any, Final

import anyio

from autoglm_throttle._runtime import weak_method
from autoglm_throttle._runtime.fork import keep_parent_part, rebuild_after_fork
from autoglm_throttle._runtime.worker import Worker
from autoglm_throttle.admission.permit import Permit
from autoglm_throttle.asgi.scope import Message
from autoglm_throttle.events import RateLimitedLogger
from autoglm_throttle.limiting.work_class import PAUSED
from autoglm_throttle.throttle import Throttle
from autoglm_throttle.types import Clock

# Least rate of a body or a reader: the default ``MinRate`` of Apache's mod_reqtimeout.
MIN_BYTES_PER_S: Final = 500.0

# Share of idle streams from which a new stream of their class is expected to be idle: after one active stream
# none is, after three idle ones or an idle first one all are.
IDLE_CLASS_SHARE: Final = 0.75
IDLE_SHARE_GAIN: Final = 0.5
MAX_CLASSES: Final = 64

# Objectives that a stream may take to its first part before it counts as idle: an overloaded engine is late,
# and more requests in its place would make it later. [measured with vLLM]
HEAD_OBJECTIVES: Final = 4.0

SCAN_MIN_S: Final = 0.02  # Least time between two scans: many requests are not paused one by one
SCAN_MIN_EACH_S: Final = 2e-5  # The same for each request: to check one takes about a thirtieth of it
SCAN_MAX_S: Final = 0.5  # Longest time between two scans, with any `slot_idle_s`: timeouts may be shorter
EMPTY_SCANS: Final = 20  # After which the thread ends: to start one anew costs more than a few scans


class TooSlowError(ConnectionError):
    """A client has sent or read less than the least rate."""


class SlotWatch:
    """Scans the requests that wait for their clients, on a thread that runs only while there are any.

    With ``sampling="manual"`` there is no thread: call `scan`.
    """

    def __init__(self, throttle: Throttle) -> None:
        settings = throttle.settings.concurrency
        self._throttle = throttle
        self.clock: Clock = throttle.admission.parts.settlement.clock
        self.idle_s: float = settings.slot_idle_s
        # A dry run rejects and ends no request.
        dry_run = throttle.settings.control.dry_run
        self.paused_max: float = math.inf if dry_run else settings.paused_max
        self.timeout_s: float = math.inf if dry_run else settings.body_timeout_s
        self._is_manual = throttle.is_manual
        self._logger = RateLimitedLogger("slots", self.clock)
        self._begin()
        rebuild_after_fork(self, SlotWatch._rebuild)

    def _begin(self) -> None:
        self.awaited: set[int] = set()  # Ids of the bodies that are awaited before admission
        self._empty_scans = 0
        self._next_s = math.inf  # When the next of the watched requests is due
        self._keys = itertools.count()
        self._watched: dict[int, weakref.ref[WatchedSlot]] = {}
        self._idle_shares: dict[str, float] = {}
        logger = self._logger
        self._worker = Worker(
            "autoglm-throttle-slots",
            weak_method(self._step),
            on_crash=lambda error: logger.warn("crash", "a scan failed and is repeated", error=error),
        )
        self._worker.stop_with(self)

    def _rebuild(self) -> None:
        """Begin anew in a forked child, which has neither the thread nor the requests of its parent."""
        keep_parent_part(self._worker)
        self._begin()

    @property
    def watched(self) -> int:
        """Requests that are watched."""
        return len(self._watched)

    @property
    def bodies(self) -> int:
        """Bodies that are awaited before admission."""
        return len(self.awaited)

    def add(self, watched: WatchedSlot) -> None:
        """Watch a request until it waits no longer, or is settled. It is held weakly."""
        watched.is_registered = True
        self._watched[next(self._keys)] = weakref.ref(watched)
        if not self._is_manual:
            self._worker.start()

    def scan(self, now: float) -> None:
        """Pause the requests that have waited long enough, and end the transfers without progress."""
        self._next_s = math.inf
        for key in list(self._watched):  # list(items) could be interrupted by another thread
            reference = self._watched.get(key)
            watched = None if reference is None else reference()
            if watched is None or watched.has_ended:
                self._watched.pop(key, None)
            elif watched.is_waiting:
                watched.check(now)
                self._next_s = min(self._next_s, watched.next_s(now))
            else:
                self._forget(key, watched)
        self._report_many()

    def record_oddity(self, name: str) -> None:
        """Count a handled oddity under a name from code."""
        self._throttle.admission.record_oddity(name)

    def head_s(self, permit: Permit) -> float:
        """Return the seconds that a stream may take to its first part."""
        objective_s = permit.demand.slo_s or self._throttle.admission.parts.settlement.limiter.slo_s
        return max(self.idle_s, HEAD_OBJECTIVES * objective_s)

    def expects_idle(self, work_class: str) -> bool:
        """Whether a new stream of a class is expected to be idle after its first part."""
        return self._idle_shares.get(work_class, 0.0) > IDLE_CLASS_SHARE

    def learn_idle(self, work_class: str, *, idle: bool) -> None:
        """Learn whether a stream of a class was idle after its first part."""
        share = self._idle_shares.get(work_class)
        if share is not None:
            self._idle_shares[work_class] = share + IDLE_SHARE_GAIN * (idle - share)
        elif len(self._idle_shares) < MAX_CLASSES:
            self._idle_shares[work_class] = float(idle)

    def _forget(self, key: int, watched: WatchedSlot) -> None:
        self._watched.pop(key, None)
        watched.is_registered = False
        if watched.is_waiting:  # it began to wait meanwhile, and relied on its registration
            self.add(watched)

    def _step(self) -> float | None:
        now = self.clock()
        self.scan(now)
        self._empty_scans = 0 if self._watched else self._empty_scans + 1
        if self._empty_scans >= EMPTY_SCANS:
            return None
        # What begins to wait meanwhile is due after `idle_s`: the scan after half of it sees it in time. A
        # body beyond `paused_max` is due at once, but wakes no thread: the rest of it may be close behind.
        least_s = max(SCAN_MIN_S, SCAN_MIN_EACH_S * len(self._watched))
        return min(self.idle_s / 2.0, SCAN_MAX_S, max(least_s, self._next_s - now))

    def _report_many(self) -> None:
        paused = max(self._throttle.admission.parts.settlement.limiter.paused, self.bodies)
        if paused > self.paused_max / 2:
            waiting = f"{paused} requests wait for their clients without a slot"
            rejected = f"at {self.paused_max} new requests are rejected"
            self._logger.warn("paused", f"{waiting}; {rejected}; raise paused_max if they are legitimate")


class WatchedSlot:
    """Waits of one request for its client, seen by `SlotWatch`.

    Its event loop writes, and the thread of the watch reads and pauses. Neither takes a lock: the loop raises
    `_changes` before it looks whether the slot is paused, and the thread reads them again after its pause.
    """

    __slots__ = (
        *("__weakref__", "_blocked_s", "_changes", "_due_s", "_expire", "_is_slow", "_pause_s", "_watch"),
        *("is_registered", "permit", "timeout_s", "transferred_bytes"),
    )

    def __init__(self, watch: SlotWatch, permit: Permit | None) -> None:
        self._watch = watch
        self.permit = permit  # None before the admission
        self.timeout_s: float = watch.timeout_s  # Seconds that it may be blocked, beside those for its bytes
        self.transferred_bytes = 0  # Each 500 of them allow one second more
        self.is_registered = False
        self._blocked_s = 0.0
        self._is_slow = False
        self._changes = 0
        self._pause_s = self._due_s = math.inf
        self._expire: Callable[[], object] | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for its client."""
        return self._pause_s < math.inf or self._due_s < math.inf

    @property
    def has_ended(self) -> bool:
        """Whether its request has been settled."""
        return self.permit is not None and self.permit.settled

    def next_s(self, now: float) -> float:
        """Return when its slot is to be given back, or its transfer to end; infinite: neither is to come."""
        permit, due_s = self.permit, self._due_s
        has_slot = permit is not None and permit.slot > PAUSED
        return min(self._pause_s if has_slot else math.inf, due_s if due_s > now else math.inf)

    def wait(self, pause_s: float, due_s: float = math.inf) -> None:
        """Begin a wait: the slot is given back at ``pause_s``, and the transfer ends at ``due_s``."""
        self._pause_s, self._due_s = pause_s, due_s
        self._changes += 1
        if not self.is_registered:
            self._watch.add(self)

    def work(self) -> None:
        """End a wait: the app works, and has its slot again."""
        self._pause_s = self._due_s = math.inf
        self._changes += 1
        if self.permit is not None and self.permit.is_paused:
            self.permit.resume()

    def check(self, now: float) -> None:
        """Pause the request, or end its transfer, if it is time."""
        changes, expire = self._changes, self._expire
        if now >= self._due_s and expire is not None:
            with contextlib.suppress(Exception):  # the loop has ended
                expire()
        if now >= self._pause_s:
            if expire is None:  # nothing is being sent
                self._record_idle()
            permit = self.permit
            if permit is not None and not permit.is_paused:
                permit.pause()
                if self._changes != changes:  # the app works again, and may have come before the pause
                    permit.resume()

    async def blocked(self, call: BegunCall, *, at_once: bool = False) -> Message:
        """Wait for a call of the server, without the slot if it takes long; ``at_once``: to the next scan.

        Raises:
            TooSlowError: the client has sent or read less than the least rate.
        """
        watch = self._watch
        began_s = watch.clock()
        allowed_s = self.timeout_s + self.transferred_bytes / MIN_BYTES_PER_S - self._blocked_s
        self.wait(began_s + watch.idle_s, began_s if at_once else began_s + allowed_s)
        if self._is_slow and self.permit is not None:
            self.permit.pause()  # a client that trickles must not hold a slot for each wait anew
        try:
            return await self._until_expired(call)
        finally:
            lasted_s = watch.clock() - began_s
            self._blocked_s += lasted_s
            self._is_slow |= lasted_s >= watch.idle_s
            self._expire = None
            self.work()

    async def _until_expired(self, call: BegunCall) -> Message:
        loop = running_loop()
        if loop is None:
            from trio.lowlevel import current_trio_token

            with anyio.CancelScope() as scope:
                self._expire = partial(current_trio_token().run_sync_soon, scope.cancel)
                return await call
        else:
            # No cancel scope: those inside a call that has begun would have to end after it.
            timeout = asyncio.timeout(None)
            self._expire = partial(loop.call_soon_threadsafe, _end_now, timeout, loop)
            try:
                async with timeout:
                    return await call
            except TimeoutError:
                if not timeout.expired():
                    raise
        raise TooSlowError("the client is too slow")

    def _record_idle(self) -> None:
        """Record a wait between two parts that has become long."""


def _end_now(timeout: asyncio.Timeout, loop: asyncio.AbstractEventLoop) -> None:
    with contextlib.suppress(RuntimeError):  # the wait has ended meanwhile
        timeout.reschedule(loop.time())


class BegunCall:
    """The rest of a ``send`` or ``receive`` of a server that has begun; await it."""

    __slots__ = ("_coroutine", "_has_begun", "_pending")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], pending: object, *, has_begun: bool) -> None:
        self._coroutine = coroutine
        self._pending = pending  # Awaited by it first
        self._has_begun = has_begun

    def __await__(self) -> Generator[Any, Any, Any]:
        """Run the rest: ``yield from`` can take over once the first answer has arrived."""
        coroutine, pending = self._coroutine, self._pending
        while self._has_begun:
            try:
                yield pending
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as error:  # noqa: BLE001 - a cancellation, too, belongs to the call
                try:
                    pending = coroutine.throw(error)
                except StopIteration as ended:
                    return ended.value
            else:
                break
        return (yield from coroutine.__await__())


def begin(awaitable: Awaitable[Any]) -> Any:  # noqa: ANN401 - a message, or the rest of the call
    """Begin a call of the server; return its result if it ends at once, else a `BegunCall`.

    Most calls end at once; then no time needs to be read and no timeout to be prepared. Under trio it begins
    only when it is awaited: a cancel scope around the rest must be entered before those of the call.
    """
    coroutine = awaitable if isinstance(awaitable, CoroutineType) else _wait(awaitable)
    if is_in_trio():
        return BegunCall(coroutine, None, has_begun=False)
    try:
        return BegunCall(coroutine, coroutine.send(None), has_begun=True)
    except StopIteration as ended:
        return ended.value


def abandon(call: object) -> None:
    """Close a call that has begun, unless it is its result."""
    if isinstance(call, BegunCall):
        call._coroutine.close()  # noqa: SLF001 - of this module


async def _wait(awaitable: Awaitable[Any]) -> Message:
    return await awaitable


def is_in_trio() -> bool:
    """Whether the caller runs under trio."""
    loop = running_loop()
    if loop is not None and asyncio.current_task(loop) is not None:
        return False  # trio takes 3 us to say so, and is asked for each part of a stream
    trio = sys.modules.get("trio")
    return trio is not None and trio.lowlevel.in_trio_run()
