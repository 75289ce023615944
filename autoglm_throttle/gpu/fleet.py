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

from autoglm_throttle.gpu.fleet_hosts import STALE_INTERVALS, STALE_LEAST_S, Hosts
from autoglm_throttle.gpu.fleet_payload import decode, encode
from autoglm_throttle.gpu.none import NoSource
from autoglm_throttle.gpu.readings import BELIEVED_PERIODS
from autoglm_throttle.gpu.row import lost
from autoglm_throttle.gpu.schedule import Next, Schedule
from autoglm_throttle.gpu.seldom import Seldom
from autoglm_throttle.model import ProviderMisconfigured, ProviderUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autoglm_throttle.model import Clock, GpuProvider, GpuSample

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


class FleetProvider:
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
        self._seldom = Seldom("GPU fleet", clock)
        self.forget()

    def __repr__(self) -> str:
        return f"FleetProvider({self.rules.host}, local={self._local!r}, others={self.hosts!r})"

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
        if self._trouble is None:
            return [*self._own, *others]
        if all(row.health == "lost" for row in others):
            raise ProviderUnavailable(f"{self._trouble}") from self._trouble
        return [*(self._held(row, now) for row in self._own), *others]

    def close(self) -> None:
        """Close the driver and the connection."""
        self._disconnect()
        self._next = Next(due_s=-math.inf)
        if self._local is not None:
            self._local.close()

    def forget(self) -> None:
        """Become another publisher in a forked process, without the parent's connection and handles."""
        self.hosts: Hosts = Hosts(self.rules.stale_after_s)
        self._process = secrets.token_hex(8)
        self._client: SyncClient | None = None
        self._own: list[GpuSample] = []
        """The newest rows of this host."""
        self._trouble: Exception | None = None
        """Error of the newest local read; None: the rows are current."""
        self._schedule = Schedule(self.rules.interval_s)
        self._next = Next(due_s=-math.inf)
        self._alone_until_s = -math.inf
        self._away = False
        if self._local is not None:
            self._local.forget()

    def _read_local(self) -> list[GpuSample]:
        """Read the local source if it is due; return the new rows, the only ones to publish."""
        started = self._clock()
        if self._local is None or started < self._next.due_s:
            return []
        # After repeated failures: drop a broken handle before the next read.
        if self._next.fresh:
            self._local.close()
        try:
            rows = list(self._local.read())
        except ProviderMisconfigured as error:
            # Never due again: this error cannot heal, but the other hosts remain visible.
            self._trouble, self._next = error, Next(due_s=math.inf)
            _log.critical("GPU telemetry of this host ends, that of the others goes on: %s", error)
        except NoSource:
            self._trouble, self._next = None, self._schedule.absent(self._clock())
        except Exception as error:  # noqa: BLE001 - a driver binding may raise anything
            self._trouble, self._next = error, self._schedule.failed(started, self._clock())
            self._seldom.say("local", f"this host's own cannot be read: {type(error).__name__}: {error}")
        else:
            self._schedule.succeeded(started, self._clock())
            self._trouble, self._next = None, Next(due_s=-math.inf)
            self._own = rows
            return rows
        return []

    def _held(self, row: GpuSample, now: float) -> GpuSample:
        age_s = now - row.taken_at_s + row.age_s
        believed_s = max(self._stale_after_s, BELIEVED_PERIODS * (row.period_s or 0.0))
        return row if age_s <= believed_s else lost(row, f"stale: not read for {age_s:.0f} s")

    def _exchange(self, own: Sequence[GpuSample]) -> None:
        if self._clock() < self._alone_until_s:
            return
        try:
            entries = self._call(self._payload(own))
            now = self._clock()
            for host, age_us, payload in zip(entries[::3], entries[1::3], entries[2::3], strict=True):
                self._hear(_text(host), age_us / 1e6, payload, now)
        except Exception as error:  # noqa: BLE001 - a client may raise anything; the local rows still count
            self._lost(error)
        else:
            self.hosts.answered(now)
            if self._away:
                self._away = False
                self._seldom.say("back", "the store answers again")

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
            self._seldom.say("payload", f"this host is not published: {error}")
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

    def _hear(self, host: str, age_s: float, payload: bytes | str, now: float) -> None:
        try:
            said = decode(payload.encode() if isinstance(payload, str) else payload, host)
        except ValueError as error:
            self.ignored += 1
            self._seldom.say("ignored", f"host {host!r:.80} is ignored: {error!s:.200}")
        else:
            self.hosts.heard(host, age_s, said, now)

    def _lost(self, error: Exception) -> None:
        self.failures += 1
        self.last_error = f"{type(error).__name__}: {error}"
        self.hosts.away()
        self._disconnect()
        pause = LONG_PAUSE_INTERVALS if self._away else PAUSE_INTERVALS
        self._alone_until_s = self._clock() + pause * self.rules.interval_s
        if not self._away:
            self._away = True
            # Either redis-py's error class, or the text of the server.
            forbidden = "NoPermission" in self.last_error or "can't run this command" in self.last_error
            needs = f"; it needs the rights: {RIGHTS}" if forbidden else ""
            self._seldom.say(
                "away", f"the other hosts are not known, the store is away ({self.last_error}{needs})"
            )

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):  # it is broken already
                client.close()


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")
