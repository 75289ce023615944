"""The recorder: its scope, limits and file."""

from __future__ import annotations

import atexit
import re
import secrets
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio

from autoglm_throttle._runtime.fork import keep_parent_part, rebuild_after_fork
from autoglm_throttle.events import LOGGER
from autoglm_throttle.settings import Settings
from autoglm_throttle.settings.groups.callers import CallerSettings
from autoglm_throttle.settings.groups.observe import RecordBody, RecorderSettings
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.record.recorded_request import RecordingHeader
from autoglm_throttle.traffic.record.redaction import Redaction
from autoglm_throttle.traffic.record.writer import CLOSE_S, RecordingFile, Writer
from autoglm_throttle.types import Clock
from autoglm_throttle.types.identity import CallerHasher, ProxyChain
from autoglm_throttle.version import __version__

POLL_INTERVAL_S: Final = 0.01  # Poll interval of the event loop while the last requests are written

_CLIENT = re.compile(r"[0-9a-f]{16}")


class RecorderCounts(NamedTuple):
    """Number of written and dropped requests of a recording."""

    written: int  # In the file, or about to be
    dropped: int  # Missing because the writer could not keep up, or could not write
    ended: str  # ``closed``, ``max_bytes``, ``max_s`` or ``failed``; empty while the recording is active


class RecordedClients:
    """Hashes the identity of each client, and decides which ones are recorded; without a key it is random."""

    def __init__(self, callers: CallerSettings, header: str | None, sample: float) -> None:
        secret = callers.key_secret
        self.key_kind: str = "random" if secret is None else "secret"
        self._sample = sample
        self._header = b"" if header is None else header.strip().lower().encode()
        key = secrets.token_bytes(32) if secret is None else secret.get_secret_value().encode()
        self._hasher = CallerHasher(key)
        self._peers = ProxyChain((), callers.ipv6_prefix)

    def identify(self, stated: str, peer: Sequence[Any] | None, headers: Iterable[Sequence[bytes]]) -> str:
        """Return the 16 hex digits of a client: of its header field, the throttle's user, or its address."""
        if self._header:
            for name, value in headers:
                if name == self._header:
                    text = value.decode("latin-1")
                    return text if _CLIENT.fullmatch(text) else self._hasher.hash("client", text)
        if stated:
            return self._hasher.text(stated)
        return self._hasher.hash("address", self._peers.group(str(peer[0]) if peer else ""))

    def has(self, client: str) -> bool:
        """Return whether a client belongs to the sample."""
        return self._sample >= 1.0 or int(client[:8], 16) / 2**32 < self._sample


