"""``doctor`` on servers whose users lack permissions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import autoglm_throttle
from autoglm_throttle.cli.doctor_redis import ARGUMENTS, missing_permissions
from autoglm_throttle.store import fleet
from autoglm_throttle.store import gpu as gpu_fleet
from autoglm_throttle.store.breakers import protocol as breakers
from autoglm_throttle.store.script import CLUSTER_RIGHTS, RIGHTS
from tests.cli.doctor_results import PASSWORD, WELL, Doctor, by_item, not_well
from tests.store.server import RedisServer

GUIDE = Path(__file__).parents[2] / "docs" / "shared-limits.md"


def allow(server: RedisServer, *rules: str) -> str:
    server.command("ACL", "SETUSER", "me", "reset", "on", f">{PASSWORD}", *rules)
    return server.url_as("me", PASSWORD)


def guide() -> list[str]:
    """The rules of the user in the guide."""
    (line,) = re.findall(r"^ACL SETUSER throttle on >password (.*)$", GUIDE.read_text(), re.MULTILINE)
    return str(line).split()


def test_guide_lists_all_permissions() -> None:
    assert guide() == ["~athr:*", *(f"+{command}" for command in RIGHTS.split())]
    assert all(f"+{command}" in GUIDE.read_text() for command in CLUSTER_RIGHTS.split())
    assert "~athr:*" in guide(), "the default of REDIS_PREFIX"
    (line,) = re.findall(
        r"^With `FLEET` or `FLEET_GPU` it needs `(.*)` as well", GUIDE.read_text(), re.MULTILINE
    )
    of_fleet = {*fleet.RIGHTS.split(), *gpu_fleet.RIGHTS.split()}
    assert sorted(line.split()) == sorted(f"+{command}" for command in of_fleet - set(RIGHTS.split()))
    every = {*RIGHTS.split(), *of_fleet, *breakers.RIGHTS.split()}
    assert every - {"eval", "evalsha", "time", "ping"} == set(ARGUMENTS)


def test_the_commands_of_each_script_are_the_rights_it_needs() -> None:
    needed = {
        "sliding_window.lua": RIGHTS,
        "fleet.lua": fleet.RIGHTS,
        "fleet_gpu.lua": gpu_fleet.RIGHTS,
        "breaker.lua": breakers.SCRIPT_RIGHTS,
    }
    for path in Path(autoglm_throttle.__file__).parent.glob("**/*.lua"):
        used = {word.lower() for word in re.findall(r"(?:call|try)\('([A-Z]+)'", path.read_text())}
        assert used | {"evalsha", "eval"} == set(needed.pop(path.name).split()), path.name
    assert needed == {}


FLEETS = [
    ("FLEET", fleet.RIGHTS),
    ("FLEET_GPU", gpu_fleet.RIGHTS),
    ("BREAKER_SHARED", breakers.RIGHTS),
]


@pytest.mark.parametrize(("setting", "needed"), FLEETS, ids=[setting for setting, _ in FLEETS])
def test_a_fleet_needs_more(doctor: Doctor, redis_server: RedisServer, setting: str, needed: str) -> None:
    more = [command for command in needed.split() if command not in RIGHTS.split()]
    usual = (*guide(), "resetchannels", "&athr:*", "+info", "+multi", "+discard")
    url = allow(redis_server, *usual)
    assert doctor(REDIS_URL=url, REDIS_PREFIX="athr")[0] == 0
    status, findings = doctor(REDIS_URL=url, REDIS_PREFIX="athr", **{setting: "true"})
    assert (status, by_item(findings)["rights"]["value"]) == (1, more)
    allow(redis_server, *usual, *(f"+{command}" for command in more))
    assert doctor(REDIS_URL=url, REDIS_PREFIX="athr", **{setting: "true"})[0] == 0
    allow(redis_server, *usual, *(f"+{command}" for command in more[1:]))
    status, findings = doctor(REDIS_URL=url, REDIS_PREFIX="athr", **{setting: "true"})
    assert (status, by_item(findings)["rights"]["value"]) == (1, more[:1])


def test_channels_that_are_closed_to_the_user(doctor: Doctor, redis_server: RedisServer) -> None:
    more = [f"+{command}" for command in breakers.RIGHTS.split()]
    url = allow(redis_server, *guide(), "resetchannels", "&other:*", "+info", "+multi", "+discard", *more)
    assert doctor(REDIS_URL=url, REDIS_PREFIX="athr")[0] == 0
    status, findings = doctor(REDIS_URL=url, REDIS_PREFIX="athr", BREAKER_SHARED="true")
    rights = by_item(findings)["rights"]
    assert (status, rights["value"]) == (1, ["channels"])
    assert rights["hint"].endswith(" &athr:*")


def test_the_user_of_the_guide_can_count(doctor: Doctor, redis_server: RedisServer) -> None:
    url = allow(redis_server, *guide())
    status, findings = doctor(REDIS_URL=url, REDIS_PREFIX="athr")
    assert (status, not_well(findings)) == (0, [("server", "warn")])
    assert [f["item"] for f in findings] == ["connection", "round_trip", "clock", "server", "counting"]
    more = allow(redis_server, *guide(), "+info", "+multi", "+discard")
    status, findings = doctor(REDIS_URL=more, REDIS_PREFIX="athr")
    assert (status, not_well(findings)) == (0, [])
    assert list(by_item(findings)) == WELL


@pytest.mark.parametrize("missing", RIGHTS.split())
def test_missing_permission_is_named(doctor: Doctor, redis_server: RedisServer, missing: str) -> None:
    url = allow(redis_server, *guide(), "+info", "+multi", "+discard", f"-{missing}")
    status, findings = doctor(REDIS_URL=url, REDIS_PREFIX="athr")
    rights = by_item(findings)["rights"]
    assert (status, rights["level"], rights["value"]) == (1, "fail", [missing])
    assert rights["hint"].endswith(f" +{missing}")
    assert "counting" not in by_item(findings)
    assert redis_server.command("KEYS", "athr:*doctor*") == []


@pytest.mark.parametrize("missing", ["lpush", "evalsha", "eval", "pexpire", "set"])
def test_unknown_missing_permission_lists_all(doctor: Doctor, own_server: RedisServer, missing: str) -> None:
    own_server.command("SCRIPT", "FLUSH")
    url = allow(own_server, *guide(), f"-{missing}")
    status, findings = doctor(REDIS_URL=url, REDIS_PREFIX="athr")
    counting = by_item(findings)["counting"]
    assert (status, counting["level"], counting["value"]) == (1, "fail", "forbidden")
    assert RIGHTS in counting["hint"]
    assert own_server.command("DBSIZE") == 0


def test_keys_that_are_closed_to_the_user(doctor: Doctor, redis_server: RedisServer) -> None:
    url = allow(redis_server, "~other:*", "+@all")
    status, findings = doctor(REDIS_URL=url, REDIS_PREFIX="athr")
    rights = by_item(findings)["rights"]
    assert (status, rights["value"]) == (1, ["keys"])
    assert rights["hint"].endswith(" ~athr:*")


def test_permission_check_writes_nothing(own_server: RedisServer) -> None:
    import redis

    with redis.Redis(port=own_server.port, protocol=2) as client:
        connection = client.connection_pool.get_connection()

        def ask(*words: Any) -> Any:
            connection.send_command(*words)
            return connection.read_response()

        every = [*ARGUMENTS, "time", "eval", "evalsha"]
        found = missing_permissions(ask, every, "k")
        client.connection_pool.release(connection)
    assert found == {"command": [], "channel": [], "key": []}
    assert own_server.command("DBSIZE") == 0
