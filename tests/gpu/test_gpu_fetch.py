"""One page over HTTP: from servers that hang, send slowly, state wrong lengths and die."""

from __future__ import annotations

import base64
import contextlib
import gzip
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoglm_throttle.gpu.scrape.http import MOST_BYTES, Deadline, WrongStatusError, _context, fetch
from autoglm_throttle.settings.groups.gpu import ScrapeUrl, parse_items
from autoglm_throttle.types import ProviderUnavailable
from tests.gpu.metrics_server import BadServer, page, raw, served

TLS = Path(__file__).parents[1] / "store" / "tls"

SHORT_S = 0.3
LATE_S = 30.0
"""Tolerated delay after the deadline on a busy machine; the servers take a minute."""

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"


@pytest.fixture
def server() -> Iterator[BadServer]:
    with served() as one:
        yield one


def scrape_url(text: str) -> ScrapeUrl:
    ((_, url, _),) = parse_items([f"dcgm:{text}"])
    assert url is not None
    return url


def get(
    server: BadServer, timeout_s: float = 60.0, login: str = "", path: str = "/metrics"
) -> tuple[bytes, bool]:
    return fetch(scrape_url(server.url(login=login)), path, Deadline(timeout_s, time.monotonic))


def test_a_page(server: BadServer) -> None:
    server.answer = page(b"a 1\n")
    assert get(server) == (b"a 1\n", False)
    (request,) = server.requests
    assert request.startswith("GET /metrics HTTP/1.1\r\n")
    assert f"Host: 127.0.0.1:{server.port}\r\n" in request
    assert "Authorization" not in request


def test_openmetrics_is_detected(server: BadServer) -> None:
    server.answer = page(
        b"# EOF\n", "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8"
    )
    assert get(server)[1]


def test_a_page_in_chunks_and_one_without_length(server: BadServer) -> None:
    server.answer = raw(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\na \r\n2\r\n1\n\r\n0\r\n\r\n"
    )
    assert get(server)[0] == b"a 1\n"
    server.answer = raw(b"HTTP/1.0 200 OK\r\n\r\na 1\n")
    assert get(server)[0] == b"a 1\n"


def test_login_is_sent_and_never_shown(server: BadServer) -> None:
    for answer in (page(b"", status="401 Unauthorized"), raw(b"nonsense\r\n\r\n")):
        server.answer = answer
        with pytest.raises(ProviderUnavailable) as caught:
            get(server, login="me:p%40ss%2Fword@")
        assert "p@ss" not in str(caught.value)
    expected = base64.b64encode(b"me:p@ss/word").decode()
    assert f"Authorization: Basic {expected}\r\n" in server.requests[0]
    server.answer = page(b"")
    get(server, login="me@")
    assert f"Authorization: Basic {base64.b64encode(b'me:').decode()}\r\n" in server.requests[-1]


@pytest.mark.parametrize(
    ("status", "hint"),
    [
        ("500 Oops", "answers 500"),
        ("204 No Content", "answers 204"),
        ("401 No", "user:password@"),
        ("404 No", "name its path"),
        ("302 Found", "redirects are not followed: it points to 'http://127.0.0.1:1/'"),
    ],
)
def test_only_200_will_do(server: BadServer, status: str, hint: str) -> None:
    server.answer = page(b"why", "Location: http://127.0.0.1:1/", status=status)
    with pytest.raises(WrongStatusError, match=hint) as caught:
        get(server)
    assert caught.value.status == int(status[:3])
    assert caught.value.start == (b"" if status.startswith("204") else b"why")
    assert len(server.requests) == 1


def test_status_error_has_a_hint(server: BadServer) -> None:
    server.answer = page(b"", status="404 No")
    url = scrape_url(server.url("/other"))
    with pytest.raises(WrongStatusError, match="the path in the URL is another one"):
        fetch(url, "/other", Deadline(60, time.monotonic))
    server.answer = page(b"", status="307 Elsewhere")
    with pytest.raises(WrongStatusError, match=r"\(redirects are not followed\)"):
        get(server)
    server.answer = page(b"", "Location: https://me:hunter2@there/\x1b", status="307 Elsewhere")
    with pytest.raises(WrongStatusError, match=r"points to 'https://me:\*+@there/\\x1b'") as caught:
        get(server)
    assert "hunter2" not in str(caught.value)


