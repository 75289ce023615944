"""Marks by themselves: what they say, which patterns stand for them, and how much may be learned."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.asgi import marks
from autoglm_throttle.asgi.marks import LEARNED_AT_MOST, WALKS_AT_MOST, Mark, MarkPolicy, Marks, exempt, mark
from autoglm_throttle.asgi.routes import RouteTable
from autoglm_throttle.model import Priority
from autoglm_throttle.settings import ConfigError, RoutePolicy


def plain() -> None: ...


@mark(priority="low", cost=2.5)
def low() -> None: ...


@exempt
def free() -> None: ...


def route(path: str, endpoint: Any = None, methods: set[str] | None = None, **more: Any) -> SimpleNamespace:
    return SimpleNamespace(path=path, endpoint=endpoint, methods=methods, **more)


def app(*routes: Any) -> SimpleNamespace:
    return SimpleNamespace(routes=routes)


def patterns(policies: Any) -> list[tuple[str, bool]]:
    return [(policy.pattern, policy.exempt) for policy in policies]


# --- what a mark is ---


def test_a_mark_is_an_attribute_and_nothing_else() -> None:
    def endpoint() -> str:
        return "answer"

    marked = mark(priority=Priority.HIGH)(endpoint)
    assert marked is endpoint
    assert marked() == "answer"
    assert getattr(endpoint, marks.ATTRIBUTE) == Mark(Priority.HIGH, 1.0)
    assert getattr(low, marks.ATTRIBUTE) == Mark(Priority.LOW, 2.5)
    assert getattr(free, marks.ATTRIBUTE) == Mark(exempt=True)


@pytest.mark.parametrize(
    "wrong", [{"priority": "urgent"}, {"cost": 0}, {"cost": -1.0}, {"cost": float("nan")}]
)
def test_a_wrong_mark_is_said_where_it_stands(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        mark(**wrong)


@pytest.mark.parametrize(
    ("template", "pattern"),
    [
        ("/", "/"),
        ("", "/"),
        ("/users/{id}", "/users/{part1}"),
        ("/users/{id:int}/x", "/users/{part1}/x"),
        ("/files/{rest:path}", "/files/*"),
        ("/files/{rest:path}/edit", "/files/*"),
        ("/files/{name}.json", "/files/{part1}"),
        ("/a//b/", "/a/b"),
        ("/{x}/{x}", "/{part0}/{part1}"),
        ("/odd name/100%/a*b", "/{part0}/{part1}/{part2}"),
        ("/caf\xe9", "/caf\xe9"),
        ("/\x00", "/{part0}"),
    ],
)
def test_a_pattern_is_as_wide_as_its_template_or_wider(template: str, pattern: str) -> None:
    assert MarkPolicy(template, None, Mark()).pattern == pattern


def test_a_policy_from_a_mark_says_so_in_its_name() -> None:
    found = MarkPolicy("/x", {"POST", "GET"}, Mark(Priority.LOW))
    assert (found.name, found.methods) == ("mark GET,POST /x", frozenset({"GET", "POST"}))
    assert found.says(Mark(Priority.LOW))
    assert not found.says(Mark(Priority.LOW, cost=2.0))


# --- what can be seen from outside ---


def test_all_endpoints_are_seen_in_the_order_of_routing() -> None:
    inner = app(route("/b/{id}", free), route("/c", plain))
    tree = app(
        route("/a", low, {"GET"}),
        route("/m", routes=inner.routes),
        route("/raw", app=free),
        route("/blind", app=plain, routes=[]),
        SimpleNamespace(),
        SimpleNamespace(path=None, endpoint=low),
    )
    assert patterns(marks.visible(tree)) == [
        ("/a", False),
        ("/m/b/{part2}", True),
        ("/m/c", False),
        ("/m/*", False),
        ("/raw/*", True),
        ("/blind/*", False),
    ]


def test_other_middleware_is_looked_through() -> None:
    assert patterns(marks.visible(SimpleNamespace(app=SimpleNamespace(app=app(route("/a", low)))))) == [
        ("/a", False)
    ]
    assert patterns(marks.visible(low)) == [("/*", False)], "an app that is marked itself"
    assert patterns(marks.visible(plain)) == []
    endless = SimpleNamespace()
    endless.app = endless
    assert patterns(marks.visible(endless)) == []
    knot = route("/k", routes=[])
    knot.routes = [knot]
    assert len(patterns(marks.visible(app(knot)))) <= 60


def test_a_route_that_no_pattern_can_stand_for_is_said_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    assert patterns(marks.visible(app(route("/" + "x" * 5000, low), route("/a", low)))) == [("/a", False)]
    assert "no pattern can stand for the route" in caplog.text


def test_an_app_without_marks_costs_no_table() -> None:
    table = RouteTable()
    assert not Marks(app(route("/a", plain)), table).any
    assert not table.any


def test_the_configuration_comes_before_a_mark() -> None:
    configured = RoutePolicy("/a", priority="high")
    table = RouteTable([configured])
    assert Marks(app(route("/a", low), route("/b", low)), table).any
    assert table.match("/a", "GET") is configured
    found = table.match("/b", "GET")
    assert found is not None
    assert (found.priority, found.cost) == (Priority.LOW, 2.5)


# --- what is learned from answers ---


def answered(path: str, template: str, endpoint: Any, **parameters: str) -> dict[str, Any]:
    return {
        "path": path,
        "method": "GET",
        "endpoint": endpoint,
        "route": route(template, endpoint, {"GET"}),
        "path_params": parameters,
    }


names = st.text(st.sampled_from("abcx"), min_size=1, max_size=2)


@given(tenant=names, item=names, front=st.sampled_from(["", "/a", "/t"]), hidden=st.booleans())
def test_no_concrete_value_becomes_part_of_a_pattern(
    tenant: str, item: str, front: str, hidden: bool
) -> None:
    mount = f"{front}/{tenant}"
    path = f"{mount}/items/{item}"
    scope = answered(path, "/items/{item}", low, item=item, tenant=tenant)
    policy = marks.learned(scope, Mark(Priority.LOW), "")
    if policy is None:
        assert front.strip("/") == tenant, "only where it is not certain which part is the tenant"
        return
    assert policy.covers("GET", path.strip("/").split("/"))
    other = f"{front}/somebody-else/items/something-else"
    assert policy.covers("GET", other.strip("/").split("/"))


@pytest.mark.parametrize(
    "scope",
    [
        answered("/x/1", "/y/{item}", low, item="1"),
        answered("/x/1", "/x/{item}", low, item="2"),
        {"path": None, "endpoint": low, "route": None},
    ],
)
def test_a_template_that_does_not_fit_teaches_nothing(scope: dict[str, Any]) -> None:
    assert marks.learned(scope, Mark(Priority.LOW), "") is None


def test_an_answer_teaches_once_and_root_path_is_left_out() -> None:
    table = RouteTable()
    known = Marks(plain, table)
    scope = answered("/api/x/1", "/x/{item}", low, item="1")
    known.check(scope, "/x/1", "/api")
    assert [policy.pattern for policy in known._learned] == ["/x/{part1}"]
    found = table.match("/x/2", "GET")
    assert found is not None
    assert found.priority is Priority.LOW
    walks = known._walks
    known.check(scope, "/x/1", "/api")
    assert (len(known._learned), known._walks) == (1, walks), "nothing is done for what is known"


def test_a_route_that_was_added_since_is_found_by_looking_again() -> None:
    grown = SimpleNamespace(routes=[])
    table = RouteTable()
    known = Marks(grown, table)
    grown.routes.append(route("/x/{item}", low, {"GET"}))
    known.check(answered("/x/1", "/x/{item}", low, item="1"), "/x/1", "")
    assert not known._learned
    found = table.match("/x/2", "GET")
    assert found is not None
    assert found.priority is Priority.LOW


@pytest.mark.parametrize(
    "scope",
    [
        {},
        answered("/x/1", "/x/{item}", plain, item="1"),
        {**answered("/x/1", "/x/{item}", low, item="1"), "method": "POST"},
    ],
)
def test_what_says_nothing_teaches_nothing(scope: dict[str, Any]) -> None:
    known = Marks(plain, RouteTable())
    known.check(scope, "/x/1", "")
    assert not known._learned


def test_an_exemption_that_covers_more_than_its_endpoint_is_withdrawn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = RouteTable()
    known = Marks(app(route("/{rest:path}", free)), table)
    found = table.match("/secret", "GET")
    assert found is not None
    assert found.exempt
    known.check(answered("/secret", "/secret", plain), "/secret", "")
    assert table.match("/secret", "GET") is None or not table.match("/secret", "GET").exempt  # type: ignore[union-attr]
    assert "covers others" in caplog.text


def test_learning_has_an_end() -> None:
    table = RouteTable()
    known = Marks(plain, table)
    for number in range(LEARNED_AT_MOST + WALKS_AT_MOST + 200):
        path = f"/x{number}"
        known.check(answered(path, path, low), path, "")
    assert len(known._learned) <= LEARNED_AT_MOST
    assert known._walks <= LEARNED_AT_MOST + WALKS_AT_MOST