class Recorder:
    """Writes the requests of a `RecorderMiddleware` to a file, without their secrets.

    The file is created when the app starts, or at the first request: one for each process, never an existing
    one. ``traffic.jsonl`` becomes ``traffic-2.jsonl`` for the second worker or after a restart.

    Args:
        settings: the file, its limits, and the content of the recording.
        callers: the identity and the priority header. With a ``key_secret`` it is the key of the client
            hashes, used where no throttle has identified the client; without one the key is random, so that
            the hashes of this recording cannot be compared with others. None: the defaults.
        client_header: a header whose value already identifies the client, as a replay sends it; None: none.
        clock: monotonic seconds.

    Raises:
        TrafficError: no path is set, its folder does not exist, or a header that identifies the caller
            would be recorded.
    """

    def __init__(
        self,
        settings: RecorderSettings,
        callers: CallerSettings | None = None,
        *,
        client_header: str | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        callers = CallerSettings() if callers is None else callers
        self.settings: RecorderSettings = settings
        # Read for each request: an attribute of a pydantic model takes longer.
        self.body: RecordBody = settings.body
        self.redaction: Redaction = Redaction(
            allow_headers=settings.headers,
            keep_query=settings.query,
            mask_paths=settings.mask_paths,
            priority_header=callers.priority_header,
            identity_headers=filter(None, [_identity_header(callers), client_header]),
        )
        self.clients: RecordedClients = RecordedClients(callers, client_header, settings.sample)
        self.clock: Clock = clock
        self._known_throttles: set[object] = set()
        _writable(settings.path)
        self._begin()
        rebuild_after_fork(self, Recorder._begin_in_child)

    def _begin(self) -> None:
        self._writer: Writer | None = None  # The newest one, also after its end; None: no file was begun
        self._end_reason = ""  # Empty while requests are recorded
        self._apps: set[object] = set()  # Recorded apps between startup and shutdown
        self._lock = threading.Lock()  # Held while a writer is created or the end is marked

    def _begin_in_child(self) -> None:
        """Begin anew in a forked child: file, thread and lock belong to the parent."""
        keep_parent_part((self._writer, self._lock))
        self._begin()

    @classmethod
    def from_settings(cls, settings: Settings) -> Recorder | None:
        """Create the recorder of the settings; None without ``RECORD_PATH``. Raises as the constructor."""
        return None if settings.recorder.path is None else cls(settings.recorder, settings.callers)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Recorder | None:
        """Create the recorder of the environment; raise ConfigError for its faults."""
        return cls.from_settings(Settings.from_env(environ))

    @property
    def counts(self) -> RecorderCounts:
        """Written and dropped requests, since this process began the file."""
        writer = self._writer
        if writer is None:
            return RecorderCounts(0, 0, self._end_reason)
        return RecorderCounts(writer.written, writer.dropped, writer.ended or self._end_reason)

    @property
    def file(self) -> Path | None:
        """The file of this process; None before it began."""
        return None if self._writer is None else self._writer.store.path

    def start(self) -> None:
        """Begin a recording, unless one is active, has reached a limit or has failed."""
        with self._lock:
            if self._end_reason == "closed":
                self._end_reason, self._writer = "", None
        self.writer()

    def writer(self) -> Writer | None:
        """Return the writer of this process; None if the recording is over."""
        writer = self._writer
        if writer is None and not self._end_reason:
            with self._lock:
                if self._writer is None and not self._end_reason:
                    self._writer = self._new_writer()
                writer = self._writer
        return None if writer is None or self._end_reason or writer.ended else writer

    def attach(self, app: object) -> None:
        """Begin as ``start`` does, on behalf of a recorded app."""
        self.start()
        self._apps.add(app)

    async def detach(self, app: object) -> None:
        """Detach an app; the last one closes the recording without blocking the event loop."""
        self._apps.discard(app)
        writer = None if self._apps else self._mark_closed()
        if writer is None:
            return
        writer.worker.stop(0.0)
        until_s = time.monotonic() + CLOSE_S
        while writer.worker.is_alive and (before_s := time.monotonic()) < until_s:
            await anyio.sleep(POLL_INTERVAL_S)
            if time.monotonic() - before_s < POLL_INTERVAL_S / 2:  # virtual time: polling takes no real time
                break
        self._end(writer, max(0.0, until_s - time.monotonic()))

    def close(self) -> None:
        """End the recording and wait, at most 5 s, until it is written; ``start`` begins another."""
        writer = self._mark_closed()
        if writer is not None:
            self._end(writer, CLOSE_S)

    def _mark_closed(self) -> Writer | None:
        """Mark the recording as closed and return its writer; None without one."""
        with self._lock:
            self._end_reason = self._end_reason or "closed"
            return self._writer

    def _end(self, writer: Writer, wait_s: float) -> None:
        writer.worker.stop(wait_s)
        if writer is self._writer:  # else another recording has begun
            self._end_reason = writer.ended or self._end_reason
            atexit.unregister(self.close)

    def watch_client(self, throttles: Iterable[object]) -> None:
        """Disallow the header fields by which these throttles identify callers."""
        for throttle in throttles:
            if throttle not in self._known_throttles:
                self._known_throttles.add(throttle)
                settings = getattr(throttle, "settings", None)
                self.redaction.disallow(_identity_header(getattr(settings, "callers", None)))

    def _new_writer(self) -> Writer | None:
        """Create a file and its writer. An error ends the recording, and requests are still served."""
        store = None
        try:
            store = RecordingFile(_writable(self.settings.path), self.settings.max_bytes)
            writer = Writer(store, self._header().to_line(), self.settings, self.clock)
        except Exception as error:  # noqa: BLE001 - no thread can be started, no such path, or any other
            self._end_reason = "failed"
            if store is not None:
                store.abandon()
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            path = self.settings.path
            LOGGER.error("nothing is recorded, %s cannot be written: %s; requests go on", path, reason)
            return None
        LOGGER.info("recording to %s", store.path)
        atexit.register(self.close)
        return writer

    def _header(self) -> RecordingHeader:
        return RecordingHeader(
            start=datetime.now(UTC).isoformat(timespec="microseconds"),
            made_by=__version__,
            redaction=self.redaction.describe() | {"body": self.body.value, "key": self.clients.key_kind},
            sample=self.settings.sample,
        )


def _writable(path: Path | None) -> Path:
    if path is None:
        raise TrafficError("RecorderSettings(path=...) names no file")
    if not path.parent.is_dir():
        raise TrafficError(f"{path.parent} is no folder, so {path.name} cannot be recorded there")
    return path


def _identity_header(callers: object) -> str:
    """Return the header field by which these settings identify callers; empty if there is none."""
    kind, _, name = str(getattr(callers, "identity", "")).partition(":")
    return name if kind == "header" else ""
