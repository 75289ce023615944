"""Fetches one page over HTTP within one deadline, from connecting to the last byte.

Timeouts of sockets bound one operation each: a server that sends a byte a second passes them for ever. So
each read gets the time that remains. Name resolution cannot be bounded: if it hangs, use an address in the
URL. No proxy variable reroutes a scrape, no redirect carries a password on, no connection stays open for a
fork.
"""

from __future__ import annotations

import base64
import functools
import io
import socket
import zlib
from collections.abc import Callable
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from ssl import create_default_context
from typing import TYPE_CHECKING, Final, cast

from autoglm_throttle.settings.problems import masked_url
from autoglm_throttle.types import ProviderUnavailable

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from autoglm_throttle.settings.groups.gpu import ScrapeUrl

# Maximum size of a page, inflated. The exporter of a large host sends 0.3 MB, an engine 0.1 MB.
MOST_BYTES: Final = 8 * 1024 * 1024
CHUNK_BYTES: Final = 64 * 1024
ACCEPT: Final = "text/plain;version=0.0.4,application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1"

STATUS_ADVICE: Final = {
    401: "it wants a login: http://user:password@host",
    403: "the login is not allowed to read it",
    404: "there is no such page: name its path in the URL",
}


class WrongStatusError(ProviderUnavailable):
    """The server answered with a status other than 200; ``start`` is the beginning of its body."""

    def __init__(self, status: int, start: bytes, advice: str = "") -> None:
        super().__init__(f"answers {status}" + (f" ({advice})" if advice else ""))
        self.status = status
        self.start = start


class Deadline:
    """Tracks the time that remains of one operation."""

    def __init__(self, timeout_s: float, clock: Callable[[], float]) -> None:
        self.timeout_s = timeout_s
        self._clock = clock
        self._until_s = clock() + timeout_s

    def remaining_s(self) -> float:
        """Return the remaining seconds, above 0; raise ``TimeoutError`` if the deadline has passed."""
        remaining_s = self._until_s - self._clock()
        if remaining_s <= 0.0:
            raise TimeoutError
        return remaining_s


def fetch(url: ScrapeUrl, target: str, deadline: Deadline) -> tuple[bytes, bool]:
    """Get the page at ``target`` (path and query), inflated, and whether it is OpenMetrics; blocks.

    The login of the URL is sent as basic authentication. It is in no text of an error: ``WrongStatusError``,
    or ``ProviderUnavailable`` for a page that is late, cut off, too large or unreadable.
    """
    try:
        with _connect(url, deadline) as plain:
            plain.settimeout(deadline.remaining_s())  # bounds the whole handshake
            with _context().wrap_socket(plain, server_hostname=url.host) if url.tls else plain as sock:
                sock.settimeout(deadline.remaining_s())
                connection = HTTPConnection(url.host, url.port)
                connection.sock = sock
                connection.request("GET", target, headers=_headers(url))
                # Only its makefile() is called.
                reader = cast("socket.socket", _DeadlineReader(sock, deadline))
                with closing(HTTPResponse(reader, method="GET")) as answer:
                    answer.begin()
                    return _page(answer, url)
    except TimeoutError:
        raise ProviderUnavailable(f"has not answered within {deadline.timeout_s:g} s") from None
    except OSError as error:
        raise ProviderUnavailable(f"cannot be reached: {error.strerror or error!s:.200}") from error
    except (HTTPException, ValueError, zlib.error) as error:
        raise ProviderUnavailable(f"returns an invalid response: {error!a:.200}") from error


def _headers(url: ScrapeUrl) -> dict[str, str]:
    """Build the request's header fields. No compression: it costs the engine more than it saves."""
    usual = url.port == (443 if url.tls else 80)
    headers = {
        "Host": url.place.rpartition(":")[0] if usual else url.place,
        "User-Agent": "autoglm-throttle",
        "Accept": ACCEPT,
        "Accept-Encoding": "identity",
        "Connection": "close",
    }
    if url.username is not None or url.password is not None:
        login = f"{url.username or ''}:{url.password or ''}".encode()
        headers["Authorization"] = "Basic " + base64.b64encode(login).decode("ascii")
    return headers


def _page(answer: HTTPResponse, url: ScrapeUrl) -> tuple[bytes, bool]:
    if answer.status != 200:
        start = b""
        with suppress(HTTPException):
            start = answer.read1(CHUNK_BYTES)
        raise WrongStatusError(answer.status, start, _advice(answer, url))
    openmetrics = "openmetrics-text" in answer.getheader("Content-Type", "").lower()
    body = _body(answer)
    # A length that was met, or the last chunk, proves that the last line is whole.
    if (answer.length is not None or answer.chunked) and not (openmetrics or body.endswith(b"\n")):
        body += b"\n"
    return body, openmetrics


def _advice(answer: HTTPResponse, url: ScrapeUrl) -> str:
    if 300 <= answer.status < 400:
        target = answer.getheader("Location", "")
        where = f": it points to {masked_url(target)!a:.200}" if target else ""
        return f"redirects are not followed{where}"
    if answer.status == 404 and url.path not in {"", "/"}:
        return "there is no such page: the path in the URL is another one"
    return STATUS_ADVICE.get(answer.status, "")


def _body(answer: HTTPResponse) -> bytes:
    coding = answer.getheader("Content-Encoding", "").strip().lower()
    if coding not in {"", "identity", "gzip", "x-gzip"}:
        raise ProviderUnavailable(f"compresses its answer as {coding!a:.40}; gzip or nothing is read")
    inflate = zlib.decompressobj(wbits=31) if "gzip" in coding else None
    body, received = bytearray(), 0
    while piece := answer.read1(CHUNK_BYTES):
        received += len(piece)
        # The limit of inflated bytes stops a decompression bomb before it is in memory.
        body += piece if inflate is None else inflate.decompress(piece, MOST_BYTES + 1 - len(body))
        if max(received, len(body)) > MOST_BYTES:
            raise ProviderUnavailable(f"answers more than {MOST_BYTES // 1024**2} MiB")
    # answer.length counts bytes announced and not received; http.client does not raise for read1().
    if answer.length or (inflate is not None and not inflate.eof):
        raise ProviderUnavailable("stops in the middle of its answer")
    return bytes(body)


class _DeadlineReader(io.RawIOBase):
    """Reads a socket; each read may take the time that remains of the deadline."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._sock = sock
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        self._sock.settimeout(self._deadline.remaining_s())
        return self._sock.recv_into(buffer)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)


# Made once: reading the machine's certificates takes some 20 ms.
_context = functools.cache(create_default_context)


def _connect(url: ScrapeUrl, deadline: Deadline) -> socket.socket:
    """Connect to the first address that answers; each may take an equal part of the remaining time."""
    addresses = socket.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
    failed = OSError("it has no address")
    for tried, (family, kind, protocol, _, address) in enumerate(addresses):
        plain = socket.socket(family, kind, protocol)
        try:
            # An unreachable address (such as IPv6 without a route) must leave time for the next one.
            plain.settimeout(deadline.remaining_s() / (len(addresses) - tried))
            plain.connect(address)
        except OSError as error:
            plain.close()
            failed = error
        else:
            return plain
    raise failed
