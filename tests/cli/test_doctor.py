"""``doctor`` on real servers: well, dead, frozen, forbidding, far away, and gone in the midst of it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

import autoglm_throttle
from autoglm_throttle.cli import doctor_gpu, doctor_redis, doctor_storage, main
from autoglm_throttle.cli.doctor_rights import ARGUMENTS, refused
from autoglm_throttle.cli.finding import Finding, Level, within
from autoglm_throttle.gpu import fleet as gpu_fleet
from autoglm_throttle.gpu.none import NoSource
from autoglm_throttle.limiting.shared import redis_fleet
from autoglm_throttle.limiting.shared.redis_script import CLUSTER_RIGHTS, RIGHTS
from autoglm_throttle.limiting.shared.store import Trouble
from autoglm_throttle.model import GpuSample, ProviderUnavailable
from tests.stores.cluster import Cluster3
from tests.stores.proxy import SlowProxy
from tests.stores.sentinel import NAME, SentinelPair
from tests.stores.server import RedisServer, newest

PASSWORD = "planted-s3cret"
GUIDE = Path(__file__).parents[2] / "docs" / "shared-limits.md"
WELL = ["connection", "round_trip", "clock", "version", "role", "eviction", "rights", "counting"]

Doctor = Callable[..., tuple[int, list[dict[str, Any]]]]


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AUTOGLM_THROTTLE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AUTOGLM_THROTTLE_GPU", "none")


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], redis_prefix: str) -> Doctor:
    """Runs the command; gives its status and what it found of the store."""

    def run(**environ: str) -> tuple[int, list[dict[str, Any]]]:
        for name, value in ({"REDIS_PREFIX": redis_prefix} | environ).items():
            monkeypatch.setenv("AUTOGLM_THROTTLE_" + name, value)
        status = main(["doctor", "--format", "json"])
        out, err = capsys.readouterr()
        assert PASSWORD not in out + err
        assert err == ""
        document = json.loads(out)
        assert document["ok"] is (status == 0)
        return status, [finding for finding in document["findings"] if finding["part"] != "gpu"]

    return run


def by_item(findings: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {finding["item"]: finding for finding in findings}


def not_well(findings: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(f["item"], f["level"]) for f in findings if f["level"] != "ok"]


def test_a_server_that_is_well(doctor: Doctor, redis_server: RedisServer, redis_prefix: str) -> None:
    status, findings = doctor(REDIS_URL=redis_server.url)
    assert (status, not_well(findings)) == (0, [])
    found = by_item(findings)
    assert list(found) == WELL
    assert 0 < found["round_trip"]["value"] < 1
    assert abs(found["clock"]["value"]) < 1
    assert f"{redis_server.url} answers: one server, no TLS" in found["connection"]["message"]
    assert found["version"]["value"] in redis_server.binary.name
    assert redis_server.command("KEYS", f"{redis_prefix}*") == [], "nothing is left behind"


def test_as_a_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], own_server: RedisServer
) -> None:
    own_server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    monkeypatch.setenv("AUTOGLM_THROTTLE_REDIS_URL", own_server.url)
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "ok    gpu    GPU=none: nothing is read"
    assert lines[1] == f"ok    redis  {own_server.url} answers: one server, no TLS"
    (warned,) = [place for place, line in enumerate(lines) if line.startswith("warn")]
    assert lines[warned].startswith("warn  redis  eviction policy allkeys-lru: ")
    assert lines[warned + 1] == " " * 13 + "set maxmemory-policy volatile-ttl or noeviction"
    assert all(re.match(r"(ok   |warn |fail ) (gpu|redis) ", line) or line[:13].isspace() for line in lines)


def test_nothing_to_ask(doctor: Doctor) -> None:
    status, findings = doctor()
    assert (status, [finding["item"] for finding in findings]) == (0, ["configured"])


# --- a server that does not answer: one clear line, soon ---


@pytest.fixture
def at_once() -> Any:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < 2.0, "about a second, and a slow machine's rest"


def test_a_dead_server(doctor: Doctor, own_server: RedisServer, at_once: None) -> None:
    own_server.kill()
    status, (finding,) = doctor(REDIS_URL=own_server.url)
    assert (status, finding["item"], finding["value"]) == (1, "connection", "unreachable")
    assert "refused" in finding["message"]
    assert finding["hint"]


def test_a_frozen_server(doctor: Doctor, own_server: RedisServer, at_once: None) -> None:
    own_server.pause()
    status, (*before, finding) = doctor(REDIS_URL=own_server.url)
    own_server.resume()
    assert [f["item"] for f in before] in ([], ["connection"])
    assert (status, finding["item"], finding["level"]) == (1, "connection", "fail")
    assert "timeout" in finding["message"].lower()


def test_a_wrong_password(doctor: Doctor) -> None:
    with RedisServer(newest(), password="another") as server:
        url = f"redis://:{PASSWORD}@127.0.0.1:{server.port}/0"
        status, (finding,) = doctor(REDIS_URL=url)
        assert (status, finding["value"]) == (1, "forbidden")
        assert "redis://:********@127.0.0.1" in finding["message"]
        assert "user and password" in finding["hint"]
        status, findings = doctor(REDIS_URL=f"redis://127.0.0.1:{server.port}/0")
        assert status == 1
        assert not_well(findings)[-1] == ("connection", "fail")


def test_a_sentinel_that_knows_no_such_name(doctor: Doctor, redis_sentinel: SentinelPair) -> None:
    status, (finding,) = doctor(REDIS_URL=redis_sentinel.url.replace(NAME, "nobody"))
    assert status == 1
    assert "nobody" in finding["message"]


def test_a_server_that_speaks_tls_when_none_is_wanted(
    doctor: Doctor, tls_proxy: SlowProxy, at_once: None
) -> None:
    status, findings = doctor(REDIS_URL=f"redis://127.0.0.1:{tls_proxy.port}/0")
    assert (status, findings[-1]["item"]) == (1, "connection")


def test_a_server_without_tls_where_it_is_wanted(
    doctor: Doctor, own_server: RedisServer, at_once: None
) -> None:
    status, findings = doctor(REDIS_URL=own_server.url.replace("redis://", "rediss://"))
    assert (status, findings[-1]["item"]) == (1, "connection")


def test_a_server_that_dies_while_it_is_asked(
    doctor: Doctor, own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = doctor_redis._server

    def dies(node: Any) -> list[Finding]:
        own_server.kill()
        return asked(node)

    monkeypatch.setattr(doctor_redis, "_server", dies)
    status, findings = doctor(REDIS_URL=own_server.url)
    assert (status, not_well(findings)) == (1, [("connection", "fail")])


def test_what_hangs_for_ever_is_left_alone(
    doctor: Doctor, own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = Event()
    monkeypatch.setattr(doctor_redis, "_examine", lambda *args: end.wait())
    monkeypatch.setattr(doctor_redis, "ALL_S", 0.05)
    status, (finding,) = doctor(REDIS_URL=own_server.url.replace("//", f"//me:{PASSWORD}@"))
    end.set()
    assert status == 1
    assert "me:********@127.0.0.1" in finding["message"]
    assert "no answer within 0.05 s" in finding["message"]


# --- a server that answers, but ---


def test_a_replica(doctor: Doctor, redis_sentinel: SentinelPair) -> None:
    status, findings = doctor(REDIS_URL=redis_sentinel.replica.url)
    assert (status, not_well(findings)) == (1, [("role", "fail"), ("counting", "fail")])
    assert by_item(findings)["counting"]["value"] == "readonly"


def test_a_server_whose_memory_is_full(doctor: Doctor, own_server: RedisServer) -> None:
    own_server.command("CONFIG", "SET", "maxmemory", "1")
    status, findings = doctor(REDIS_URL=own_server.url)
    assert (status, not_well(findings)) == (1, [("counting", "fail")])
    assert by_item(findings)["counting"]["value"] == "full"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("return {1}", "it cannot count: "),
        ("return ARGV[8] == '2' and {1, 0, 0, 9, 9, 0, 1, 9, 0, 9, 0} or {1, 1, 1}", "it counts wrong: "),
        ("return ARGV[8] == '2' and {1, 1, 9, 0, 9, 0, 1, 9, 0, 9, 0} or {1, 0, 1}", "it counts wrong: "),
    ],
)
def test_a_server_that_counts_otherwise(
    doctor: Doctor, own_server: RedisServer, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    monkeypatch.setattr(doctor_redis, "script", lambda: script)
    status, findings = doctor(REDIS_URL=own_server.url)
    assert (status, not_well(findings)) == (1, [("counting", "fail")])
    assert findings[-1]["message"].startswith(said)
    assert findings[-1]["value"] == "confused"


@pytest.mark.parametrize(
    ("policy", "level"),
    [("noeviction", "ok"), ("volatile-ttl", "ok"), ("volatile-lru", "warn"), ("allkeys-random", "warn")],
)
def test_eviction(doctor: Doctor, own_server: RedisServer, policy: str, level: str) -> None:
    own_server.command("CONFIG", "SET", "maxmemory-policy", policy)
    status, findings = doctor(REDIS_URL=own_server.url)
    found = by_item(findings)["eviction"]
    assert (status, found["level"], found["value"]) == (0, level, policy)


@pytest.mark.parametrize(("deadline_s", "level"), [(1.0, "ok"), (0.055, "warn"), (0.025, "fail")])
def test_a_server_that_is_far_away(
    doctor: Doctor, slow_proxy: SlowProxy, deadline_s: float, level: str
) -> None:
    slow_proxy.delay_s = 0.03
    status, findings = doctor(REDIS_URL=slow_proxy.url, REDIS_DEADLINE_S=str(deadline_s), REDIS_READ_S="2")
    found = by_item(findings)["round_trip"]
    assert (status, found["level"]) == (int(level == "fail"), level)
    assert 0.03 <= found["value"] < 0.4
    assert ("REDIS_DEADLINE_S" in found["hint"]) is (level != "ok")
    assert abs(by_item(findings)["clock"]["value"]) < 0.2


def test_an_old_server_and_one_of_another_kind() -> None:
    nothing: Any = None
    node = doctor_redis._Node("", nothing, nothing)
    for version, level in {
        "6.0.16": "fail",
        "5.0": "fail",
        "6.2.0": "ok",
        "7.0.15": "ok",
        "10.0": "ok",
    }.items():
        assert doctor_redis._version(node, {"redis_version": version}).level == level
    found = doctor_redis._version(node, {"redis_version": "7.2.4", "valkey_version": "8.1.4"})
    assert (found.message, found.value) == ("Valkey 8.1.4", "8.1.4")


# --- rights ---


def allow(server: RedisServer, *rules: str) -> str:
    server.command("ACL", "SETUSER", "me", "reset", "on", f">{PASSWORD}", *rules)
    return server.url_as("me", PASSWORD)


def guide() -> list[str]:
    """The rules of the user in the guide."""
    (line,) = re.findall(r"^ACL SETUSER throttle on >password (.*)$", GUIDE.read_text(), re.MULTILINE)
    return str(line).split()


def test_the_guide_names_all_rights() -> None:
    assert guide() == ["~athr:*", *(f"+{command}" for command in RIGHTS.split())]
    assert all(f"+{command}" in GUIDE.read_text() for command in CLUSTER_RIGHTS.split())
    assert "~athr:*" in guide(), "the default of REDIS_PREFIX"
    (line,) = re.findall(
        r"^With `FLEET` or `FLEET_GPU` it needs `(.*)` as well", GUIDE.read_text(), re.MULTILINE
    )
    fleet = {*redis_fleet.RIGHTS.split(), *gpu_fleet.RIGHTS.split()}
    assert sorted(line.split()) == sorted(f"+{command}" for command in fleet - set(RIGHTS.split()))
    assert {*RIGHTS.split(), *fleet} - {"eval", "evalsha", "time"} == set(ARGUMENTS)


def test_the_commands_of_each_script_are_the_rights_it_needs() -> None:
    needed = {
        "sliding_window.lua": RIGHTS,
        "fleet.lua": redis_fleet.RIGHTS,
        "fleet_gpu.lua": gpu_fleet.RIGHTS,
    }
    for path in Path(autoglm_throttle.__file__).parent.glob("**/*.lua"):
        used = {word.lower() for word in re.findall(r"(?:call|try)\('([A-Z]+)'", path.read_text())}
        assert used | {"evalsha", "eval"} == set(needed.pop(path.name).split()), path.name
    assert needed == {}


FLEETS = [("FLEET", redis_fleet.RIGHTS), ("FLEET_GPU", gpu_fleet.RIGHTS)]


@pytest.mark.parametrize(("setting", "needed"), FLEETS, ids=[setting for setting, _ in FLEETS])
def test_a_fleet_needs_more(doctor: Doctor, redis_server: RedisServer, setting: str, needed: str) -> None:
    more = [command for command in needed.split() if command not in RIGHTS.split()]
    url = allow(redis_server, *guide(), "+info", "+multi", "+discard")
    assert doctor(REDIS_URL=url, REDIS_PREFIX="athr")[0] == 0
    status, findings = doctor(REDIS_URL=url, REDIS_PREFIX="athr", **{setting: "true"})
    assert (status, by_item(findings)["rights"]["value"]) == (1, more)
    allow(redis_server, *guide(), "+info", "+multi", "+discard", *(f"+{command}" for command in more))
    assert doctor(REDIS_URL=url, REDIS_PREFIX="athr", **{setting: "true"})[0] == 0
    allow(redis_server, *guide(), "+info", "+multi", "+discard", *(f"+{command}" for command in more[1:]))
    status, findings = doctor(REDIS_URL=url, REDIS_PREFIX="athr", **{setting: "true"})
    assert (status, by_item(findings)["rights"]["value"]) == (1, more[:1])


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
def test_the_missing_right_is_named(doctor: Doctor, redis_server: RedisServer, missing: str) -> None:
    url = allow(redis_server, *guide(), "+info", "+multi", "+discard", f"-{missing}")
    status, findings = doctor(REDIS_URL=url, REDIS_PREFIX="athr")
    rights = by_item(findings)["rights"]
    assert (status, rights["level"], rights["value"]) == (1, "fail", [missing])
    assert rights["hint"].endswith(f" +{missing}")
    assert "counting" not in by_item(findings)
    assert redis_server.command("KEYS", "athr:*doctor*") == []


@pytest.mark.parametrize("missing", ["lpush", "evalsha", "eval", "pexpire", "set"])
def test_if_it_can_not_be_named_all_are(doctor: Doctor, own_server: RedisServer, missing: str) -> None:
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


def test_asking_for_rights_writes_nothing(own_server: RedisServer) -> None:
    import redis

    with redis.Redis(port=own_server.port, protocol=2) as client:
        connection = client.connection_pool.get_connection()

        def ask(*words: Any) -> Any:
            connection.send_command(*words)
            return connection.read_response()

        every = [*ARGUMENTS, "time", "eval", "evalsha"]
        found = refused(ask, every, "k")
        client.connection_pool.release(connection)
    assert found is not None
    assert (found.commands, found.keys) == ((), False)
    assert own_server.command("DBSIZE") == 0


# --- topologies ---


def test_a_cluster(doctor: Doctor, redis_cluster: Cluster3, redis_prefix: str) -> None:
    status, findings = doctor(REDIS_URL=redis_cluster.url)
    assert (status, not_well(findings)) == (0, [])
    assert "a cluster, our keys on 3 of its nodes" in findings[0]["message"]
    nodes = {f["message"].partition(": ")[0] for f in findings[1:]}
    assert nodes == {f"127.0.0.1:{node.port}" for node in redis_cluster.nodes}
    assert [f["item"] for f in findings] == WELL[:1] + WELL[1:] * 3


def test_a_sentinel(doctor: Doctor, redis_sentinel: SentinelPair) -> None:
    status, findings = doctor(REDIS_URL=redis_sentinel.url)
    assert (status, not_well(findings)) == (0, [])
    assert f"the primary of {NAME}" in findings[0]["message"]


def test_a_server_behind_tls(doctor: Doctor, tls_proxy: SlowProxy) -> None:
    status, findings = doctor(REDIS_URL=tls_proxy.url)
    assert (status, not_well(findings)) == (0, [])
    assert findings[0]["message"].endswith(", TLS")


# --- storages of limits ---

MEMCACHED = "async+memcached://127.0.0.1:1"


class Scripted:
    """A storage that says what it is told to."""

    approximate = False
    probed: Trouble | None = None
    answers: Any = (1, 999, 0, 0, 0)
    last_error = ""
    end: Event | None = None
    dropped = 0

    def __init__(self, uri: str, deadline_s: float, **more: object) -> None:
        self.uri = uri

    async def probe(self) -> Trouble | None:
        if self.end is not None:
            await asyncio.to_thread(self.end.wait)
        return self.probed

    async def charge(self, charges: object) -> Any:
        return self.answers

    def drop(self) -> None:
        Scripted.dropped += 1


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> type[Scripted]:
    kind = type("Storage", (Scripted,), {})
    monkeypatch.setattr(doctor_storage, "LimitsWindow", kind)
    monkeypatch.setattr(Scripted, "dropped", 0)
    return kind


def test_a_storage_that_is_well(doctor: Doctor) -> None:
    status, findings = doctor(USER_STORAGE="async+memory://")
    assert (status, not_well(findings)) == (0, [])
    assert [finding["item"] for finding in findings] == ["connection", "round_trip", "counting"]
    assert findings[0]["message"] == "async+memory:// answers"


def test_a_storage_that_only_approximates(doctor: Doctor, storage: type[Scripted]) -> None:
    storage.approximate = True
    status, findings = doctor(USER_STORAGE=MEMCACHED)
    assert (status, not_well(findings)) == (0, [("counting", "warn")])
    assert "1.97 times" in findings[-1]["message"]


def test_a_dead_storage(doctor: Doctor, storage: type[Scripted]) -> None:
    storage.probed, storage.last_error = Trouble.UNREACHABLE, "OSError: refused\nand more"
    status, (finding,) = doctor(USER_STORAGE=MEMCACHED)
    assert (status, finding["item"], finding["value"]) == (1, "connection", "unreachable")
    assert finding["message"] == f"{MEMCACHED}: OSError: refused"
    assert Scripted.dropped == 1


def test_a_storage_that_dies_while_it_is_asked(doctor: Doctor, storage: type[Scripted]) -> None:
    storage.answers = Trouble.TIMEOUT
    status, findings = doctor(USER_STORAGE=MEMCACHED)
    assert (status, [f["level"] for f in findings]) == (1, ["ok", "fail"])
    assert findings[-1]["message"] == f"{MEMCACHED}: timeout"


def test_a_storage_that_hangs(
    doctor: Doctor, storage: type[Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_storage, "ALL_S", 0.05)
    storage.end = Event()
    status, (finding,) = doctor(USER_STORAGE=MEMCACHED)
    storage.end.set()
    assert status == 1
    assert "no answer within 0.05 s" in finding["message"]


def test_a_storage_that_can_not_be_made(
    doctor: Doctor, storage: type[Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*args: object, **more: object) -> None:
        raise ValueError("needs pip install 'limits[async-memcached]'")

    monkeypatch.setattr(doctor_storage, "LimitsWindow", missing)
    status, (finding,) = doctor(USER_STORAGE=MEMCACHED.replace("//", f"//me:{PASSWORD}@"))
    assert (status, finding["level"]) == (1, "fail")
    assert finding["message"].endswith("needs pip install 'limits[async-memcached]'")


# --- GPUs ---


class Source:
    name = "fake"
    min_interval_s = 0.0

    def __init__(self, *rows: GpuSample, error: Exception | None = None, name: str = "fake") -> None:
        self.rows = rows
        self.error = error
        self.name = name
        self.closed = False
        self.end: Event | None = None

    def read(self) -> tuple[GpuSample, ...]:
        if self.end is not None:
            self.end.wait()
        if self.error is not None:
            raise self.error
        return self.rows

    def close(self) -> None:
        self.closed = True

    def forget(self) -> None: ...


def row(index: int, **values: Any) -> GpuSample:
    return GpuSample(
        device=f"GPU-{index}", index=index, taken_at_s=time.monotonic(), source="fake", name="H200", **values
    )


@pytest.fixture
def gpus(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, list[tuple[str, str, str]]]]:
    def run(source: object = None, **environ: str) -> tuple[int, list[tuple[str, str, str]]]:
        for name, value in environ.items():
            monkeypatch.setenv("AUTOGLM_THROTTLE_" + name, value)
        if source is not None:
            monkeypatch.setattr(doctor_gpu, "select", lambda *args, **more: source)
        status = main(["doctor", "--format", "json"])
        findings = json.loads(capsys.readouterr().out)["findings"]
        return status, [(f["item"], f["level"], f["message"]) for f in findings if f["part"] == "gpu"]

    return run


Gpus = Callable[..., tuple[int, list[tuple[str, str, str]]]]


def test_gpus_that_are_well(gpus: Gpus) -> None:
    gib = 1024**3
    source = Source(
        row(1, utilization_pct=7.0),
        row(0, utilization_pct=92.4, memory_used_bytes=30 * gib, memory_total_bytes=140 * gib),
    )
    status, ((_, level, text), (*_, first), (*_, second)) = gpus(source)
    assert (status, level, text) == (0, "ok", "fake reads 2 devices")
    assert re.fullmatch(r"0 H200: 92 % busy, 30\.0 of 140\.0 GiB, \d+\.\d ms old", first)
    assert re.fullmatch(r"1 H200: 7 % busy, \d+\.\d ms old", second)
    assert source.closed


def test_gpus_that_are_not(gpus: Gpus) -> None:
    assert gpus(Source(row(0, health="lost"), row(1)))[0] == 1
    _, (_, (_, lost, _), (_, dumb, text)) = gpus(Source(row(0, health="lost"), row(1)))
    assert (lost, dumb) == ("fail", "warn")
    assert "utilization unknown" in text
    assert gpus(Source())[1] == [("source", "fail", "fake reads 0 devices")]
    error = ProviderUnavailable("NVML 999 is broken")
    assert gpus(Source(error=error)) == (1, [("sample", "fail", "GPU=none: NVML 999 is broken")])


def test_no_gpu_at_all(gpus: Gpus) -> None:
    source = Source(error=NoSource("no GPU found (nvml: no driver)"))
    assert gpus(source) == (0, [("source", "warn", "no GPU found (nvml: no driver)")])
    assert gpus(source, GPU="auto", GPU_REQUIRED="true")[0] == 1


def test_a_driver_that_hangs(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_gpu, "ANSWER_S", 0.05)
    source = Source()
    source.end = Event()
    status, ((item, level, text),) = gpus(source)
    source.end.set()
    assert (status, item, level) == (1, "sample", "fail")
    assert "has not answered within 0.05 s" in text


@pytest.mark.parametrize("works", [True, False])
def test_the_driver_says_its_version(gpus: Gpus, monkeypatch: pytest.MonkeyPatch, works: bool) -> None:
    class NVMLError(Exception): ...

    def version() -> str:
        if not works:
            raise NVMLError("odd")
        return "570.1"

    fake: Any = SimpleNamespace(
        NVMLError=NVMLError, nvmlSystemGetDriverVersion=version, nvmlSystemGetNVMLVersion=lambda: "12.5"
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    _, ((_, level, text), *_) = gpus(Source(row(0, utilization_pct=1.0), name="nvml"))
    said = "driver 570.1, NVML 12.5" if works else "driver of unknown version (odd)"
    assert (level, text) == ("ok", f"nvml reads 1 device, {said}")


def test_a_replayed_file(gpus: Gpus, tmp_path: Path) -> None:
    missing = tmp_path / "none.csv"
    status, ((item, level, text),) = gpus(GPU=f"fake:{missing}")
    assert (status, item, level) == (1, "sample", "fail")
    assert "none.csv" in text


# --- time ---


def test_within_gives_what_the_work_gives_or_raises_what_it_raises() -> None:
    def wrong() -> None:
        raise KeyError("x")

    assert within(5.0, lambda: None) is None
    with pytest.raises(KeyError):
        within(5.0, wrong)
    end = Event()
    with pytest.raises(TimeoutError):
        within(0.01, end.wait)
    end.set()


def test_a_finding_is_one_line_that_steers_no_terminal() -> None:
    finding = Finding("redis", "x", Level.FAIL, "a\x1b[31m\nb", "c\r")
    assert (finding.message, finding.hint) == ("a [31m b", "c ")
