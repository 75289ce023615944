"""Idle holders over real sockets: other users are served, and a body that never comes is ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.socket_cases import holders
from benchmarks.socket_cases.servers import COMMANDS, served
from tests.hostile.attacks import Attack
from tests.servers.server import Server

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.xdist_group("load")]

SECONDS = 6.0
SETTLED = 3
"""Second from the first holder on from which all slots of idle requests are back, on a busy machine too."""

START_LIMIT = 16
BODY_TIMEOUT_S = 1.0


@pytest.fixture(params=sorted(COMMANDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(kind: str) -> Iterator[Server]:
    with served(kind) as running:
        yield running


@pytest.fixture
def impatient(kind: str, tmp_path: Path) -> Iterator[Server]:
    """A server that waits for a body for a short time."""
    path = tmp_path / "throttle.toml"
    path.write_text(f"body_timeout_s = {BODY_TIMEOUT_S}\n")
    with served(kind, file=str(path)) as running:
        yield running


@pytest.mark.parametrize("name", ["event streams", "unread downloads"])
def test_idle_holders_leave_slots_to_other_users(server: Server, name: str) -> None:
    held = asyncio.run(holders.run(server, holders.CASES[name], SECONDS))
    before = [answer.status for answer in held.others if answer.at_s < holders.BEFORE_S]
    assert set(before) == {200}
    assert held.statuses[200] > START_LIMIT
    assert held.share_from(SETTLED) == 1.0, (held.shares(), held.state)
    # One that retried in the last second is not paused yet.
    assert held.state["paused"] + held.state["in_flight"] == held.statuses[200]
    assert held.state["in_flight"] < START_LIMIT


def test_heads_without_body_take_no_slots(server: Server) -> None:
    held = asyncio.run(holders.run(server, holders.CASES["heads without body"], SECONDS))
    assert held.statuses == {}
    assert held.share_from(0) == 1.0, (held.shares(), held.state)
    assert held.state["in_flight"] == 0


def test_body_that_never_comes_ends_with_408(attack: Attack, impatient: Server) -> None:
    case = holders.CASES["heads without body"]
    held = asyncio.run(holders.run(impatient, case, SECONDS))
    with attack("clients: bodies that never come end with 408", times=case.number):
        assert held.statuses == {408: case.number}
    assert held.state["oddities"]["body_timeout"] == case.number
    assert held.share_from(0) == 1.0, (held.shares(), held.state)


def test_holders_that_leave_are_forgotten(server: Server) -> None:
    asyncio.run(holders.run(server, holders.CASES["event streams"], 2.0))
    assert server.until("paused", 0) == 0
    assert json.loads(server.get("/state").body)["in_flight"] == 0
