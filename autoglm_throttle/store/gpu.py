"""Provides the GPUs of all hosts: this host's own, and those that the others publish in Redis.

It is a provider like any other, on the sampler's thread. One call publishes the local rows and returns
those of the other hosts. A store that hangs costs one read a quarter of a second; then calls pause.
"""

from __future__ import annotations

import contextlib
import logging
import math
import secrets
import time
from dataclasses import dataclass
from hashlib import sha1
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from autoglm_throttle.events.rate_limited_logger import RateLimitedLogger
from autoglm_throttle.gpu.provider_errors import NoSourceError
from autoglm_throttle.gpu.sample_builder import BELIEVED_PERIODS
from autoglm_throttle.gpu.sample_copy import lost
from autoglm_throttle.gpu.schedule import NextRead, Schedule
from autoglm_throttle.store.gpu_hosts import STALE_INTERVALS, STALE_LEAST_S, HostTable
from autoglm_throttle.store.gpu_payload import decode, encode
from autoglm_throttle.types import ProviderMisconfigured, ProviderUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autoglm_throttle.types import Clock, GpuProvider, GpuSample

_log = logging.getLogger("autoglm_throttle")

TIMEOUT_S: Final = 0.25
"""For the client's connection and replies: the maximum that a hung store may cost one read."""

PAUSE_INTERVALS: Final = 1.5
LONG_PAUSE_INTERVALS: Final = 5.0
"""Pauses after the first failure of the store, and after each further one. The first pause leaves out
one reading: with a longer one a single hiccup would make this host silent for the others.
"""

RIGHTS: Final = "evalsha eval time hget hset hdel hgetall pexpire"
"""Commands that a user of the server needs for the GPUs of a fleet, on the key below ``REDIS_PREFIX``."""

SyncClient = Any
"""A synchronous client of redis-py: single, Sentinel or cluster."""


@dataclass(frozen=True, slots=True)
class GpuFleetRules:
    """Key of the fleet in the store, and the name of this host."""

    host: str
    """Not empty; no other host has it."""
    prefix: str = "athr"
    service: str = "default"
    interval_s: float = 1.0
    """From one reading to the next."""
    stale_after_s: float | None = None
    """Time for which the rows of a silent host count; None: four of its intervals, at least four seconds."""

    @property
    def key(self) -> str:
        """Its tag is that of the fleet's other keys."""
        return f"{self.prefix}:{self.service}:{{fleet}}:gpu"


