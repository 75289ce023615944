"""Route policies: patterns, checks, and those that can never apply."""

from __future__ import annotations

import dataclasses
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoglm_throttle.settings import ConfigError, PlanPolicies, PlanPolicy, RoutePolicy, unreachable
from autoglm_throttle.settings.route_policy import ROUTE_FIELD_TYPES
from autoglm_throttle.types import Priority, UserLimit


def test_columns_are_read_and_the_name_is_made() -> None:
    route = RoutePolicy("/v1/chat/", ["post", "GET"], "high", 4, "5/s")
    assert route.pattern == "/v1/chat"
    assert route.methods == frozenset({"GET", "POST"})
    assert (route.priority, route.cost) == (Priority.HIGH, 4.0)
    assert route.user_limit == (UserLimit("user-1s", 5, 1),)
    assert route.name == "GET,POST /v1/chat"
    assert RoutePolicy("/v1/*").name == "/v1/*"
    assert RoutePolicy("/", user_limit="off").user_limit == ()
    with pytest.raises(dataclasses.FrozenInstanceError):
        route.cost = 1.0  # type: ignore[misc]


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
def test_patterns(pattern: str, segments: tuple[str, ...]) -> None:
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
def test_other_patterns_are_rejected(pattern: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RoutePolicy(pattern)
    assert [problem.variable for problem in caught.value.problems] == ["pattern"]


def test_all_faults_of_a_policy_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        RoutePolicy("x", ["G T"], "urgent", 0, "often", 'a"b', "perhaps", 0)  # type: ignore[arg-type]
    reported = [problem.variable for problem in caught.value.problems]
    assert reported == ["pattern", "methods", "priority", "cost", "user_limit", "name", "exempt", "slo_s"]


@pytest.mark.parametrize(
    ("given", "slo_s"), [(None, None), (0.001, 0.001), (86_400, 86_400.0), ("1m", 60.0), ("250ms", 0.25)]
)
def test_the_objective_of_a_route(given: float | str | None, slo_s: float | None) -> None:
    assert RoutePolicy("/a", slo_s=given).slo_s == slo_s
    assert RoutePolicy("/a").slo_s is None


@pytest.mark.parametrize("given", [0, -1, 0.0009, 86_401, "soon", float("nan"), float("inf"), True])
def test_objective_out_of_range_is_rejected(given: float | str) -> None:
    with pytest.raises(ConfigError) as caught:
        RoutePolicy("/a", slo_s=given)
    assert [problem.variable for problem in caught.value.problems] == ["slo_s"]


@pytest.mark.parametrize("methods", [[], "", [5], 5, b"GET", {"GET": 1}, "GET POST"])
def test_methods_must_be_tokens(methods: object) -> None:
    with pytest.raises(ConfigError):
        RoutePolicy("/a", methods)  # type: ignore[arg-type]


def test_methods_are_written_in_order() -> None:
    assert ROUTE_FIELD_TYPES["methods"].text(frozenset({"POST", "GET"})) == "GET,POST"
    assert ROUTE_FIELD_TYPES["methods"].text(None) == ""


def test_an_exempt_policy_has_no_price() -> None:
    for column in ({"cost": 2}, {"priority": "high"}, {"user_limit": "5/s"}):
        with pytest.raises(ConfigError, match="never charged"):
            RoutePolicy("/a", exempt=True, **column)


def test_covers() -> None:
    route = RoutePolicy("/a/{x}/*", ["GET"])
    assert route.matches("GET", ("a", "1"))
    assert route.matches("GET", ("a", "1", "2", "3"))
    assert not route.matches("POST", ("a", "1"))
    assert not route.matches("GET", ("a",))
    assert not route.matches("GET", ("b", "1"))
    assert RoutePolicy("/").matches("GET", ())
    assert RoutePolicy("/*").matches("GET", ())


def names(*routes: RoutePolicy) -> dict[str, list[str]]:
    return {route.name: [taker.name for taker in takers] for route, takers in unreachable(routes)}


def test_unreachable_examples() -> None:
    assert names(RoutePolicy("/a/*"), RoutePolicy("/a/b")) == {"/a/b": ["/a/*"]}
    assert names(RoutePolicy("/a/b"), RoutePolicy("/a/*")) == {}
    assert names(RoutePolicy("/{x}"), RoutePolicy("/a")) == {"/a": ["/{x}"]}
    assert names(RoutePolicy("/a", ["GET"]), RoutePolicy("/a")) == {}
    assert names(
        RoutePolicy("/a", ["GET"]), RoutePolicy("/a", ["POST"]), RoutePolicy("/a", ["GET", "POST"])
    ) == {"GET,POST /a": ["GET /a", "POST /a"]}
    assert names(RoutePolicy("/a"), RoutePolicy("/a/{x}/*"), RoutePolicy("/a/*")) == {
        "/a/*": ["/a", "/a/{x}/*"]
    }


SEGMENTS = st.sampled_from(["a", "b", "{x}"])
PATTERNS = st.builds(
    lambda parts, rest: "/" + "/".join([p.replace("x", f"x{i}") for i, p in enumerate(parts)] + ["*"] * rest),
    st.lists(SEGMENTS, max_size=3),
    st.booleans(),
)
METHODS = st.none() | st.sets(st.sampled_from(["GET", "POST"]), min_size=1).map(sorted)
ROUTES = st.lists(st.builds(RoutePolicy, PATTERNS, METHODS), max_size=6)
REQUESTS = [
    (method, segments)
    for method in ("GET", "POST", "PUT")
    for length in range(5)
    for segments in product(("a", "b", "c"), repeat=length)
]


@given(ROUTES)
@settings(max_examples=60, deadline=None)
def test_unreachable_is_what_no_request_reaches(routes: list[RoutePolicy]) -> None:
    reached = set()
    for method, segments in REQUESTS:
        first = next((i for i, route in enumerate(routes) if route.matches(method, segments)), None)
        reached.add(first)
    dead = [routes[i] for i in range(len(routes)) if i not in reached]
    assert [route for route, _ in unreachable(routes)] == dead


def test_plans() -> None:
    gold = PlanPolicy("gold", "100/s", "high", ["07F3A9C2D4E5B617"])
    assert gold.members == ("07f3a9c2d4e5b617",)
    assert gold.priority is Priority.HIGH
    plans = PlanPolicies([gold, PlanPolicy("free")])
    assert list(plans) == ["gold", "free"]
    assert plans.of("07f3a9c2d4e5b617") is gold
    assert plans.of("0" * 16) is None
    assert plans.has_members
    assert not PlanPolicies([PlanPolicy("free")]).has_members
    assert "gold" in repr(plans)


def test_faults_of_plans() -> None:
    with pytest.raises(ConfigError) as caught:
        PlanPolicy('"', "often", "urgent", ["sk-live-123"])  # type: ignore[arg-type]
    assert [p.variable for p in caught.value.problems] == ["name", "user_limit", "priority", "members"]
    assert "sk-live" not in str(caught.value)
    twice = [PlanPolicy("a", members=["0" * 16]), PlanPolicy("b", members=["0" * 16]), PlanPolicy("a")]
    with pytest.raises(ConfigError) as caught:
        PlanPolicies(twice)
    assert [p.variable for p in caught.value.problems] == [".b.members", ".a"]
