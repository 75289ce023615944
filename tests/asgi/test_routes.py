"""The route table against a naive first match, and what endless paths may cost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.asgi.routes import RouteTable, path_of
from autoglm_throttle.settings import RoutePolicy
from autoglm_throttle.settings.route_policy import RouteTrie
from tests.settings.linear_search import CountedText, first_match

segments = st.sampled_from(["a", "b", "c", "{x}", "*"])
methods = st.sampled_from([None, ["GET"], ["POST"], ["GET", "POST"]])


@st.composite
def policies(draw: st.DrawFn) -> list[RoutePolicy]:
    found = []
    for number in range(draw(st.integers(0, 8))):
        drawn = draw(st.lists(segments, max_size=3))
        front = [
            f"{{x{place}}}" if part == "{x}" else part for place, part in enumerate(drawn) if part != "*"
        ]
        rest = ["*"] if "*" in drawn else []
        pattern = "/" + "/".join(front + rest)
        found.append(RoutePolicy(pattern, methods=draw(methods), name=f"policy {number}"))
    return found


def paths_of(*parts: str) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(parts), max_size=5).map(lambda drawn: "/" + "/".join(drawn))


PARTS = ("a", "b", "c", "d", "", "{x0}", "*", "a b")
paths = paths_of(*PARTS)


@given(
    configured=policies(),
    learned=policies(),
    requests=st.lists(
        st.tuples(paths_of(*PARTS, "a\n", "\n"), st.sampled_from(["GET", "HEAD", "POST", "PUT"])), max_size=20
    ),
)
def test_table_finds_the_first_match(
    configured: list[RoutePolicy], learned: list[RoutePolicy], requests: list[tuple[str, str]]
) -> None:
    table = RouteTable(configured)
    for path, method in requests * 2:
        assert table.match(path, method) is first_match(configured, path, method)
    table.learn(learned)
    assert table.has_routes is bool(configured or learned)
    for path, method in requests * 2:
        assert table.match(path, method) is first_match(configured + learned, path, method)


@given(number=st.integers(0, 30), path=paths)
def test_slashes_that_repeat_or_trail_change_nothing(number: int, path: str) -> None:
    table = RouteTable([RoutePolicy("/a/b"), RoutePolicy("/a/*"), RoutePolicy("/{x}"), RoutePolicy("/")])
    doubled = path.replace("/", "/" * (1 + number % 3)) + "/" * (number // 10)
    assert table.match(doubled, "GET") is table.match(path, "GET")


# FIELD 16: as `re` with "$", which routers use
@given(path=paths)
def test_line_feed_behind_a_path_changes_nothing(path: str) -> None:
    table = RouteTable([RoutePolicy("/a/b"), RoutePolicy("/a"), RoutePolicy("/b/*"), RoutePolicy("/")])
    assert table.match(f"{path}\n", "GET") is table.match(path, "GET")


# FIELD 16
@pytest.mark.parametrize("path", ["/items/\n", "/items/x\n", "/items/x\n/"])
def test_line_feed_is_a_value_of_a_parameter(path: str) -> None:
    table = RouteTable([item := RoutePolicy("/items/{item}"), RoutePolicy("/items")])
    assert table.match(path, "GET") is item


# FIELD 17
def test_policy_of_get_covers_head() -> None:
    get, rest = RoutePolicy("/a", methods=["GET"]), RoutePolicy("/a")
    table = RouteTable([get, rest])
    assert [table.match("/a", method) for method in ("GET", "HEAD", "POST")] == [get, get, rest]
    assert get.name == "GET /a"


def test_learned_route_comes_last_and_is_replaced_if_relearned() -> None:
    mine, first, second = RoutePolicy("/a"), RoutePolicy("/*", name="first"), RoutePolicy("/b", name="second")
    table = RouteTable([mine])
    table.learn([first])
    assert [table.match(path, "GET") for path in ("/a", "/b", "/c")] == [mine, first, first]
    table.learn([second])
    assert [table.match(path, "GET") for path in ("/a", "/b", "/c")] == [mine, second, None]
    table.learn([])
    assert [table.match(path, "GET") for path in ("/a", "/b", "/c")] == [mine, None, None]


def test_an_empty_table_says_so() -> None:
    assert not RouteTable().has_routes
    assert RouteTable().match("/", "GET") is None


def test_routes_with_one_first_segment_are_not_searched_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CountedText, "comparisons", 0)
    wanted = [RoutePolicy(f"/v1/s{number}/{{id}}") for number in range(64)]
    trie = RouteTrie(wanted)
    for number in range(64):
        found = trie.first("GET", [CountedText(part) for part in ("v1", f"s{number}", "7")])
        assert found == number
    assert CountedText.comparisons <= 64 * 4


@pytest.mark.parametrize(
    ("path", "root", "found"),
    [
        ("/v1/chat", "", "/v1/chat"),
        ("/v1/chat", None, "/v1/chat"),
        ("/api/v1", "/api", "/v1"),
        ("/api", "/api", "/"),
        ("/api/", "/api", "/"),
        ("/apix", "/api", "/apix"),
        ("/other", "/api", "/other"),
        ("//api/x", "/api", "//api/x"),
        ("", "", "/"),
        (None, None, "/"),
        ("/api//x", "/api", "//x"),
    ],
)
def test_a_path_is_taken_without_its_root(path: str | None, root: str | None, found: str) -> None:
    assert path_of({"path": path, "root_path": root}) == found


def test_a_scope_without_a_path_is_the_root() -> None:
    assert path_of({}) == "/"
