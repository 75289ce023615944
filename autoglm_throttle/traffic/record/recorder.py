"""What is recorded, for how long, and where to."""

from __future__ import annotations

import atexit
import os
import re
import secrets
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

import anyio

from autoglm_throttle.identity import Identity, ProxyChain
from autoglm_throttle.journal import LOGGER
from autoglm_throttle.model import Clock
from autoglm_throttle.settings import Settings
from autoglm_throttle.settings.record_fields import SMALLEST_BYTES
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.record.heading import Heading
from autoglm_throttle.traffic.record.judged import identity_header
from autoglm_throttle.traffic.record.redaction import Redaction
from autoglm_throttle.traffic.record.store import Store
from autoglm_throttle.traffic.record.writer import CLOSE_S, Writer
from autoglm_throttle.version import __version__

Bodies = Literal["hash", "none", "full"]

MAX_BYTES: Final = 256 * 1024 * 1024
"""About a million requests without bodies."""

MAX_S: Final = 3600.0
"""One hour."""

_CLIENT = re.compile(r"[0-9a-f]{16}")

TURN_S: Final = 0.01
"""How long the event loop goes on before an ending recording is looked at again."""


class Counts(NamedTuple):
    """What became of the requests that were to be recorded."""

    written: int
    """In the file, or about to be."""
    dropped: int
    """Left out because the writer could not keep up, or could not write."""
    ended: str
    """Why the recording is over: ``closed``, ``max_bytes``, ``max_s`` or ``failed``; else empty."""


