"""Provides the GPUs of all hosts: this host's own, and those that the others publish in Redis.

One call publishes the local rows and returns those of the other hosts. A store that hangs costs one read a
quarter of a second; then calls pause. The rows of a silent host count for four of its intervals. Then its
devices are lost: their weight leaves the capacity and they are never read as idle. While the store itself is
unavailable, nothing is known of the other hosts: they are left out, and with them their weight.
"""

from __future__ import annotations

import math
import secrets
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from autoglm_throttle._runtime.fork import keep_parent_part
from autoglm_throttle.events import LOGGER, RateLimitedLogger
from autoglm_throttle.gpu.aggregate import BELIEVED_PERIODS
from autoglm_throttle.gpu.interval import Schedule
from autoglm_throttle.gpu.sanity import lost
from autoglm_throttle.store.gpu_payload import decode, encode
from autoglm_throttle.store.health import HealthState, StoreHealth
from autoglm_throttle.store.protocol import StoreErrorKind
from autoglm_throttle.store.script import SyncScript
from autoglm_throttle.types import ProviderMisconfigured, ProviderUnavailable
from autoglm_throttle.types.errors import NoSourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autoglm_throttle.settings.groups.gpu import GpuSettings
    from autoglm_throttle.settings.groups.store import StoreSettings
    from autoglm_throttle.store.client import SyncClient
    from autoglm_throttle.store.gpu_payload import Publication
    from autoglm_throttle.types import Clock, GpuProvider, GpuSample

# Pauses after the first failure of the store, and after each further one. The first pause leaves out one
# reading: with a longer one a single hiccup would make this host silent for the others.
PAUSE_INTERVALS: Final = (1.5, 5.0)

# Silence after which a host counts as removed on purpose: its weight is no missing capacity.
FORGET_S: Final = 300.0

STALE_INTERVALS: Final = 4.0
# The rows of a silent host count for four of its intervals, and for four seconds at least. One failed call
# and the pause after it make three intervals without a publication.
STALE_LEAST_S: Final = 4.0

MOST_HOSTS: Final = 1024

# Commands that a user of the server needs for the GPUs of a fleet, on the key below ``REDIS_PREFIX``.
RIGHTS: Final = "evalsha eval time hget hset hdel hgetall pexpire"


def fleet_gpu_key(settings: StoreSettings) -> str:
    """Return the key of the published rows; its tag is that of the fleet's other keys."""
    return f"{settings.redis_prefix}:{settings.service}:{{fleet}}:gpu"


