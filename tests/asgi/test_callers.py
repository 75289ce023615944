"""From a scope to a demand: every way to be known, and nothing that a client can gain by lying."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.asgi.callers import MAX_VALUE_BYTES, Caller
from autoglm_throttle.settings import RoutePolicy
from autoglm_throttle.types import Priority
from tests.asgi.scopes import ADDRESS, HASH, KEY, PEER, PLANS, PROXY, Headers, known_as, make, scope


def test_by_default_the_address_is_the_caller() -> None:
    demand = make().demand(scope())
    assert known_as(demand) == (ADDRESS, "")
    assert (demand.priority, demand.cost, demand.plan, demand.route) == (Priority.MID, 1.0, None, None)
    assert demand.group == HASH.hash("group", "8.8.8.0/24")


@pytest.mark.parametrize(
    ("client", "address"),
    [
        (("8.8.8.8", 1), "8.8.8.8"),
        (["8.8.8.8", 1], "8.8.8.8"),
        (("8.8.8.8",), "8.8.8.8"),
        (("::ffff:8.8.8.8", 1), "8.8.8.8"),
        (("2001:db8::1:2:3:4", 1), "2001:db8::"),
        (None, "unix"),
        ((), "unix"),
        (("", 0), "unix"),
        (("testclient", 1), "testclient"),
    ],
)
def test_the_peer_is_the_client(client: Any, address: str) -> None:
    assert known_as(make().demand(scope(client=client))) == (HASH.hash("address", address), "")


def test_the_ipv6_prefix_is_that_of_the_settings() -> None:
    demand = make(ipv6_prefix=128).demand(scope(client=("2001:db8::1", 1)))
    assert demand.user == HASH.hash("address", "2001:db8::1")


def test_trusted_proxy_names_its_client() -> None:
    callers = make(trusted_proxies="10.0.0.0/8")
    lines: Headers = [(b"x-forwarded-for", b"6.6.6.6"), (b"x-forwarded-for", b"8.8.8.8, 10.0.0.9")]
    assert callers.demand(scope(lines, PROXY)).user == ADDRESS
    assert callers.demand(scope(lines, ("1.2.3.4", 1))).user == HASH.hash("address", "1.2.3.4")
    assert make().demand(scope(lines, PROXY)).user == HASH.hash("address", "10.0.0.1")


header_names = st.sampled_from(
    [b"x-forwarded-for", b"forwarded", b"x-real-ip", b"x-api-key", b"authorization", b"x-priority", b"host"]
)
header_values = st.one_of(
    st.binary(max_size=30),
    st.sampled_from(
        [b"8.8.4.4", b"10.0.0.1", b"1", b"high", b"bearer x", b"", b"\x00", b"\n", b"\xff" * 9000]
    ),
)


@given(headers=st.lists(st.tuples(header_names, header_values), max_size=6))
def test_untrusted_peer_cannot_change_identity_or_priority(headers: Headers) -> None:
    setups: list[dict[str, Any]] = [{"trusted_proxies": "10.0.0.0/8", "priority_header_trust": "proxy"}, {}]
    for settings in setups:
        callers = make(**settings)
        plain, lying = callers.demand(scope()), callers.demand(scope(headers))
        assert known_as(lying) == known_as(plain) == (ADDRESS, "")
        assert (lying.group, lying.cost, lying.plan) == (plain.group, plain.cost, plain.plan)
        assert lying.priority >= plain.priority


# --- by key ---

KEYED = {
    "header": ("header:x-api-key", b"x-api-key", b"%b"),
    "bearer": ("bearer", b"authorization", b"Bearer %b"),
}

ABSENT = (
    *(b"", b" ", b"\t", b"a\x00b", b"a\nb", b"a\rb", b"\x7f", b"\xff\xfe", "caf\xe9".encode()),
    *("\u2028".encode(), b"k" * (MAX_VALUE_BYTES + 1), b"k" * 65536),
)


@pytest.mark.parametrize("mode", KEYED)
def test_a_key_is_a_caller_and_its_address_is_limited_beside_it(mode: str) -> None:
    identity, name, form = KEYED[mode]
    demand = make(identity=identity).demand(scope([(b"host", b"x"), (name, form % b"k-123")]))
    assert known_as(demand) == (KEY, ADDRESS)
    assert demand.group == HASH.hash("group", "8.8.8.0/24")


@pytest.mark.parametrize("mode", KEYED)
@pytest.mark.parametrize("value", ABSENT)
def test_a_key_that_is_none_never_lifts_the_limit(mode: str, value: bytes) -> None:
    identity, name, form = KEYED[mode]
    callers = make(identity=identity)
    for headers in ([], [(name, value)], [(name, form % value)]):
        assert known_as(callers.demand(scope(headers))) == (ADDRESS, "")


@pytest.mark.parametrize(
    ("value", "user"),
    [
        (b"Bearer k-123", KEY),
        (b"bearer k-123", KEY),
        (b"BEARER  k-123 ", KEY),
        (b"Basic k-123", ADDRESS),
        (b"k-123", ADDRESS),
        (b"Bearer", ADDRESS),
        (b"Bearer ", ADDRESS),
        (b"Bearerk-123", ADDRESS),
    ],
)
def test_only_the_scheme_bearer_carries_a_key(value: bytes, user: str) -> None:
    assert make(identity="bearer").demand(scope([(b"authorization", value)])).user == user


def test_blanks_round_a_key_and_a_second_one_change_nothing() -> None:
    callers = make(identity="header:x-api-key")
    assert callers.demand(scope([(b"x-api-key", b" k-123\t")])).user == KEY
    assert callers.demand(scope([(b"x-api-key", b"k-123"), (b"x-api-key", b"other")])).user == KEY


def test_the_longest_key_is_still_one() -> None:
    key = b"k" * MAX_VALUE_BYTES
    demand = make(identity="header:x-api-key").demand(scope([(b"x-api-key", key)]))
    assert known_as(demand) == (HASH.hash("key", key.decode()), ADDRESS)


def test_a_key_that_looks_like_an_address_is_not_that_address() -> None:
    assert make(identity="header:x-api-key").demand(scope([(b"x-api-key", b"8.8.8.8")])).user != ADDRESS


@given(value=st.binary(max_size=60))
def test_any_key_text_charges_a_caller(value: bytes) -> None:
    for identity, name, form in KEYED.values():
        callers = make(identity=identity)
        demand = callers.demand(scope([(name, form % value)]))
        assert known_as(demand) == (ADDRESS, "") or (len(demand.user) == 16 and demand.address == ADDRESS)
        if len(value) > 3:
            assert value.decode("latin-1") not in repr(demand)


# --- plans ---


def test_a_member_of_a_plan_is_verified_and_has_its_priority() -> None:
    callers = make(identity="header:x-api-key", plans=PLANS)
    demand = callers.demand(scope([(b"x-api-key", b"k-123")]))
    assert known_as(demand) == (KEY, "")
    assert (demand.plan, demand.priority) == ("gold", Priority.HIGH)
    stranger = callers.demand(scope([(b"x-api-key", b"k-124")]))
    assert (stranger.plan, stranger.priority, stranger.address) == (None, Priority.MID, ADDRESS)


def test_an_address_may_be_a_member_too() -> None:
    demand = make(plans=PLANS).demand(scope())
    assert (demand.plan, demand.priority, demand.address) == ("slow", Priority.MID, "")
    assert make(plans=PLANS).demand(scope(client=("8.8.4.4", 1))).plan is None


# --- identify ---


@pytest.mark.parametrize(
    ("trust", "client", "stated", "priority"),
    [
        ("lower", PEER, b"high", Priority.MID),
        ("lower", PEER, b"1", Priority.MID),
        ("lower", PEER, b"mid", Priority.MID),
        ("lower", PEER, b"low", Priority.LOW),
        ("lower", PEER, b" LOW ", Priority.LOW),
        ("lower", PEER, b"whatever", Priority.LOW),
        ("lower", PROXY, b"high", Priority.MID),
        ("proxy", PEER, b"high", Priority.MID),
        ("proxy", PEER, b"3", Priority.LOW),
        ("proxy", PROXY, b"high", Priority.HIGH),
        ("proxy", PROXY, b"low", Priority.LOW),
        ("any", PEER, b"high", Priority.HIGH),
        ("any", PEER, b"low", Priority.LOW),
        ("off", PROXY, b"high", Priority.MID),
        ("off", PEER, b"low", Priority.MID),
        *[("any", PEER, absent, Priority.MID) for absent in ABSENT],
    ],
)
def test_how_far_a_stated_priority_is_believed(
    trust: str, client: Any, stated: bytes, priority: Priority
) -> None:
    callers = make(priority_header_trust=trust, trusted_proxies="10.0.0.0/8")
    assert callers.demand(scope([(b"x-priority", stated)], client)).priority is priority


def test_a_stated_but_unknown_priority_is_low_and_counted() -> None:
    hints: list[str] = []
    callers = make(None, hints)
    assert callers.demand(scope([(b"x-priority", b"urgent!")])).priority is Priority.LOW
    assert hints == ["unknown_priority"]
    for stated in (b"3", b"low", b"high", b"", b"\x00"):
        callers.demand(scope([(b"x-priority", stated)]))
    assert hints == ["unknown_priority"]


def test_the_first_of_two_priority_headers_counts() -> None:
    headers: Headers = [(b"x-priority", b"low"), (b"x-priority", b"high")]
    assert make(priority_header_trust="any").demand(scope(headers)).priority is Priority.LOW


def test_header_and_default_are_those_of_the_settings() -> None:
    callers = make(priority_header="X-Class", priority_default="high")
    assert callers.demand(scope()).priority is Priority.HIGH
    assert callers.demand(scope([(b"x-class", b"mid")])).priority is Priority.MID
    assert callers.demand(scope([(b"x-priority", b"low")])).priority is Priority.HIGH


def test_the_default_is_no_floor_that_a_header_could_lift() -> None:
    assert make(priority_default="low").demand(scope([(b"x-priority", b"mid")])).priority is Priority.LOW


ROUTES = (
    RoutePolicy("/pay", priority="high", cost=4.0, name="pay"),
    RoutePolicy("/logs/*", methods=["POST"], priority="low", name="logs"),
    RoutePolicy("/plain", cost=2.0, name="plain"),
)


@pytest.mark.parametrize(
    ("path", "method", "expected"),
    [
        ("/pay", "GET", (Priority.HIGH, 4.0, "pay")),
        ("/pay/", "POST", (Priority.HIGH, 4.0, "pay")),
        ("/api/pay", "GET", (Priority.HIGH, 4.0, "pay")),
        ("/logs/x", "POST", (Priority.LOW, 1.0, "logs")),
        ("/logs/x", "GET", (Priority.MID, 1.0, None)),
        ("/plain", "GET", (Priority.MID, 2.0, "plain")),
        ("/else", "GET", (Priority.MID, 1.0, None)),
    ],
)
def test_a_route_policy_gives_priority_cost_and_name(
    path: str, method: str, expected: tuple[Priority, float, str | None]
) -> None:
    demand = make(routes=ROUTES).demand(scope(path=path, method=method, root_path="/api"))
    assert (demand.priority, demand.cost, demand.route) == expected


def test_a_websocket_has_no_method_and_counts_as_get() -> None:
    found = {"type": "websocket", "path": "/x", "headers": [], "client": PEER}
    routes = [RoutePolicy("/x", methods=["GET"], cost=3.0)]
    assert make(routes=routes).demand(found).cost == 3.0


def test_identify_before_route_before_header() -> None:
    high = make(lambda scope: Caller("a", priority=Priority.HIGH), routes=ROUTES)
    assert high.demand(scope(path="/logs/x", method="POST")).priority is Priority.HIGH
    silent = make(lambda scope: Caller("a"), routes=ROUTES)
    assert silent.demand(scope(path="/logs/x", method="POST")).priority is Priority.LOW
    trusting = make(routes=ROUTES, priority_header_trust="any")
    stated: Headers = [(b"x-priority", b"high")]
    assert trusting.demand(scope(stated, path="/logs/x", method="POST")).priority is Priority.LOW
    assert trusting.demand(scope(stated, path="/plain")).priority is Priority.HIGH
    assert trusting.demand(scope([(b"x-priority", b"low")], path="/pay")).priority is Priority.LOW


# --- scopes that are none ---

junk = st.one_of(
    st.none(), st.integers(), st.text(), st.binary(), st.lists(st.integers()), st.tuples(st.none())
)


@given(
    found=st.dictionaries(st.sampled_from(["headers", "client", "path", "root_path", "method"]), junk),
    setup=st.sampled_from(
        [
            {},
            {"routes": ROUTES},
            {"identity": "header:x-api-key", "trusted_proxies": "unix"},
            {"identity": "tests.asgi.scopes:named"},
        ]
    ),
)
def test_no_scope_raises_and_none_escapes(found: dict[str, Any], setup: dict[str, Any]) -> None:
    demand = make(**setup).demand(found)
    assert len(demand.user) == 16
    assert demand.priority in set(Priority)
    assert demand.cost > 0.0


def test_malformed_scopes_are_counted_and_share_one_window() -> None:
    hints: list[str] = []
    callers = make(None, hints, identity="header:x-api-key", priority_default="low")
    demands = [callers.demand({}), callers.demand({"headers": [(b"x-api-key", "text")], "client": PEER})]
    assert {known_as(demand) for demand in demands} == {(HASH.hash("address", ""), "")}
    assert {demand.priority for demand in demands} == {Priority.LOW}
    assert hints == ["malformed_scope"] * 2
