"""Demands are remembered by what identifies their callers, and the oldest ones forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from autoglm_throttle import Caller
from autoglm_throttle.asgi import RequestClassifier, RouteTable, callers
from autoglm_throttle.asgi.callers import DemandTable
from autoglm_throttle.settings import RoutePolicy, Settings
from autoglm_throttle.types import Demand, Priority, identity
from tests.asgi.run_app import http_scope
from tests.asgi.scopes import make

MOST = 100
"""The least value of `MAX_USERS`."""


def scope(peer: str, *fields: tuple[bytes, bytes], path: str = "/") -> dict[str, Any]:
    return {**http_scope(path), "client": (peer, 1), "headers": list(fields)}


def known(classifier: RequestClassifier) -> DemandTable:
    return classifier._demands


def test_full_table_forgets_the_oldest_demand_alone() -> None:
    table = DemandTable(3)
    demands = {key: Demand(user=key) for key in "abcdefg"}
    for at, (key, demand) in enumerate(demands.items()):
        table.remember(key, demand)
        assert list(table) == list("abcdefg")[max(0, at - 2) : at + 1]
    assert table["g"] is demands["g"]


def test_large_full_table_forgets_a_thousandth_at_a_time() -> None:
    table = DemandTable(2000)
    for key in range(2001):
        table.remember(key, Demand())
    assert list(table) == list(range(3, 2001))


def test_demand_that_two_threads_remember_at_once_is_forgotten_without_an_error() -> None:
    table = DemandTable(2)
    for key in ("a", "a", "b", "c", "d"):
        table.remember(key, Demand(user=key))
    assert set(table) == {"c", "d"}


def test_as_many_callers_are_remembered_as_there_may_be_users() -> None:
    classifier = make(max_users=MOST)
    first = [classifier.demand(scope(f"10.0.0.{number}")) for number in range(MOST)]
    assert [classifier.demand(scope(f"10.0.0.{number}")) for number in range(MOST)] == first, (
        "the same objects"
    )
    classifier.demand(scope("10.0.1.0"))
    assert len(known(classifier)) == MOST
    assert classifier.demand(scope("10.0.0.1")) is first[1]
    assert classifier.demand(scope("10.0.0.0")) is not first[0], "the oldest one was forgotten"


def test_network_of_an_address_is_computed_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def group_of(address: str) -> str:
        asked.append(address)
        return identity.overflow_group(address)

    monkeypatch.setattr(callers, "overflow_group", group_of)
    demand = make().demand(scope("10.0.0.7"))
    assert asked == []
    assert demand.group == make().demand(scope("10.0.0.9")).group
    assert asked == ["10.0.0.7", "10.0.0.9"]


def test_key_has_a_demand_for_each_of_its_addresses() -> None:
    classifier = make(identity="header:x-api-key")
    key = (b"x-api-key", b"one")
    here, there = (classifier.demand(scope(peer, key)) for peer in ("10.0.0.1", "10.0.0.2"))
    assert here.user == there.user
    assert here.address != there.address
    assert classifier.demand(scope("10.0.0.1", key)) is here


def test_key_beyond_the_length_of_cached_ones_fills_no_table() -> None:
    classifier = make(identity="header:x-api-key")
    long = (b"x-api-key", b"k" * 257)
    assert classifier.demand(scope("10.0.0.1", long)).address
    assert not known(classifier)


def test_first_of_two_keys_counts() -> None:
    classifier = make(identity="header:x-api-key")
    one, two = (b"x-api-key", b"one"), (b"x-api-key", b"two")
    assert (
        classifier.demand(scope("10.0.0.1", one, two)).user == classifier.demand(scope("10.0.0.1", one)).user
    )


@pytest.mark.parametrize("name", [b"x-api-key", b"x-priority"])
def test_line_after_an_empty_one_changes_no_other_demand(name: bytes) -> None:
    once, twice = [(name, b"high")], [(name, b""), (name, b"high")]
    settings: dict[str, Any] = {"identity": "header:x-api-key", "priority_header_trust": "any"}
    for before, after in ((once, twice), (twice, once)):
        classifier = make(**settings)
        classifier.demand(scope("10.0.0.1", *before))
        found = classifier.demand(scope("10.0.0.1", *after))
        alone = make(**settings).demand(scope("10.0.0.1", *after))
        assert (found.user, found.address, found.priority) == (alone.user, alone.address, alone.priority)


def test_empty_first_key_is_no_key() -> None:
    classifier = make(identity="header:x-api-key")
    empty, key = (b"x-api-key", b""), (b"x-api-key", b"one")
    assert classifier.demand(scope("10.0.0.1", key)).address
    assert not classifier.demand(scope("10.0.0.1", empty, key)).address


def test_address_is_no_key_and_no_user() -> None:
    peer = "10.0.0.1"
    classifier = make(identity="header:x-api-key")
    by_key, by_address = (
        classifier.demand(scope(peer, (b"x-api-key", peer.encode()))),
        classifier.demand(scope(peer)),
    )
    assert by_key.user != by_address.user
    named = make(lambda _: Caller(peer, verified=True))
    assert named.demand(scope("10.0.0.2")).user != make(lambda _: None).demand(scope(peer)).user


def test_what_identify_says_at_each_request_counts() -> None:
    said = [Caller("ann", verified=True), Caller("ann", priority=Priority.LOW, verified=True), None]
    classifier = make(lambda _: said[0])
    demands = []
    while said:
        demands.append(classifier.demand(scope("10.0.0.1")))
        del said[0]
    assert [demand.priority for demand in demands] == [Priority.MID, Priority.LOW, Priority.MID]
    assert demands[0].user == demands[1].user != demands[2].user


def test_verified_caller_without_a_plan_is_known_by_its_user() -> None:
    plain = Caller("ann", verified=True)
    said = [plain, plain._replace(priority=Priority.LOW), plain._replace(plan="gold"), Caller("ann")]
    classifier = make(lambda _: said[0])
    while said:
        classifier.demand(scope("10.0.0.1"))
        del said[0]
    assert [key if isinstance(key, str) else type(key) for key in known(classifier)] == [
        *("ann", Caller, Caller, tuple)
    ]


def test_failing_identify_is_counted_at_each_request() -> None:
    odd: list[str] = []
    unhashable: Any = ["ann"]
    classifier = make(lambda _: Caller(unhashable, verified=True), odd)
    demands = [classifier.demand(scope("10.0.0.1")) for _ in range(3)]
    assert odd == ["identify_failed"] * 3
    assert len({demand.user for demand in demands}) == 1


def test_routes_and_stated_priorities_have_demands_of_their_own() -> None:
    routes = [RoutePolicy("/a", cost=2.0), RoutePolicy("/b", priority="high")]
    classifier = make(routes=routes, priority_header_trust="any")
    low = (b"x-priority", b"low")
    demands = [
        classifier.demand(scope("10.0.0.1", *fields, path=path))
        for path in ("/a", "/b", "/c")
        for fields in ((), (low,))
    ]
    assert len(set(map(id, demands))) == 6
    assert [demand.cost for demand in demands] == [2.0, 2.0, 1.0, 1.0, 1.0, 1.0]
    assert [demand.priority for demand in demands] == [1, 2, 0, 2, 1, 2]


def test_learned_route_replaces_what_is_known_of_its_path() -> None:
    table = RouteTable()
    classifier = RequestClassifier(Settings(), table)
    before = classifier.demand(scope("10.0.0.1", path="/a"))
    table.learn([RoutePolicy("/a", cost=3.0)])
    assert (before.cost, classifier.demand(scope("10.0.0.1", path="/a")).cost) == (1.0, 3.0)
    table.learn([RoutePolicy("/a", cost=4.0)])
    assert classifier.demand(scope("10.0.0.1", path="/a")).cost == 4.0, "also one of the same name"


def test_as_many_forwarded_clients_are_remembered_as_there_may_be_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[str] = []
    real = identity.ProxyChain.client

    def client(self: identity.ProxyChain, peer: str, forwarded: Sequence[bytes]) -> str:
        read.append(peer)
        return real(self, peer, forwarded)

    monkeypatch.setattr(identity.ProxyChain, "client", client)
    classifier = make(trusted_proxies="10.0.0.0/8", max_users=MOST)
    requests = [scope("10.0.0.1", (b"x-forwarded-for", b"8.8.8.%d" % n)) for n in range(MOST)]
    first = [classifier.demand(request) for request in requests]
    read.clear()
    assert [classifier.demand(request) for request in requests] == first
    assert read == [], "no field is parsed again"


def test_forwarded_clients_behind_a_proxy_are_remembered() -> None:
    classifier = make(trusted_proxies="10.0.0.0/8")
    forwarded = (b"x-forwarded-for", b"8.8.8.8")
    first = classifier.demand(scope("10.0.0.1", forwarded))
    assert classifier.demand(scope("10.0.0.2", forwarded)) is first, "through another trusted proxy"
    assert classifier.demand(scope("9.9.9.9", forwarded)).user != first.user, "who may say nothing"
    assert classifier.demand(scope("10.0.0.1", forwarded, forwarded)).user == first.user