class RemoteGpuProvider:
    """Reads this host's GPUs, publishes them, and adds those of the other hosts.

    ``local`` is this host's own provider; None: it has no GPUs that count. ``connect`` makes a synchronous
    client with short timeouts; a read calls it. ``host`` is the name of this host, which no other host has.
    """

    def __init__(
        self,
        local: GpuProvider | None,
        connect: Callable[[], SyncClient],
        host: str,
        store: StoreSettings,
        gpu: GpuSettings,
        clock: Clock = time.monotonic,
    ) -> None:
        self.name: str = "fleet"
        self.min_interval_s: float = 0.2 if local is None else local.min_interval_s
        self._host = host
        self._connect = connect
        self._key = fleet_gpu_key(store)
        self._settings = gpu
        self._clock = clock
        self._logger = RateLimitedLogger("GPU fleet", clock)
        self._local = local
        self._stale_after_s = gpu.gpu_stale_after_s or default_stale_after_s(gpu.sample_interval_s)
        self._open()

    def _open(self) -> None:
        self._error: Exception | None = None  # Of the newest local read; None: its rows are current
        self._newest: list[GpuSample] = []  # Rows of the newest local read
        self._schedule = Schedule(self._settings.sample_interval_s)
        self.script: SyncScript = SyncScript(self._connect, "fleet_gpu.lua", RIGHTS)
        self.hosts: HostTable = HostTable(self._settings.gpu_stale_after_s)
        # Name of this publisher, one of perhaps several processes of the host.
        self.process: str = secrets.token_hex(8)
        pauses_s = [intervals * self._settings.sample_interval_s for intervals in PAUSE_INTERVALS]
        self._health = StoreHealth(1, pauses_s, jitter=lambda: 1.0)

    def read(self) -> Sequence[GpuSample]:
        """Read this host's GPUs, publish them, and return them with those of the others.

        A failure of the local source does not hide the other hosts. Its last rows count until they are
        stale, and are then lost.

        Raises:
            ProviderUnavailable: it fails, and no other host has a working device.
        """
        self._exchange(self._read_local())
        now = self._clock()
        own, others = self._newest, self.hosts.rows(now)
        if self._error is not None:
            if all(row.health == "lost" for row in others):
                raise ProviderUnavailable(f"{self._error}") from self._error
            stale = "stale: not read for {:.0f} s"
            own = [_valid_or_lost(row, now + row.age_s, self._stale_after_s, stale) for row in own]
        return [*own, *others]

    def close(self) -> None:
        """Close the driver and the connection; the local source is due at once."""
        self.script.close()
        self._schedule.read_at_once()
        if self._local is not None:
            self._local.close()

    def reset_after_fork(self) -> None:
        """Become another publisher in a forked process, without the parent's connection and handles."""
        keep_parent_part(self.script)
        self._open()
        if self._local is not None:
            self._local.reset_after_fork()

    def _read_local(self) -> list[GpuSample]:
        """Read the local source if it is due; return the new rows, the only ones to publish."""
        started = self._clock()
        if self._local is None or started < self._schedule.due_s:
            return []
        # After repeated failures: drop a broken handle before the next read.
        if self._schedule.reopens:
            self._local.close()
        self._schedule.begin(started)
        try:
            rows = list(self._local.read())
        except Exception as error:  # noqa: BLE001 - a driver binding may raise anything
            self._record_local_error(error)
            return []
        # The caller's schedule decides about the next read.
        self._schedule = Schedule(self._settings.sample_interval_s)
        self._error, self._newest = None, rows
        return rows

    def _record_local_error(self, error: Exception) -> None:
        now = self._clock()
        self._error = error
        if isinstance(error, ProviderMisconfigured):
            self._schedule.end()  # this error cannot heal, but the other hosts remain visible
            LOGGER.critical("GPU telemetry of this host ends, that of the others goes on: %s", error)
        elif isinstance(error, NoSourceError):
            self._error = None
            self._schedule.no_source(now)
        else:
            self._schedule.failed(now)
            self._logger.warn("local", f"this host's own cannot be read: {type(error).__name__}: {error}")

    def _exchange(self, own: Sequence[GpuSample]) -> None:
        """Publish the rows and receive those of the other hosts, unless the store is paused."""
        health = self._health
        if health.state is not HealthState.UP and not health.try_begin_probe(self._clock()):
            return
        interval_us = round(self._settings.sample_interval_s * 1e6)
        arguments = (self._host, self.process, interval_us, self._payload(own))
        try:
            entries = self.script.call([self._key], arguments)
            now = self._clock()
            for host, age_us, payload in zip(entries[::3], entries[1::3], entries[2::3], strict=True):
                name = host if isinstance(host, str) else host.decode("utf-8", "replace")
                self._receive(name, max(0.0, age_us / 1e6), payload, now)
        except Exception as error:  # noqa: BLE001 - a client may raise anything; the local rows still count
            self._record_failure(error)
        else:
            self.hosts.record_answer(now)
            if health.record_call(None, now) is not None:
                self._logger.warn("back", "the store answers again")

    def _payload(self, rows: Sequence[GpuSample]) -> str:
        """Encode the rows of this host's own devices, from any source.

        A row that names another host is that of a scrape. Another host that scrapes it too would count the
        device twice, and under this host's name it would be a different one.
        """
        own = [row for row in rows if row.host in {"", self._host}]
        if not own:
            return ""
        try:
            return encode(own, self._settings.sample_interval_s, self._clock())
        except ValueError as error:
            self._logger.warn("payload", f"this host is not published: {error}")
            return ""

    def _receive(self, host: str, age_s: float, payload: bytes | str, now: float) -> None:
        try:
            published = decode(payload.encode() if isinstance(payload, str) else payload, host)
        except ValueError as error:
            self.hosts.ignored += 1
            self._logger.warn("ignored", f"host {host!r:.80} is ignored: {error!s:.200}")
        else:
            self.hosts.receive(host, age_s, published, now)

    def _record_failure(self, error: Exception) -> None:
        text = self.script.record_failure(error)
        self.hosts.record_failure()
        if self._health.record_call(StoreErrorKind.LOST, self._clock()) is not None:
            self._logger.warn("away", f"the other hosts are not known, the store is unavailable ({text})")


