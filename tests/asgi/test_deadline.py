"""Deadlines: the objective of the service or route, and a header that may only shorten them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle import Permit
from autoglm_throttle.asgi import ThrottleMiddleware
from autoglm_throttle.asgi.callers import RequestClassifier
from autoglm_throttle.asgi.routes import RouteTable
from autoglm_throttle.asgi.scope import verdicts_of
from autoglm_throttle.limiting.concurrency_limiter import Ticket
from autoglm_throttle.settings import RoutePolicy, Settings
from autoglm_throttle.types import Demand, Priority, WebSocketMode
from tests.asgi.queued_clients import with_places
from tests.asgi.run_app import connect, never, request
from tests.asgi.scopes import Headers, make, scope

HEADER = b"x-deadline"
ROUTES = (RoutePolicy("/quick", slo_s=0.5), RoutePolicy("/slow", slo_s=30.0), RoutePolicy("/plain", cost=2.0))
OBJECTIVES: dict[str, float | None] = {"/": None, "/quick": 0.5, "/slow": 30.0, "/plain": None}
SLO_S = 2.0


def callers(hints: list[str] | None = None, **more: Any) -> RequestClassifier:
    return make(None, hints, **{"deadline_header": "X-Deadline", "slo_s": SLO_S, "routes": ROUTES, **more})


def objective(stated: bytes, path: str = "/", hints: list[str] | None = None) -> float | None:
    return callers(hints).demand(scope([(HEADER, stated)], path=path)).slo_s


@pytest.mark.parametrize("path", OBJECTIVES)
def test_default_deadline_is_objective_of_route_or_service(path: str) -> None:
    assert callers().demand(scope(path=path)).slo_s == OBJECTIVES[path]


@pytest.mark.parametrize(
    ("stated", "path", "slo_s"),
    [
        (b"1", "/", 1.0),
        (b"250ms", "/", 0.25),
        (b" 1.5 s ", "/", 1.5),
        (b"2", "/", 2.0),
        (b"2.1", "/", 2.0),
        (b"1h", "/", 2.0),
        (b"1", "/quick", 0.5),
        (b"0.1", "/quick", 0.1),
        (b"10", "/slow", 10.0),
        (b"31", "/slow", 30.0),
        (b"1.9", "/plain", 1.9),
        (b"1e-9", "/", 1e-9),
    ],
)
def test_a_header_shortens_and_never_lengthens(stated: bytes, path: str, slo_s: float) -> None:
    hints: list[str] = []
    assert objective(stated, path, hints) == slo_s
    assert hints == []


MALFORMED = (
    *(b"", b" ", b"0", b"-1", b"-0.0", b"nan", b"inf", b"-inf", b"1e999", b"1e-999", b"soon", b"1;2", b"1 2"),
    *(b"1x", b"0x10", b"1_000", b"\xff", "½".encode(), "١".encode(), b"\x00", b"1\x00", b"1\n2"),
    *(b"9" * 401, b"1" * 100_000, b"1" + b" " * 100_000),
)


@pytest.mark.parametrize("stated", MALFORMED)
@pytest.mark.parametrize("path", OBJECTIVES)
def test_malformed_deadline_is_counted_and_ignored(stated: bytes, path: str) -> None:
    hints: list[str] = []
    assert objective(stated, path, hints) == OBJECTIVES[path]
    assert hints == ["malformed_deadline"]


def test_the_first_of_two_headers_counts() -> None:
    headers: Headers = [(HEADER, b"1"), (HEADER, b"0.1")]
    assert callers().demand(scope(headers)).slo_s == 1.0


def test_without_the_setting_the_header_means_nothing() -> None:
    hints: list[str] = []
    plain = make(None, hints)
    for stated in (b"0.1", *MALFORMED):
        assert plain.demand(scope([(HEADER, stated)])).slo_s is None
    assert hints == []


values = st.one_of(
    st.binary(max_size=20),
    st.text("0123456789.+-eE msh", max_size=12).map(str.encode),
    st.floats(allow_nan=True).map(lambda number: repr(number).encode()),
    st.tuples(st.floats(0, 1e6), st.sampled_from(["us", "ms", "s", "m", "h", "d"])).map(
        lambda pair: f"{pair[0]}{pair[1]}".encode()
    ),
)


@given(stated=st.lists(values, max_size=3), path=st.sampled_from(sorted(OBJECTIVES)), socket=st.booleans())
def test_whatever_a_client_states_its_objective_is_never_longer(
    stated: list[bytes], path: str, socket: bool
) -> None:
    hints: list[str] = []
    headers: Headers = [(HEADER, value) for value in stated]
    kind = {"type": "websocket"} if socket else {}
    demand = callers(hints).demand(scope(headers, path=path, **kind))
    allowed = OBJECTIVES[path] or SLO_S
    effective = demand.slo_s or SLO_S
    assert 0.0 < effective <= allowed
    assert math.isfinite(effective)
    assert len(hints) <= 1
    assert set(hints) <= {"malformed_deadline"}
    assert (demand.priority, demand.cost) == (Priority.MID, 2.0 if path == "/plain" else 1.0)


async def test_a_deadline_shortens_the_wait_of_one_request_alone() -> None:
    throttle = with_places(1, deadline_header="x-deadline")
    app = ThrottleMiddleware(never, throttle=throttle)
    held = throttle.try_admit(Demand())
    assert isinstance(held, Permit)
    answer = await request(app, headers={"x-deadline": "10ms"})
    assert answer.status == 503
    assert b"queue:slow" in answer.body, "a mean answer takes longer than that"
    ticket = throttle.try_admit(Demand())
    assert isinstance(ticket, Ticket)
    assert ticket.max_wait_s == 40.0 - 1.3 * 0.05
    throttle.leave(ticket)
    held.settle()


async def test_a_deadline_that_is_none_is_seen_in_the_snapshot() -> None:
    throttle = with_places(1, deadline_header="x-deadline")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(verdicts_of(scope)[throttle].demand.slo_s)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    seen: list[float | None] = []
    wrapped = ThrottleMiddleware(app, throttle=throttle)
    for stated in ("soon", "1", "-1"):
        await request(wrapped, headers={"x-deadline": stated})
    await connect(wrapped, headers={"x-deadline": "1"})
    assert seen == [None, 1.0, None, 1.0]
    assert throttle.snapshot().oddities["malformed_deadline"] == 2


# --- what is remembered of strangers ---


@pytest.mark.parametrize("websockets", ["rate", "slot"])
@pytest.mark.parametrize("kinds", [("http", "websocket"), ("websocket", "http")])
def test_cached_request_and_websocket_differ(websockets: str, kinds: tuple[str, str]) -> None:
    known = make(websockets=websockets)
    slots = {"http": True, "websocket": websockets == "slot"}
    for headers in ([], [(b"x-priority", b"low")], []):
        for kind in (*kinds, *kinds):
            assert known.demand(scope(headers, type=kind)).holds_slot is slots[kind]


def test_a_remembered_request_has_no_deadline_of_another() -> None:
    known = make(deadline_header="x-deadline", slo_s=SLO_S)
    assert [
        known.demand(scope(headers)).slo_s for headers in ([], [(HEADER, b"1")], [], [(HEADER, b"0.5")])
    ] == [None, 1.0, None, 0.5]


@pytest.mark.parametrize("websockets", WebSocketMode)
@pytest.mark.parametrize("broken", [{}, {"headers": None}, {"headers": [1]}, {"client": 7}])
def test_a_malformed_websocket_counts_like_any_other(
    websockets: WebSocketMode, broken: dict[str, Any]
) -> None:
    settings = Settings(websockets=websockets, identity="header:x-api-key")
    demand = RequestClassifier(settings, RouteTable()).demand({"type": "websocket", **broken})
    assert demand.holds_slot is (websockets is WebSocketMode.SLOT)
    assert RequestClassifier(settings, RouteTable()).demand({"type": "http", **broken}).holds_slot