class Recorder:
    """Writes what a `RecorderMiddleware` sees to a file, without what is secret in it.

    The file is made when the app starts, or at the first request: one for each process, never one that
    is there already. ``traffic.jsonl`` becomes ``traffic-2.jsonl`` for the second worker or after a restart.

    Args:
        path: the file; a name that ends in ``.gz`` is packed.
        allow_headers: header fields to keep besides content-type, content-length, accept, user-agent and
            the priority.
        keep_query: query parameters to keep; of all others only that they were there.
        mask_paths: patterns such as ``/users/{id}``, whose named segments are masked in every path that
            begins so, and ``/reset/*``.
        body: ``hash`` keeps length and SHA-256 of request bodies, ``none`` the length, ``full`` the body
            itself up to 64 KiB.
        sample: share of the clients, 0 to 1, of which everything is kept.
        secret: key of the hashes that stand for clients where no throttle has named them; None: a random
            one for this recording, so that they compare with no other.
        max_bytes: size at which the recording ends, at least 4096.
        max_s: seconds after which it ends, above 0.
        clock: monotonic seconds.
        client_header: a header whose value already stands for the client, as a replay sends it; None: none.
        priority_header: where clients state their priority.
        identity_headers: header fields that say who asks; they can never be allowed. Those of the throttles
            that it records are left out besides.

    Raises:
        TrafficError: an argument is out of range, or the folder of ``path`` is not there.
    """

    def __init__(  # noqa: PLR0913 - one argument for each thing that a recording can be told
        self,
        path: Path | str,
        *,
        allow_headers: Iterable[str] = (),
        keep_query: Iterable[str] = (),
        mask_paths: Iterable[str] = (),
        body: Bodies = "hash",
        sample: float = 1.0,
        secret: bytes | str | None = None,
        max_bytes: int = MAX_BYTES,
        max_s: float = MAX_S,
        clock: Clock = time.monotonic,
        client_header: str | None = None,
        priority_header: str = "x-priority",
        identity_headers: Iterable[str] = (),
    ) -> None:
        self.path: Path = Path(path)
        """As it was asked for; ``file`` says where it is written."""
        self.body: Bodies = body
        own = [] if client_header is None else [client_header]
        self.redaction: Redaction = Redaction(
            allow_headers=allow_headers,
            keep_query=keep_query,
            mask_paths=mask_paths,
            priority_header=priority_header,
            identity_headers=[*identity_headers, *own],
        )
        self._check(sample, max_bytes, max_s)
        self.sample: float = sample
        self.clock: Clock = clock
        self._max_bytes = max_bytes
        self._max_s = max_s
        self._client_header = b"" if client_header is None else client_header.strip().lower().encode()
        self._key = "random" if secret is None else "secret"
        key = secrets.token_bytes(32) if secret is None else secret
        self._identity = Identity(key.encode() if isinstance(key, str) else key)
        self._peers = ProxyChain()
        self._lock = threading.Lock()
        self._writer: Writer | None = None
        self._pid = os.getpid()
        self._over = ""
        self._serial = -1
        self._apps: set[object] = set()
        self._heeded: set[object] = set()

    def _check(self, sample: float, max_bytes: int, max_s: float) -> None:
        if self.body not in get_args(Bodies):
            raise TrafficError(f"body must be one of {', '.join(get_args(Bodies))}, not {self.body!r}")
        if not 0.0 <= sample <= 1.0:
            raise TrafficError(f"sample must be a share from 0 to 1, not {sample!r}")
        if max_bytes < SMALLEST_BYTES:
            raise TrafficError(f"max_bytes must be at least {SMALLEST_BYTES}, not {max_bytes!r}")
        if not max_s > 0.0:
            raise TrafficError(f"max_s must be above 0, not {max_s!r}")
        if not self.path.parent.is_dir():
            raise TrafficError(
                f"{self.path.parent} is no folder, so {self.path.name} cannot be recorded there"
            )

    @classmethod
    def from_settings(cls, settings: Settings) -> Recorder | None:
        """The recorder that the settings ask for; None without ``RECORD_PATH``.

        Raises:
            TrafficError: the folder of ``RECORD_PATH`` is not there.
        """
        if settings.record_path is None:
            return None
        kind, _, name = settings.identity.partition(":")
        return cls(
            settings.record_path,
            allow_headers=settings.record_headers,
            keep_query=settings.record_query,
            mask_paths=settings.record_mask_paths,
            body=settings.record_body.value,
            sample=settings.record_sample,
            secret=None if settings.key_secret is None else settings.key_secret.get_secret_value(),
            max_bytes=settings.record_max_bytes,
            max_s=settings.record_max_s,
            priority_header=settings.priority_header,
            identity_headers=[name] if kind == "header" else [],
        )

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Recorder | None:
        """The recorder that the environment asks for; None without ``RECORD_PATH``.

        Raises:
            ConfigError: the environment has faults.
            TrafficError: the folder of ``RECORD_PATH`` is not there.
        """
        return cls.from_settings(Settings.from_env(environ))

    @property
    def counts(self) -> Counts:
        """What became of the requests so far, since this process began the file."""
        writer = self._writer
        if writer is None:
            return Counts(0, 0, self._over)
        return Counts(writer.written, writer.dropped, writer.ended or self._over)

    @property
    def file(self) -> Path | None:
        """The file that this process writes, or has written; None before it began."""
        return None if self._writer is None else self._writer.path

    def start(self) -> None:
        """Begin a recording, unless one is under way, has reached a limit or has failed."""
        with self._lock:
            if self._over == "closed":
                self._over, self._writer = "", None
        self.writer()

    def writer(self) -> Writer | None:
        """Who writes for this process; None if the recording is over."""
        if self._pid != os.getpid():
            self._begin_anew()
        writer = self._writer
        if writer is None and not self._over:
            writer = self._open()
        return None if writer is None or self._over or writer.ended else writer

    def serial(self) -> int:
        """The number of the next request."""
        self._serial += 1
        return self._serial

    def enter(self, app: object) -> None:
        """Begin as ``start`` does, on behalf of one of the apps that are recorded."""
        self.start()
        self._apps.add(app)

    async def leave(self, app: object) -> None:
        """An app has ended; the last one that does closes the recording, while the event loop goes on."""
        self._apps.discard(app)
        if self._apps:
            return
        writer = self._ending()
        if writer is None:
            return
        writer.end()
        until_s = time.monotonic() + CLOSE_S
        left_s = CLOSE_S
        while not writer.done and left_s > 0.0:
            before_s = time.monotonic()
            await anyio.sleep(TURN_S)
            now_s = time.monotonic()
            left_s = max(0.0, until_s - now_s)
            if now_s - before_s < TURN_S / 2:  # in virtual time nobody else waits
                break
        self._end(writer, left_s)

    def close(self) -> None:
        """End the recording and wait, at most 5 s, until it is written; ``start`` begins another."""
        writer = self._ending()
        if writer is not None:
            self._end(writer, CLOSE_S)

    def _ending(self) -> Writer | None:
        """Who writes no longer; None if nobody did, or only the process this one was forked from."""
        if self._pid != os.getpid():
            return None
        with self._lock:
            self._over = self._over or "closed"
            return self._writer

    def _end(self, writer: Writer, wait_s: float) -> None:
        writer.close(wait_s)
        if writer is self._writer:  # else another recording has begun
            self._over = writer.ended or self._over
            atexit.unregister(self.close)

    def heed(self, throttles: Iterable[object]) -> None:
        """Keep no header field by which one of these throttles knows callers."""
        for throttle in throttles:
            if throttle not in self._heeded:
                self._heeded.add(throttle)
                self.redaction.leave_out(identity_header(throttle))

    def client(self, stated: str, peer: Sequence[Any] | None, headers: Iterable[Sequence[bytes]]) -> str:
        """The 16 hex digits that stand for who asked.

        Args:
            stated: what the throttle calls the user; empty if none did.
            peer: address and port, as ASGI has them.
            headers: of the request.
        """
        if self._client_header:
            for name, value in headers:
                if name == self._client_header:
                    text = value.decode("latin-1")
                    return text if _CLIENT.fullmatch(text) else self._identity.of("client", text)
        if stated:
            return self._identity.text(stated)
        return self._identity.of("address", self._peers.group(str(peer[0]) if peer else ""))

    def keeps(self, client: str) -> bool:
        """Whether a client is among those that are recorded."""
        return self.sample >= 1.0 or int(client[:8], 16) / 2**32 < self.sample

    def _begin_anew(self) -> None:
        """In a forked child: forget the parent's file and thread, which are not here."""
        self._lock = threading.Lock()
        self._writer = None
        self._over = ""
        self._serial = -1
        self._apps = set()
        self._pid = os.getpid()

    def _open(self) -> Writer | None:
        with self._lock:
            if self._writer is None and not self._over:
                self._writer = self._begun()
            return self._writer

    def _begun(self) -> Writer | None:
        """A new file and its writer. Whatever fails costs the recording, never a request."""
        store = None
        try:
            store = Store(self.path, self._max_bytes)
            writer = Writer(store, self._heading().to_line(), self._max_s, self.clock, self.sample)
        except Exception as error:  # noqa: BLE001 - no thread can be started, no such path, or any other
            self._over = "failed"
            if store is not None:
                store.abandon()
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            LOGGER.error("nothing is recorded, %s cannot be written: %s; requests go on", self.path, why)
            return None
        LOGGER.info("recording to %s", store.path)
        atexit.register(self.close)
        return writer

    def _heading(self) -> Heading:
        described = self.redaction.described() | {"body": self.body, "key": self._key}
        start = datetime.now(UTC).isoformat(timespec="microseconds")
        return Heading(start=start, made_by=__version__, redaction=described, sample=self.sample)