def hang(server: BadServer) -> Callable[[socket.socket, str], None]:
    return lambda connection, _: (server.over.wait(60), None)[1]


def drip(server: BadServer, data: bytes) -> Callable[[socket.socket, str], None]:
    def answer(connection: socket.socket, _: str) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(len(data)):
            connection.sendall(data[number : number + 1])
            if server.over.wait(0.01):
                return

    return answer


def drip_body(server: BadServer) -> Callable[[socket.socket, str], None]:
    def answer(connection: socket.socket, request: str) -> None:
        connection.sendall(HEAD)
        drip(server, b"x" * 100_000)(connection, request)

    return answer


def drip_chunks(server: BadServer) -> Callable[[socket.socket, str], None]:
    def answer(connection: socket.socket, request: str) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        drip(server, b"1\r\nx\r\n" * 20_000)(connection, request)

    return answer


@pytest.mark.parametrize(
    "slow",
    [
        hang,
        lambda server: drip(server, HEAD + b"x" * 6000),
        lambda server: drip(server, b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
        drip_body,
        drip_chunks,
        lambda server: (
            lambda connection, request: (connection.sendall(HEAD), hang(server)(connection, request))[1]
        ),
    ],
    ids=["hang", "drip head", "drip continue", "drip body", "drip chunks", "hang in body"],
)
def test_nothing_outlasts_the_deadline(
    server: BadServer, slow: Callable[[BadServer], Callable[[socket.socket, str], None]]
) -> None:
    server.answer = slow(server)
    started = time.monotonic()
    with pytest.raises(ProviderUnavailable, match=r"has not answered within 0\.3 s"):
        get(server, SHORT_S)
    assert SHORT_S - 0.05 <= time.monotonic() - started <= SHORT_S + LATE_S


@contextlib.contextmanager
def deaf() -> Iterator[int]:
    """Provide a port with a full connection queue, which accepts none."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, contextlib.ExitStack() as waiting:
        for _ in range(8):
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


def test_a_server_that_does_not_take_the_connection() -> None:
    with deaf() as port:
        started = time.monotonic()
        with pytest.raises(ProviderUnavailable, match="has not answered"):
            fetch(scrape_url(f"http://127.0.0.1:{port}/"), "/", Deadline(SHORT_S, time.monotonic))
        assert time.monotonic() - started <= SHORT_S + LATE_S


def test_a_tls_handshake_that_hangs() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = scrape_url(f"https://127.0.0.1:{mute.getsockname()[1]}/")
        started = time.monotonic()
        with pytest.raises(ProviderUnavailable, match="has not answered"):
            fetch(url, "/", Deadline(SHORT_S, time.monotonic))
        assert time.monotonic() - started <= SHORT_S + LATE_S


class Secured:
    """Provide a TLS server for one connection."""

    def __init__(self, answer: bytes, hold: threading.Event) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = scrape_url(f"https://127.0.0.1:{self.listener.getsockname()[1]}/")
        self._answer = answer
        self._hold = hold
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(TLS / "server.pem")
        plain, _ = self.listener.accept()
        with contextlib.suppress(OSError), context.wrap_socket(plain, server_side=True) as connection:
            connection.recv(65536)
            for number in range(len(self._answer)):
                connection.sendall(self._answer[number : number + 1])
                if self._hold.wait(0.002):
                    return

    def close(self) -> None:
        self._hold.set()
        self.listener.close()
        self.thread.join(60)


def test_tls_is_read_and_bounded_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "authority.pem"))
    _context.cache_clear()
    hold = threading.Event()
    whole = Secured(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\na 1\n", hold)
    assert fetch(whole.url, "/", Deadline(60, time.monotonic))[0] == b"a 1\n"
    endless = Secured(HEAD + b"x" * 100_000, hold)
    started = time.monotonic()
    with pytest.raises(ProviderUnavailable, match="has not answered"):
        fetch(endless.url, "/", Deadline(SHORT_S, time.monotonic))
    assert time.monotonic() - started <= SHORT_S + LATE_S
    monkeypatch.delenv("SSL_CERT_FILE")
    _context.cache_clear()
    for one in (whole, endless):
        one.close()
    distrusted = Secured(b"", threading.Event())
    with pytest.raises(ProviderUnavailable, match=r"cannot be reached.*verify failed"):
        fetch(distrusted.url, "/", Deadline(60, time.monotonic))
    distrusted.close()


def test_a_server_that_speaks_no_tls(server: BadServer) -> None:
    server.answer = page(b"")
    with socket.create_server(("127.0.0.1", 0)) as plain:

        def answer() -> None:
            connection, _ = plain.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ProviderUnavailable, match="cannot be reached"):
            fetch(
                scrape_url(f"https://127.0.0.1:{plain.getsockname()[1]}/"), "/", Deadline(5, time.monotonic)
            )
        thread.join(60)


def test_passed_deadline_sends_no_request(server: BadServer) -> None:
    times = iter([0.0, 5.0, 5.0, 5.0])
    with pytest.raises(ProviderUnavailable, match="has not answered within 2 s"):
        fetch(scrape_url(server.url()), "/", Deadline(2.0, lambda: next(times)))
    assert server.requests == []


@pytest.mark.parametrize("compressed", [False, True])
def test_page_of_nine_mib_is_rejected(server: BadServer, compressed: bool) -> None:
    body = b"a" * (MOST_BYTES + 1)
    server.answer = page(gzip.compress(body), "Content-Encoding: gzip") if compressed else page(body)
    with pytest.raises(ProviderUnavailable, match="more than 8 MiB"):
        get(server)


def test_a_page_of_eight_mib_is_read(server: BadServer) -> None:
    body = b"a" * (MOST_BYTES - 1) + b"\n"
    server.answer = page(gzip.compress(body), "Content-Encoding: GZip")
    assert get(server)[0] == body


def test_a_page_that_inflates_to_nothing_is_bounded_as_well(server: BadServer) -> None:
    empty_blocks = gzip.compress(b"")[:10] + b"\x00\x00\x00\xff\xff" * (MOST_BYTES // 5 + 10)
    server.answer = page(empty_blocks, "Content-Encoding: gzip")
    with pytest.raises(ProviderUnavailable, match="more than 8 MiB"):
        get(server)


def test_an_unknown_compression_is_named(server: BadServer) -> None:
    server.answer = page(b"x", "Content-Encoding: br")
    with pytest.raises(ProviderUnavailable, match="compresses its answer as 'br'"):
        get(server)


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (page(b"a 9", length=4), "stops in the middle"),
        (page(gzip.compress(b"a 9\n" * 99)[:-9], "Content-Encoding: gzip"), "stops in the middle"),
        (page(b"a 1\n", "Content-Encoding: gzip"), "returns an invalid response"),
        (
            raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\na 1"),
            "returns an invalid response",
        ),
        (raw(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"), "returns an invalid response"),
        (raw(b""), "cannot be reached|returns an invalid response"),
        (raw(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200), "returns an invalid response"),
        (raw(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000), "returns an invalid response"),
    ],
)
def test_incomplete_response_is_rejected(server: BadServer, answer: Callable[..., None], match: str) -> None:
    server.answer = answer
    with pytest.raises(ProviderUnavailable, match=match) as caught:
        get(server)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 260


def test_a_server_that_dies_and_comes_back(server: BadServer) -> None:
    server.answer = page(b"a 1\n")
    assert get(server)[0]
    server.down()
    with pytest.raises(ProviderUnavailable, match="cannot be reached"):
        get(server)
    server.up()
    assert get(server)[0]


def test_unknown_host_is_unavailable() -> None:
    for host in ("no-such-host.invalid", "x" * 70 + ".invalid"):
        with pytest.raises(ProviderUnavailable):
            fetch(scrape_url(f"http://{host}/"), "/", Deadline(60, time.monotonic))


def test_no_proxy_is_used(server: BadServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    server.answer = page(b"a 1\n")
    assert get(server)[0] == b"a 1\n"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300), headed=st.booleans())
def test_any_bytes_are_a_page_or_unavailable(server: BadServer, data: bytes, headed: bool) -> None:
    server.answer = raw((b"HTTP/1.1 200 OK\r\n" if headed else b"") + data)
    try:
        answer = get(server, 5.0)
    except ProviderUnavailable:
        return
    assert isinstance(answer[0], bytes)


def address(port: int) -> tuple[object, ...]:
    return (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port))


def test_the_second_address_is_tried_in_time(server: BadServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.answer = page(b"a 1\n")
    with deaf() as port:
        found = [address(port), address(server.port)]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: found)
        assert get(server, 1.0)[0] == b"a 1\n"
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: [])
    with pytest.raises(ProviderUnavailable, match="it has no address"):
        get(server)