class RemoteGpuProvider:
    """Reads this host's GPUs, publishes them, and adds those of the other hosts.

    Args:
        local: this host's own provider; None: it has no GPUs that count.
        connect: makes a synchronous client without retries, with timeouts of `TIMEOUT_S`. It is called
            in `read`.
        rules: the fleet and this host's name.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        local: GpuProvider | None,
        connect: Callable[[], SyncClient],
        rules: GpuFleetRules,
        clock: Clock = time.monotonic,
    ) -> None:
        self.name: str = "fleet"
        self.min_interval_s: float = 0.2 if local is None else local.min_interval_s
        self.rules: GpuFleetRules = rules
        self.failures: int = 0
        """Calls that the store did not answer."""
        self.ignored: int = 0
        """Invalid payloads of other hosts."""
        self.last_error: str | None = None
        self._local = local
        self._connect = connect
        self._clock = clock
        self._stale_after_s = (
            max(STALE_INTERVALS * rules.interval_s, STALE_LEAST_S)
            if rules.stale_after_s is None
            else rules.stale_after_s
        )
        self._script = resources.files(__package__).joinpath("fleet_gpu.lua").read_text("utf-8")
        self._sha = sha1(self._script.encode(), usedforsecurity=False).hexdigest()
        self._logger = RateLimitedLogger("GPU fleet", clock)
        self.reset_after_fork()

    def __repr__(self) -> str:
        return f"RemoteGpuProvider({self.rules.host}, local={self._local!r}, others={self.hosts!r})"

    def read(self) -> Sequence[GpuSample]:
        """Read this host's GPUs, publish them, and return them with those of the others.

        Rows that name another host are returned but not published: they are not this host's own.

        A failure of the local source does not hide the other hosts. Its last rows count until they are
        stale, and are then lost.

        Raises:
            ProviderUnavailable: it fails, and no other host has a working device.
        """
        own = self._read_local()
        self._exchange(own)
        now = self._clock()
        others = self.hosts.rows(now)
        if self._local_error is None:
            return [*self._own, *others]
        if all(row.health == "lost" for row in others):
            raise ProviderUnavailable(f"{self._local_error}") from self._local_error
        return [*(self._valid_or_lost(row, now) for row in self._own), *others]

    def close(self) -> None:
        """Close the driver and the connection."""
        self._disconnect()
        self._next_read = NextRead(due_s=-math.inf)
        if self._local is not None:
            self._local.close()

    def reset_after_fork(self) -> None:
        """Become another publisher in a forked process, without the parent's connection and handles."""
        self.hosts: HostTable = HostTable(self.rules.stale_after_s)
        self._process = secrets.token_hex(8)
        self._client: SyncClient | None = None
        self._own: list[GpuSample] = []
        """The newest rows of this host."""
        self._local_error: Exception | None = None
        """Error of the newest local read; None: the rows are current."""
        self._schedule = Schedule(self.rules.interval_s)
        self._next_read = NextRead(due_s=-math.inf)
        self._store_retry_s = -math.inf
        self._store_lost = False
        if self._local is not None:
            self._local.reset_after_fork()

    def _read_local(self) -> list[GpuSample]:
        """Read the local source if it is due; return the new rows, the only ones to publish."""
        started = self._clock()
        if self._local is None or started < self._next_read.due_s:
            return []
        # After repeated failures: drop a broken handle before the next read.
        if self._next_read.reopen:
            self._local.close()
        try:
            rows = list(self._local.read())
        except ProviderMisconfigured as error:
            # Never due again: this error cannot heal, but the other hosts remain visible.
            self._local_error, self._next_read = error, NextRead(due_s=math.inf)
            _log.critical("GPU telemetry of this host ends, that of the others goes on: %s", error)
        except NoSourceError:
            self._local_error, self._next_read = None, self._schedule.no_source(self._clock())
        except Exception as error:  # noqa: BLE001 - a driver binding may raise anything
            self._local_error, self._next_read = error, self._schedule.failed(started, self._clock())
            self._logger.warn("local", f"this host's own cannot be read: {type(error).__name__}: {error}")
        else:
            self._schedule.succeeded(started, self._clock())
            self._local_error, self._next_read = None, NextRead(due_s=-math.inf)
            self._own = rows
            return rows
        return []

    def _valid_or_lost(self, row: GpuSample, now: float) -> GpuSample:
        age_s = now - row.taken_at_s + row.age_s
        believed_s = max(self._stale_after_s, BELIEVED_PERIODS * (row.period_s or 0.0))
        return row if age_s <= believed_s else lost(row, f"stale: not read for {age_s:.0f} s")

    def _exchange(self, own: Sequence[GpuSample]) -> None:
        if self._clock() < self._store_retry_s:
            return
        try:
            entries = self._call(self._payload(own))
            now = self._clock()
            for host, age_us, payload in zip(entries[::3], entries[1::3], entries[2::3], strict=True):
                self._receive(_text(host), age_us / 1e6, payload, now)
        except Exception as error:  # noqa: BLE001 - a client may raise anything; the local rows still count
            self._on_store_error(error)
        else:
            self.hosts.record_answer(now)
            if self._store_lost:
                self._store_lost = False
                self._logger.warn("back", "the store answers again")

    def _payload(self, rows: Sequence[GpuSample]) -> str:
        """Encode the rows of this host's own devices, from any source.

        A row that names another host is that of a scrape. Another host that scrapes it too would count the
        device twice, and under this host's name it would be a different one.
        """
        own = [row for row in rows if row.host in {"", self.rules.host}]
        if not own:
            return ""
        try:
            return encode(own, self.rules.interval_s, self._clock())
        except ValueError as error:
            self._logger.warn("payload", f"this host is not published: {error}")
            return ""

    def _call(self, payload: str) -> Sequence[Any]:
        from redis.exceptions import NoScriptError

        if self._client is None:
            self._client = self._connect()
        rules = self.rules
        arguments = (rules.key, rules.host, self._process, round(rules.interval_s * 1e6), payload)
        try:
            entries: Sequence[Any] = self._client.evalsha(self._sha, 1, *arguments)
        except NoScriptError:  # restart or SCRIPT FLUSH emptied the script cache: nothing ran
            entries = self._client.eval(self._script, 1, *arguments)
        return entries

    def _receive(self, host: str, age_s: float, payload: bytes | str, now: float) -> None:
        try:
            published = decode(payload.encode() if isinstance(payload, str) else payload, host)
        except ValueError as error:
            self.ignored += 1
            self._logger.warn("ignored", f"host {host!r:.80} is ignored: {error!s:.200}")
        else:
            self.hosts.receive(host, age_s, published, now)

    def _on_store_error(self, error: Exception) -> None:
        self.failures += 1
        self.last_error = f"{type(error).__name__}: {error}"
        self.hosts.record_failure()
        self._disconnect()
        pause = LONG_PAUSE_INTERVALS if self._store_lost else PAUSE_INTERVALS
        self._store_retry_s = self._clock() + pause * self.rules.interval_s
        if not self._store_lost:
            self._store_lost = True
            # Either redis-py's error class, or the text of the server.
            forbidden = "NoPermission" in self.last_error or "can't run this command" in self.last_error
            needs = f"; it needs the rights: {RIGHTS}" if forbidden else ""
            self._logger.warn(
                "away", f"the other hosts are not known, the store is unavailable ({self.last_error}{needs})"
            )

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):  # it is broken already
                client.close()


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")
