"""An application receives the same scope in process as from a server."""

from __future__ import annotations

import pytest
from starlette.types import Receive, Scope, Send

from autoglm_throttle.traffic.inproc import run_inprocess
from autoglm_throttle.traffic.request_source import PlannedRequest
from autoglm_throttle.types import Priority
from tests.traffic.inproc.inproc_loads import a_load, answer, http


def test_scopes_are_those_of_a_server() -> None:
    scopes: list[Scope] = []

    async def behave(scope: Scope, _receive: Receive, send: Send) -> None:
        scopes.append(scope)
        scope["headers"].append((b"planted", b"by the application"))
        await answer(send, 200)

    requests = (
        PlannedRequest(target="/v1/a%20b?x=%2F", headers=(("Content-Type", "text/plain"),), body=b"abc"),
        PlannedRequest(method="GET", target="/plain", body=b"", headers=(), priority=False),
    )
    load = a_load(
        [0.0, 1.0, 2.0], *requests, kinds=[0, 1, 0], clients=[0, 65_535, 0], priorities=bytes([1, 2, 1])
    )
    run_inprocess(http(behave), load)
    first, second, third = scopes
    assert (first["method"], first["path"], first["raw_path"]) == ("POST", "/v1/a b", b"/v1/a%20b")
    assert first["query_string"] == b"x=%2F"
    assert first["headers"][:-1] == [
        (b"host", b"localhost"),
        (b"content-type", b"text/plain"),
        (b"x-priority", Priority(1).label.encode()),
        (b"x-client", b"client-0"),
        (b"content-length", b"3"),
    ]
    assert third["headers"] == first["headers"]
    assert second["headers"][:-1] == [(b"host", b"localhost"), (b"x-client", b"client-65535")]
    assert (first["client"][0], second["client"][0]) == ("10.0.0.1", "10.1.0.0")


def test_a_recording_of_many_kinds_does_not_keep_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autoglm_throttle.traffic.inproc.exchange.MAX_CACHED", 1)
    paths: list[str] = []

    async def behave(scope: Scope, _receive: Receive, send: Send) -> None:
        paths.append(scope["path"])
        await answer(send, 200)

    load = a_load([0.0] * 4, PlannedRequest(target="/a"), PlannedRequest(target="/b"), kinds=[0, 1, 0, 1])
    run_inprocess(http(behave), load)
    assert paths == ["/a", "/b", "/a", "/b"]


def test_headers_of_priority_and_client_can_be_named_or_left_out() -> None:
    seen: list[list[tuple[bytes, bytes]]] = []

    async def behave(scope: Scope, _receive: Receive, send: Send) -> None:
        seen.append(scope["headers"])
        await answer(send, 200)

    bare = a_load([0.0], PlannedRequest(method="GET", headers=(), body=b""))
    run_inprocess(http(behave), bare, priority_header="X-Rank", identity_header="X-User")
    run_inprocess(http(behave), bare, priority_header="", identity_header="")
    assert [name for name, _ in seen[0]] == [b"host", b"x-rank", b"x-user"]
    assert [name for name, _ in seen[1]] == [b"host"]
