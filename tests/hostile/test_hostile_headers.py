"""Abused header fields: too many, duplicate, malformed and smuggled ones."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator

import pytest

from autoglm_throttle import Priority
from autoglm_throttle.asgi.callers import RequestClassifier
from autoglm_throttle.asgi.routes import RouteTable
from autoglm_throttle.settings import Settings
from tests.asgi.run_app import http_scope
from tests.hostile.attacks import Attack
from tests.hostile.limited_app import LIMIT, Fields, LimitedApp
from tests.hostile.raw_http import answer, exchange, opened, request
from tests.hostile.test_hostile_clients import ALL_SERVED, NOTHING, SERVERS, served, settled
from tests.servers.server import Server, cases

SLO_S = 30.0


@pytest.fixture
def odd() -> list[str]:
    return []


@pytest.fixture
def classifier(odd: list[str]) -> RequestClassifier:
    settings = Settings(deadline_header="x-deadline", slo_s=SLO_S, quotas=True, precisions="fp16,int8")
    return RequestClassifier(settings, RouteTable(), record_oddity=odd.append)


NO_DEADLINES = (
    *(b"nan", b"NaN", b"-nan", b"inf", b"-inf", b"Infinity", b"1e400", b"-1", b"-0", b"0", b"0.0", b"1e-400"),
    *(b"", b" ", b"s", b"1s2s", b"1 2", b"0x10", b"1/0", b"one", b"1,000", b"\xd9\xa1", b"1\0", b"1\r\n2"),
    *(
        b"9" * 4301,
        b"9" * 8192,
        b"9" * 65_536,
        b"1" + b"0" * 400,
        b"1e999999999",
        b"." * 8000,
        b"--1",
        b"+-1",
    ),
    *(b"+-1", b"1_0_", b"[1]", b"1;q=1", b'"1"', b"2026-01-01", b"1e1e1", b"0." + b"0" * 8000 + b"1"),
)
DEADLINES = (b"1", b"2.5", b"250ms", b"1e1", b"1m", b"1h", b"1e9", b"1e308", b"1e-300", b"+1")


@pytest.mark.parametrize("twice", [False, True], ids=["one", "two"])
def test_malformed_deadline_leaves_the_objective(
    attack: Attack, classifier: RequestClassifier, odd: list[str], twice: bool
) -> None:
    with attack("headers: NaN, infinite, negative and huge deadlines", times=len(NO_DEADLINES)):
        for value in NO_DEADLINES:
            fields = [(b"x-deadline", value)] * (1 + twice)
            demand = classifier.demand(http_scope(headers=fields))
            assert demand.slo_s is None or 0.0 < demand.slo_s <= SLO_S, value
            assert "malformed_scope" not in odd, value
        assert odd.count("malformed_deadline") >= len(NO_DEADLINES) - 2, "an empty field is none"


def test_deadline_never_extends_the_objective(attack: Attack, classifier: RequestClassifier) -> None:
    with attack("headers: deadlines beyond the objective", times=len(DEADLINES)):
        for value in DEADLINES:
            slo_s = classifier.demand(http_scope(headers=[(b"x-deadline", value)])).slo_s
            assert slo_s is not None
            assert 0.0 < slo_s <= SLO_S
            assert math.isfinite(slo_s)


PRIORITIES = (
    *(
        b"high",
        b"HIGH",
        b" high",
        b"1",
        b"0",
        b"-1",
        b"+1",
        b"01",
        b"1.0",
        b"high,low",
        b"high;q=1",
        b"hi\0gh",
    ),
    *(
        b"nan",
        b"9" * 8000,
        b"u=0",
        b"u=1, i",
        b"urgent",
        b"\xef\xbb\xbfhigh",
        b"\xd1\x85",
        b"high\r\nlow",
        b"",
    ),
)


@pytest.mark.parametrize("value", PRIORITIES)
def test_stated_priority_is_never_higher_than_the_default(attack: Attack, value: bytes) -> None:
    pairs: list[Fields] = [
        [(b"x-priority", value)],
        [(b"x-priority", b"low"), (b"x-priority", value)],
        [(b"x-priority", value), (b"x-priority", b"high")],
        [(b"x-priority", value)] * 50,
        [(b"X-Priority", value), (b"priority", value)],
    ]
    with attack("headers: forged and duplicate priorities", times=len(pairs)):
        plain = RequestClassifier(Settings(), RouteTable())
        for fields in pairs:
            assert plain.demand(http_scope(headers=fields)).priority >= Priority.MID, fields


def test_precision_field_names_only_known_variants(attack: Attack, classifier: RequestClassifier) -> None:
    values = (b"FP16", b"int8", b"fp64", b"", b"fp16,int8", b"\xff", b"x" * 65_536, b"../fp16", b"fp16\0")
    with attack("headers: invented precisions", times=len(values)):
        found = {classifier.demand(http_scope(headers=[(b"x-precision", v)])).precision for v in values}
        assert found == {"", "fp16", "int8"}


MASSES: dict[str, Callable[[], Fields]] = {
    "5,000 other fields": lambda: [(b"x-%d" % n, b"v") for n in range(5000)],
    "5,000 times one name": lambda: [(b"x-other", b"v%d" % n) for n in range(5000)],
    "5,000 keys": lambda: [(b"x-api-key", b"k" * 8193)] * 5000,
    "5,000 priorities": lambda: [(b"x-priority", b"%d" % n) for n in range(5000)],
    "5,000 chains": lambda: [(b"x-forwarded-for", b"198.18.0.1, " * 50)] * 5000,
    "5,000 lengths": lambda: [(b"content-length", b"%d" % n) for n in range(5000)],
    "a field of 4 MiB": lambda: [(b"x-other", b"v" * (4 << 20))],
    "a chain of 4 MiB": lambda: [(b"x-forwarded-for", b"," * (4 << 20))],
    "a name of 4 MiB": lambda: [(b"n" * (4 << 20), b"v")],
}


@pytest.mark.parametrize("mass", MASSES.values(), ids=MASSES)
def test_masses_of_fields_are_limited_as_others(attack: Attack, mass: Callable[[], Fields]) -> None:
    with attack("headers: thousands of fields, and fields of megabytes", times=LIMIT + 3):
        app = LimitedApp(identity="header:x-api-key", trusted_proxies="198.51.100.0/24")
        assert app.admitted_fields([mass()] * (LIMIT + 3)) == LIMIT
        assert app.users == 1
        assert not app.oddities.get("malformed_scope", 0)


@pytest.fixture(params=cases(SERVERS), scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    running = Server(*request.param)
    yield running
    running.stop()


WIRE_MASSES = {
    "1,000 fields": b"".join(b"X-%d: v\r\n" % n for n in range(1000)),
    "20,000 fields": b"".join(b"X-%d: v\r\n" % n for n in range(20_000)),
    "a field of 1 MiB": b"X-Other: " + b"v" * (1 << 20) + b"\r\n",
    "a name of 100 KiB": b"n" * 100_000 + b": v\r\n",
    "1,000 cookies": b"Cookie: a=b\r\n" * 1000,
}


@pytest.mark.server
@pytest.mark.parametrize("kind", WIRE_MASSES)
def test_server_survives_masses_of_fields(attack: Attack, server: Server, kind: str) -> None:
    with attack("headers: masses of fields over the wire"):
        got = exchange(server.port, request("/brief", fields=WIRE_MASSES[kind]))
        assert got.status in {0, 200, 400, 413, 431}
        assert served(server) == ALL_SERVED
        assert settled(server) == NOTHING


ODD_FIELDS = {
    "obs-fold of a priority": b"X-Priority: low\r\n high\r\n",
    "obs-fold of a deadline": b"X-Deadline: 1\r\n 000\r\n",
    "a blank before the colon": b"X-Priority : high\r\n",
    "a blank before the name": b" X-Priority: high\r\n",
    "a bare CR": b"X-Priority: low\rX-Priority: high\r\n",
    "a bare LF": b"X-Priority: low\nX-Priority: high\r\n",
    "a NUL": b"X-Priority: hi\0gh\r\n",
    "no colon": b"X-Priority\r\n",
    "no name": b": high\r\n",
    "an underscore": b"X_Priority: high\r\n",
    "non-ASCII bytes": b"X-Priority: \xff\xfe\r\n",
    "duplicate priorities": b"X-Priority: high\r\nX-PRIORITY: high\r\nx-priority: low\r\n",
    "duplicate deadlines": b"X-Deadline: 1e400\r\nX-DEADLINE: nan\r\n",
    "a second Host": b"Host: other\r\n",
    "no version": b"",
}


@pytest.mark.server
@pytest.mark.parametrize("kind", ODD_FIELDS)
def test_odd_fields_raise_neither_priority_nor_objective(attack: Attack, server: Server, kind: str) -> None:
    with attack("headers: obs-fold and other odd lines"):
        got = exchange(server.port, request("/brief", fields=ODD_FIELDS[kind]))
        assert got.status in {0, 200, 400}
        if got.status == 200:
            report = got.report
            assert report["priority"] in {"mid", "low"}
            assert report["slo_s"] is None or 0.0 < report["slo_s"] <= server.state()["slo_s"]
        assert settled(server) == NOTHING


INNER = b"POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"
CHUNKS = b"0\r\n\r\n"
SMUGGLED = {
    "CL and TE": b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n" % len(CHUNKS + INNER) + CHUNKS,
    "TE and CL": b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n" + CHUNKS,
    "two lengths": b"Content-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(INNER),
    "two lengths, reversed": b"Content-Length: %d\r\nContent-Length: 0\r\n\r\n" % len(INNER),
    "a list of lengths": b"Content-Length: 0, %d\r\n\r\n" % len(INNER),
    "+ before the length": b"Content-Length: +0\r\n\r\n",
    "a negative length": b"Content-Length: -1\r\n\r\n",
    "a hexadecimal length": b"Content-Length: 0x%x\r\n\r\n" % len(INNER),
    "zeros before the length": b"Content-Length: 000\r\n\r\n",
    "blanks around the length": b"Content-Length: \t0 \t\r\n\r\n",
    "an unknown coding": b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNKS,
    "two codings": b"Transfer-Encoding: chunked, identity\r\n\r\n" + CHUNKS,
    "two fields of codings": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n" + CHUNKS,
    "a blank before the colon": b"Transfer-Encoding : chunked\r\n\r\n" + CHUNKS,
    "an obs-fold": b"Transfer-Encoding:\r\n chunked\r\n\r\n" + CHUNKS,
    "a vertical tab": b"Transfer-Encoding:\x0bchunked\r\n\r\n" + CHUNKS,
    "a bare LF": b"Content-Length: 0\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS,
    "a chunk extension": b"Transfer-Encoding: chunked\r\n\r\n3;x=\n\r\nabc\r\n" + CHUNKS,
    "a chunk of -1": b"Transfer-Encoding: chunked\r\n\r\n-1\r\nabc\r\n" + CHUNKS,
    "a chunk of 0x3": b"Transfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n" + CHUNKS,
    "a huge chunk": b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\nabc\r\n" + CHUNKS,
    "trailer fields": b"Transfer-Encoding: chunked\r\n\r\n0\r\nX-Priority: high\r\nContent-Length: 3\r\n\r\n",
    "a body of HTTP/0.9": b"\r\n",
}
UNENDING = "a huge chunk"
"""Some servers wait for its end, so no answer comes."""

FIRST = (b"POST /upload HTTP/1.1\r\nHost: a\r\n", b"GET /brief HTTP/1.1\r\nHost: a\r\n")
LAST = b"GET /brief HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


@pytest.mark.server
@pytest.mark.parametrize("kind", SMUGGLED)
def test_smuggled_requests_are_counted_each(attack: Attack, server: Server, kind: str) -> None:
    """A server may see one request or three: each one that reaches the app was admitted."""
    with attack("headers: smuggling pairs", times=len(FIRST)):
        before = server.state()
        for first in FIRST:
            with opened(server.port) as connection, contextlib.suppress(OSError):
                connection.sendall(first + SMUGGLED[kind] + INNER + LAST)
                if kind != UNENDING:
                    answer(connection)
        assert settled(server) == NOTHING
        after = server.state()
        assert after["calls"] - before["calls"] <= after["admitted"] - before["admitted"]
        assert served(server) == ALL_SERVED