class HostTable:
    """The other hosts of a fleet: silent ones count for ``stale_after_s``, by default four intervals."""

    def __init__(self, stale_after_s: float | None = None) -> None:
        self.ignored: int = 0  # Invalid payloads of other hosts
        self._stale_after_s = stale_after_s
        # Time of the newest publication, on our clock, the publication, and every device that the host has
        # listed within `FORGET_S`, the lost ones included.
        self._hosts: dict[str, tuple[float, Publication, dict[str, GpuSample]]] = {}
        # Start of the current run of answers from the store; infinite while it fails.
        self._answers_since_s = -math.inf

    def record_answer(self, now: float) -> None:
        """Record an answer of the store: a host missing from it is silent, unless the outage hid it."""
        self._answers_since_s = min(self._answers_since_s, now)

    def record_failure(self) -> None:
        """Record a failure of the store: the silence of the hosts means nothing now."""
        self._answers_since_s = math.inf

    def receive(self, host: str, age_s: float, published: Publication, now: float) -> None:
        """Store the publication of a host, ``age_s`` seconds old; ignore a repetition."""
        known = self._hosts.get(host)
        if known is None and len(self._hosts) >= MOST_HOSTS:
            return
        published_s = now - age_s
        interval_s, published_rows = published
        before: dict[str, GpuSample] = {}
        if known is not None:
            # Equal rows within half an interval are one publication: age jitter is smaller than that.
            known_s, last, before = known
            if published == last and published_s - known_s < interval_s / 2:
                return
        rows = {
            row.device: replace(
                row,
                taken_at_s=published_s + row.taken_at_s,
                period_s=max(row.period_s or 0.0, interval_s),
            )
            for row in published_rows
        }
        for device, row in before.items():
            if device not in rows and now - row.taken_at_s <= FORGET_S:
                rows[device] = lost(row, "vanished: its host no longer lists it")
        self._hosts[host] = (published_s, published, rows)

    def rows(self, now: float) -> list[GpuSample]:
        """Return the rows of all devices of the other hosts as they count now."""
        self._hosts = {name: host for name, host in self._hosts.items() if now - host[0] <= FORGET_S}
        rows: list[GpuSample] = []
        for published_s, (interval_s, _), devices in self._hosts.values():
            silent_s = now - published_s
            stale_after_s = default_stale_after_s(interval_s)
            if self._stale_after_s is not None:
                stale_after_s = max(self._stale_after_s, interval_s)
            if silent_s <= stale_after_s:
                stale = "stale: its host has not read it for {:.0f} s"
                rows += (_valid_or_lost(row, now, stale_after_s, stale) for row in devices.values())
            # Silence means loss only after the store has answered that long; else the outage may hide it.
            elif now - self._answers_since_s > stale_after_s:
                silent = f"stale: its host is silent for {silent_s:.0f} s"
                rows += (lost(row, silent) for row in devices.values())
        return rows


def default_stale_after_s(interval_s: float) -> float:
    """Return the seconds for which the rows of a silent host count, by its interval."""
    return max(STALE_INTERVALS * interval_s, STALE_LEAST_S)


def _valid_or_lost(row: GpuSample, now: float, stale_after_s: float, stale: str) -> GpuSample:
    """Return the row, or a lost one if it is stale, of a slow source after two and a half of its periods."""
    age_s = now - row.taken_at_s
    is_valid = age_s <= max(stale_after_s, BELIEVED_PERIODS * (row.period_s or 0.0))
    return row if is_valid else lost(row, stale.format(age_s))
