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

    written: int
    """In the file, or about to be."""
    dropped: int
    """Missing because the writer could not keep up, or could not write."""
    ended: str
    """Reason for the end: ``closed``, ``max_bytes``, ``max_s`` or ``failed``; empty while it is active."""


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


class RecordingSession:
    """The recording of one process, from its first request or start."""

    def __init__(self) -> None:
        self.writer: Writer | None = None  # The newest writer, also after its end; None: no file was begun
        self.end_reason: str = ""  # Reason for the end; empty while requests are recorded
        self.serial: int = -1  # Number of the newest request
        self.apps: set[object] = set()  # Recorded apps between startup and shutdown
        self.lock: threading.Lock = threading.Lock()  # Held while a writer is created or the end is marked


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
        self.path: Path = _writable(settings.path)  # The given path; ``file`` is the actual one
        kind, _, name = callers.identity.partition(":")
        self.redaction: Redaction = Redaction(
            allow_headers=settings.headers,
            keep_query=settings.query,
            mask_paths=settings.mask_paths,
            priority_header=callers.priority_header,
            identity_headers=[*([name] if kind == "header" else []), *filter(None, [client_header])],
        )
        self.clients: RecordedClients = RecordedClients(callers, client_header, settings.sample)
        self.clock: Clock = clock
        self.session: RecordingSession = RecordingSession()
        self._known_throttles: set[object] = set()
        rebuild_after_fork(self, Recorder._begin_session)

    def _begin_session(self) -> None:
        """Begin anew in a forked child: file, thread and lock belong to the parent."""
        keep_parent_part(self.session)
        self.session = RecordingSession()

    @classmethod
    def from_settings(cls, settings: Settings) -> Recorder | None:
        """Create the recorder of the settings; None without ``RECORD_PATH``.

        Raises:
            TrafficError: the folder of ``RECORD_PATH`` does not exist.
        """
        return None if settings.recorder.path is None else cls(settings.recorder, settings.callers)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Recorder | None:
        """Create the recorder of the environment; None without ``RECORD_PATH``.

        Raises:
            ConfigError: the environment has faults.
            TrafficError: the folder of ``RECORD_PATH`` does not exist.
        """
        return cls.from_settings(Settings.from_env(environ))

    @property
    def counts(self) -> RecorderCounts:
        """Written and dropped requests, since this process began the file."""
        writer, end_reason = self.session.writer, self.session.end_reason
        if writer is None:
            return RecorderCounts(0, 0, end_reason)
        return RecorderCounts(writer.written, writer.dropped, writer.ended or end_reason)

    @property
    def file(self) -> Path | None:
        """The file of this process; None before it began."""
        return None if self.session.writer is None else self.session.writer.path

    def start(self) -> None:
        """Begin a recording, unless one is active, has reached a limit or has failed."""
        session = self.session
        with session.lock:
            if session.end_reason == "closed":
                session.end_reason, session.writer = "", None
        self.writer()

    def writer(self) -> Writer | None:
        """Return the writer of this process; None if the recording is over."""
        session = self.session
        writer = session.writer
        if writer is None and not session.end_reason:
            writer = self._open_once()
        return None if writer is None or session.end_reason or writer.ended else writer

    def serial(self) -> int:
        """Return the number of the next request."""
        self.session.serial += 1
        return self.session.serial

    def attach(self, app: object) -> None:
        """Begin as ``start`` does, on behalf of a recorded app."""
        self.start()
        self.session.apps.add(app)

    async def detach(self, app: object) -> None:
        """Detach an app; the last one closes the recording without blocking the event loop."""
        self.session.apps.discard(app)
        if self.session.apps:
            return
        writer = self._mark_closed()
        if writer is None:
            return
        writer.close(0.0)
        until_s = time.monotonic() + CLOSE_S
        left_s = CLOSE_S
        while not writer.done and left_s > 0.0:
            before_s = time.monotonic()
            await anyio.sleep(POLL_INTERVAL_S)
            now_s = time.monotonic()
            left_s = max(0.0, until_s - now_s)
            if now_s - before_s < POLL_INTERVAL_S / 2:  # virtual time: polling takes no real time
                break
        self._end(writer, left_s)

    def close(self) -> None:
        """End the recording and wait, at most 5 s, until it is written; ``start`` begins another."""
        writer = self._mark_closed()
        if writer is not None:
            self._end(writer, CLOSE_S)

    def _mark_closed(self) -> Writer | None:
        """Mark the recording as closed and return its writer; None without one."""
        session = self.session
        with session.lock:
            session.end_reason = session.end_reason or "closed"
            return session.writer

    def _end(self, writer: Writer, wait_s: float) -> None:
        writer.close(wait_s)
        session = self.session
        if writer is session.writer:  # else another recording has begun
            session.end_reason = writer.ended or session.end_reason
            atexit.unregister(self.close)

    def watch_client(self, throttles: Iterable[object]) -> None:
        """Disallow the header fields by which these throttles identify callers."""
        for throttle in throttles:
            if throttle not in self._known_throttles:
                self._known_throttles.add(throttle)
                self.redaction.disallow(_identity_header(throttle))

    def _open_once(self) -> Writer | None:
        session = self.session
        with session.lock:
            if session.writer is None and not session.end_reason:
                session.writer = self._new_writer()
            return session.writer

    def _new_writer(self) -> Writer | None:
        """Create a file and its writer. An error ends the recording, and requests are still served."""
        store = None
        try:
            store = RecordingFile(self.path, self.settings.max_bytes)
            writer = Writer(store, self._header().to_line(), self.settings, self.clock)
        except Exception as error:  # noqa: BLE001 - no thread can be started, no such path, or any other
            self.session.end_reason = "failed"
            if store is not None:
                store.abandon()
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            LOGGER.error("nothing is recorded, %s cannot be written: %s; requests go on", self.path, reason)
            return None
        LOGGER.info("recording to %s", store.path)
        atexit.register(self.close)
        return writer

    def _header(self) -> RecordingHeader:
        kept = {"body": self.body.value, "key": self.clients.key_kind}
        described = self.redaction.describe() | kept
        start = datetime.now(UTC).isoformat(timespec="microseconds")
        return RecordingHeader(
            start=start, made_by=__version__, redaction=described, sample=self.settings.sample
        )


def _writable(path: Path | None) -> Path:
    if path is None:
        raise TrafficError("RecorderSettings(path=...) names no file")
    if not path.parent.is_dir():
        raise TrafficError(f"{path.parent} is no folder, so {path.name} cannot be recorded there")
    return path


def _identity_header(throttle: object) -> str:
    """Return the header field by which a throttle identifies callers; empty if there is none."""
    callers = getattr(getattr(throttle, "settings", None), "callers", None)
    kind, _, name = str(getattr(callers, "identity", "")).partition(":")
    return name if kind == "header" else ""
