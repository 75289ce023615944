"""Route policies: patterns, checks, and those that can never apply."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoglm_throttle.settings import ConfigError, PlanPolicy, RoutePolicy, Settings
from autoglm_throttle.settings.route_policy import METHODS, RouteTrie, earlier_matches
from autoglm_throttle.types import Priority, UserLimit
from tests.settings.linear_search import CountedText, matches


def test_columns_of_a_route_are_read_and_a_name_is_made() -> None:
    route = RoutePolicy("/v1/chat/", methods=["post", "GET"], priority="high", cost=4, user_limit="5/s")
    assert route.pattern == "/v1/chat"
    assert route.methods == frozenset({"GET", "POST"})
    assert (route.priority, route.cost) == (Priority.HIGH, 4.0)
    assert route.user_limit == (UserLimit("user-1s", 5, 1),)
    assert route.name == "GET,POST /v1/chat"
    assert RoutePolicy("/v1/*").name == "/v1/*"
    assert RoutePolicy("/", user_limit="off").user_limit == ()
    assert route.explicit().keys() == {"pattern", "methods", "priority", "cost", "user_limit"}
    with pytest.raises(AttributeError, match="frozen"):
        route.cost = 1.0
    positional: Any = ("/a", ["GET"])
    with pytest.raises(TypeError, match="positional arguments of"):
        RoutePolicy(*positional)


@pytest.mark.parametrize("column", ["methods", "priority", "user_limit", "name", "slo_s", "resource_policy"])
def test_none_in_a_policy_leaves_the_value(column: str) -> None:
    unset: dict[str, Any] = {column: None}
    assert RoutePolicy("/a", **unset) == RoutePolicy("/a")
    assert RoutePolicy("/a", **unset).explicit() == {"pattern": "/a"}
    assert RoutePolicy("/a", exempt=True, **unset).exempt


@pytest.mark.parametrize(
    ("pattern", "segments"),
    [
        ("/", ()),
        ("/*", ("*",)),
        ("/a", ("a",)),
        ("/a/{id}/b/*", ("a", "{id}", "b", "*")),
        ("/a/", ("a",)),
        ("/.well-known/x", (".well-known", "x")),
        ("/ü", ("ü",)),
    ],
)
def test_pattern_is_split_into_segments(pattern: str, segments: tuple[str, ...]) -> None:
    assert RoutePolicy(pattern).segments == segments


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "a",
        "//a",
        "/a//b",
        "/*/a",
        "/a*",
        "/{}",
        "/{1a}",
        "/{a:int}",
        "/{a",
        "/a}",
        "/{a}/{a}",
        "/a?b",
        "/a#b",
        "/a b",
        "/a%20b",
        "/a\nb",
        "/" + "x" * 1001,
    ],
)
def test_pattern_of_another_form_is_rejected(pattern: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RoutePolicy(pattern)
    assert [problem.variable for problem in caught.value.problems] == ["pattern"]


def test_all_problems_of_a_policy_are_reported_together() -> None:
    columns = ("methods", "priority", "cost", "user_limit", "name", "exempt", "slo_s")
    wrong: dict[str, Any] = dict(
        zip(columns, (["G T"], "urgent", 0, "often", 'a"b', "perhaps", 0), strict=True)
    )
    wrong["colour"] = "red"
    with pytest.raises(ConfigError) as caught:
        RoutePolicy("x", **wrong)
    assert [problem.variable for problem in caught.value.problems] == ["pattern", *columns, "colour"]
    with pytest.raises(ConfigError, match="pattern: is missing"):
        RoutePolicy(**wrong)


@pytest.mark.parametrize(
    ("given", "slo_s"), [(None, None), (0.001, 0.001), (86_400, 86_400.0), ("1m", 60.0), ("250ms", 0.25)]
)
def test_objective_of_a_route_is_read_in_seconds(given: float | str | None, slo_s: float | None) -> None:
    assert RoutePolicy("/a", slo_s=given).slo_s == slo_s
    assert RoutePolicy("/a").slo_s is None


@pytest.mark.parametrize("given", [0, -1, 0.0009, 86_401, "soon", float("nan"), float("inf"), True])
def test_objective_out_of_range_is_rejected(given: float | str) -> None:
    with pytest.raises(ConfigError) as caught:
        RoutePolicy("/a", slo_s=given)
    assert [problem.variable for problem in caught.value.problems] == ["slo_s"]


@pytest.mark.parametrize("methods", [[], "", [5], 5, b"GET", {"GET": 1}, "GET POST"])
def test_methods_that_are_no_tokens_are_a_problem(methods: Any) -> None:
    with pytest.raises(ConfigError):
        RoutePolicy("/a", methods=methods)


def test_methods_are_written_in_order() -> None:
    assert METHODS.text(frozenset({"POST", "GET"})) == "GET,POST"
    assert METHODS.public_text(None) == ""


def test_exempt_route_with_a_price_is_a_problem() -> None:
    columns: list[dict[str, Any]] = [{"cost": 2}, {"priority": "high"}, {"user_limit": "5/s"}]
    for column in columns:
        with pytest.raises(ConfigError, match="never charged"):
            RoutePolicy("/a", exempt=True, **column)


def names(*routes: RoutePolicy) -> dict[str, list[str]]:
    """Return the routes that can never apply by name, each with those that match its requests."""
    found = zip(routes, earlier_matches(routes), strict=True)
    return {route.name: [routes[at].name for at in takers] for route, takers in found if takers}


def test_routes_that_can_never_apply_are_found() -> None:
    assert names(RoutePolicy("/a/*"), RoutePolicy("/a/b")) == {"/a/b": ["/a/*"]}
    assert names(RoutePolicy("/a/b"), RoutePolicy("/a/*")) == {}
    assert names(RoutePolicy("/{x}"), RoutePolicy("/a")) == {"/a": ["/{x}"]}
    assert names(RoutePolicy("/a", methods=["GET"]), RoutePolicy("/a")) == {}
    get, head = RoutePolicy("/a", methods=["GET"]), RoutePolicy("/a", methods=["HEAD"])
    assert names(get, head) == {"HEAD /a": ["GET /a"]}, "FIELD 17: GET covers HEAD"
    assert names(head, get) == {}
    assert names(
        RoutePolicy("/a", methods=["GET"]),
        RoutePolicy("/a", methods=["POST"]),
        RoutePolicy("/a", methods=["GET", "POST"]),
    ) == {"GET,POST /a": ["GET /a", "POST /a"]}
    assert names(RoutePolicy("/a"), RoutePolicy("/a/{x}"), RoutePolicy("/a/*")) == {}
    assert names(RoutePolicy("/{x}/*"), RoutePolicy("/*")) == {}
    assert names(RoutePolicy("/{x}/*"), RoutePolicy("/"), RoutePolicy("/*")) == {"/*": ["/", "/{x}/*"]}
    assert names(RoutePolicy("/a"), RoutePolicy("/a/{x}/*"), RoutePolicy("/a/*")) == {
        "/a/*": ["/a", "/a/{x}/*"]
    }


SEGMENTS = st.sampled_from(["a", "b", "{x}"])
PATTERNS = st.builds(
    lambda parts, rest: "/" + "/".join([p.replace("x", f"x{i}") for i, p in enumerate(parts)] + ["*"] * rest),
    st.lists(SEGMENTS, max_size=3),
    st.booleans(),
)
METHOD_SETS = st.none() | st.sets(st.sampled_from(["GET", "POST"]), min_size=1).map(sorted)
ROUTES = st.lists(
    st.builds(lambda pattern, methods: RoutePolicy(pattern, methods=methods), PATTERNS, METHOD_SETS),
    max_size=6,
)
REQUESTS = [
    (method, segments)
    for method in ("GET", "POST", "PUT")
    for length in range(5)
    for segments in product(("a", "b", "c"), repeat=length)
]
"""All requests that the patterns above can tell apart."""


@given(ROUTES)
@settings(deadline=None)
def test_earlier_matches_are_those_of_all_requests(routes: list[RoutePolicy]) -> None:
    found = earlier_matches(routes)
    assert len(found) == len(routes)
    for position, takers in enumerate(found):
        requests = [request for request in REQUESTS if matches(routes[position], *request)]
        first = [
            next(at for at, route in enumerate(routes) if matches(route, *request)) for request in requests
        ]
        assert bool(takers) == (position not in first)
        # Each of them is the first match of some request, and they match all requests together.
        assert set(takers) <= set(first) - {position}
        if takers:
            assert all(any(matches(routes[at], *request) for at in takers) for request in requests)


def test_earlier_matches_of_many_routes_compare_few(monkeypatch: pytest.MonkeyPatch) -> None:
    original = RouteTrie.first

    def counted(trie: RouteTrie, method: str, segments: Iterable[str]) -> int | None:
        return original(trie, method, map(CountedText, segments))

    monkeypatch.setattr(RouteTrie, "first", counted)
    monkeypatch.setattr(CountedText, "comparisons", 0)
    routes = [RoutePolicy(f"/v1/s{at}/{{id}}/{'*' if at % 3 else 'x'}") for at in range(2000)]
    Random(1).shuffle(routes)
    assert not any(earlier_matches(routes))
    # A route with a rest has four witnesses.
    assert CountedText.comparisons <= 2000 * 4 * 4


def test_columns_of_a_plan_are_read() -> None:
    gold = PlanPolicy("gold", user_limit="100/s", priority="high", members=["07F3A9C2D4E5B617"])
    assert gold.members == ("07f3a9c2d4e5b617",)
    assert gold.priority is Priority.HIGH
    assert list(Settings(plans=[PlanPolicy("gold"), PlanPolicy("free")]).plans) == ["gold", "free"]
    assert PlanPolicy("free", members="none").members == ()
    assert repr(gold).startswith("PlanPolicy(name='gold', ")
    positional: Any = ("gold", "100/s")
    with pytest.raises(TypeError, match="positional arguments of"):
        PlanPolicy(*positional)


def test_wrong_columns_of_a_plan_quote_no_member() -> None:
    wrong: dict[str, Any] = {"user_limit": "often", "priority": "urgent", "members": ["sk-live-123"]}
    with pytest.raises(ConfigError) as caught:
        PlanPolicy('"', **wrong)
    assert [p.variable for p in caught.value.problems] == ["name", "user_limit", "priority", "members"]
    assert "sk-live" not in str(caught.value)


def test_plans_with_one_member_or_one_name_are_a_problem() -> None:
    twice = [PlanPolicy("a", members=["0" * 16]), PlanPolicy("b", members=["0" * 16]), PlanPolicy("a")]
    with pytest.raises(ConfigError) as caught:
        Settings(plans=twice, key_secret="0123456789abcdef")
    assert [p.variable for p in caught.value.problems] == ["plans.a", "plans.b.members"]
