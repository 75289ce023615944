"""The work class of a request is its route, or its method and the first segments of its path."""

from __future__ import annotations

from typing import Any

import pytest

from autoglm_throttle.asgi import RequestClassifier, routes
from autoglm_throttle.settings import RoutePolicy
from tests.asgi.run_app import http_scope, websocket_scope
from tests.asgi.scopes import make


def name_of(classifier: RequestClassifier, scope: dict[str, Any]) -> str:
    classified = classifier.classify(scope)
    assert classified is not None
    return classified[1].work_class


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/", "GET /"),
        ("/v1", "GET /v1"),
        ("/v1/chat/completions", "GET /v1/chat"),
        ("//v1//chat/", "GET /v1/chat"),
        ("/users/4711", "GET /users/*"),
        ("/users/4711/orders", "GET /users/*"),
        ("/files/8d3f6c1e-0f4b-4e51-9d66-0a2b7c0d9e11", "GET /files/*"),
        ("/" + "a" * 19, "GET /" + "a" * 19),
        ("/" + "a" * 20, "GET /*"),
    ],
)
def test_ids_in_a_path_make_no_classes(path: str, name: str) -> None:
    classifier = make()
    assert [name_of(classifier, http_scope(path)) for _ in range(2)] == [name, name]


def test_methods_and_websockets_are_classes_of_their_own() -> None:
    classifier = make()
    assert name_of(classifier, http_scope("/x", "POST")) == "POST /x"
    assert name_of(classifier, http_scope("/x", "BREW")) == "* /x"
    assert name_of(classifier, websocket_scope("/x")) == "WEBSOCKET /x"


def test_path_is_named_without_its_root() -> None:
    assert name_of(make(), http_scope("/api/v1/chat", root_path="/api")) == "GET /v1/chat"


@pytest.mark.parametrize(
    "scope", [{"type": "websocket"}, {"type": "http"}, {"type": "http", "method": ["GET"], "path": 5}]
)
def test_malformed_scope_has_the_class_of_the_service(scope: dict[str, Any]) -> None:
    assert name_of(make(), scope) == ""


def test_cache_of_paths_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MAX_CACHED_PATHS", 4)
    classifier = make()
    for number in range(50):
        classifier.classify(http_scope(f"/{number}"))
        # A full cache forgets the oldest path only.
        last = range(max(0, number - 3), number + 1)
        assert list(classifier._paths["GET"]) == [f"/{at}" for at in last]
    assert name_of(classifier, http_scope("/" + "x/" * 1000)) == "GET /x/x"
    assert "/49" in classifier._paths["GET"], "a long path is not cached"


def test_name_of_a_route_replaces_that_of_the_path() -> None:
    classifier = make(routes=[RoutePolicy("/v1/chat", name="chat")])
    assert name_of(classifier, http_scope("/v1/chat")) == "chat"
    assert name_of(classifier, http_scope("/v1/other")) == "GET /v1/other"
