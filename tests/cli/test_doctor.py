"""``doctor`` on real servers: well, dead, frozen, far away, of each topology, and gone in the midst of it."""

from __future__ import annotations

import re
from threading import Event
from typing import Any

import pytest

from autoglm_throttle.cli import doctor_redis, main
from autoglm_throttle.cli.doctor_result import DoctorResult, within
from tests.cli.doctor_results import PASSWORD, WELL, Doctor, by_item, not_well
from tests.store.cluster import Cluster3
from tests.store.proxy import SlowProxy
from tests.store.sentinel import NAME, SentinelPair
from tests.store.server import RedisServer, newest


def test_a_server_that_is_well(doctor: Doctor, redis_server: RedisServer, redis_prefix: str) -> None:
    status, findings = doctor(REDIS_URL=redis_server.url)
    assert (status, not_well(findings)) == (0, [])
    found = by_item(findings)
    assert list(found) == WELL
    assert found["round_trip"]["value"] > 0
    assert f"{redis_server.url} answers: one server, no TLS" in found["connection"]["message"]
    assert found["version"]["value"] in redis_server.binary.name
    assert redis_server.command("KEYS", f"{redis_prefix}*") == [], "nothing is left behind"


def test_as_a_text(
    clean_env: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    own_server: RedisServer,
) -> None:
    own_server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    monkeypatch.setenv("AUTOGLM_THROTTLE_REDIS_URL", own_server.url)
    monkeypatch.setenv("AUTOGLM_THROTTLE_SLO_S", "30")
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "ok    gpu    GPU=none: no GPU is read"
    assert lines[1] == f"ok    redis  {own_server.url} answers: one server, no TLS"
    (warned,) = [place for place, line in enumerate(lines) if line.startswith("warn")]
    assert lines[warned].startswith("warn  redis  eviction policy allkeys-lru: ")
    assert lines[warned + 1] == " " * 13 + "set maxmemory-policy volatile-ttl or noeviction"
    assert lines[-1] == "ok    limit  the concurrency limit aims at complete responses within 30 s"
    assert all(
        re.match(r"(ok   |warn |fail ) (gpu|redis|limit) ", line) or line[:13].isspace() for line in lines
    )


def test_no_store_is_configured(doctor: Doctor) -> None:
    status, findings = doctor()
    assert (status, [finding["item"] for finding in findings]) == (0, ["configured"])


# --- a server that does not answer: one clear line ---


def test_a_dead_server(doctor: Doctor, own_server: RedisServer) -> None:
    own_server.kill()
    status, (finding,) = doctor(REDIS_URL=own_server.url)
    assert (status, finding["item"], finding["value"]) == (1, "connection", "unreachable")
    assert "refused" in finding["message"]
    assert finding["hint"]


def test_a_frozen_server(doctor: Doctor, own_server: RedisServer) -> None:
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


def test_sentinel_without_the_primary_name_is_reported(doctor: Doctor, redis_sentinel: SentinelPair) -> None:
    status, (finding,) = doctor(REDIS_URL=redis_sentinel.url.replace(NAME, "nobody"))
    assert status == 1
    assert "nobody" in finding["message"]


def test_a_server_that_speaks_tls_when_none_is_wanted(doctor: Doctor, tls_proxy: SlowProxy) -> None:
    status, findings = doctor(REDIS_URL=f"redis://127.0.0.1:{tls_proxy.port}/0")
    assert (status, findings[-1]["item"]) == (1, "connection")


def test_a_server_without_tls_where_it_is_wanted(doctor: Doctor, own_server: RedisServer) -> None:
    status, findings = doctor(REDIS_URL=own_server.url.replace("redis://", "rediss://"))
    assert (status, findings[-1]["item"]) == (1, "connection")


def test_server_that_dies_during_the_diagnosis_is_reported(
    doctor: Doctor, own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = doctor_redis.check_server

    def dies(execute: Any) -> list[DoctorResult]:
        own_server.kill()
        return list(asked(execute))

    monkeypatch.setattr(doctor_redis, "check_server", dies)
    status, findings = doctor(REDIS_URL=own_server.url)
    assert (status, not_well(findings)) == (1, [("connection", "fail")])


def test_hanging_diagnosis_is_abandoned(
    doctor: Doctor, own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = Event()
    monkeypatch.setattr(doctor_redis, "_diagnose", lambda *args: end.wait())
    monkeypatch.setattr(doctor_redis, "TOTAL_TIMEOUT_S", 0.05)
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


def test_server_with_full_memory_fails_counting(doctor: Doctor, own_server: RedisServer) -> None:
    own_server.command("CONFIG", "SET", "maxmemory", "1")
    status, findings = doctor(REDIS_URL=own_server.url)
    assert (status, not_well(findings)) == (1, [("counting", "fail")])
    assert by_item(findings)["counting"]["value"] == "full"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("return {1}", "it cannot count: "),
        (
            "return ARGV[8] == '2' and {1, 9, 0, 9, 0, 0, 9, 9, 0} or {1, 1, 1}",
            "it counts incorrectly: ",
        ),
        (
            "return ARGV[8] == '2' and {1, 0, 9, 9, 0, 0, 9, 9, 0} or {1, 0, 1}",
            "it counts incorrectly: ",
        ),
    ],
)
def test_server_that_counts_incorrectly_is_reported(
    doctor: Doctor, own_server: RedisServer, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    monkeypatch.setattr("autoglm_throttle.store.protocol.script", lambda: script)
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


@pytest.mark.parametrize(
    ("deadline_s", "level"),
    [
        pytest.param(5.0, "ok", marks=pytest.mark.slow),
        (0.115, "warn"),
        pytest.param(0.05, "fail", marks=pytest.mark.slow),
    ],
)
def test_a_server_that_is_far_away(
    doctor: Doctor, slow_proxy: SlowProxy, deadline_s: float, level: str
) -> None:
    slow_proxy.delay_s = 0.06
    status, findings = doctor(REDIS_URL=slow_proxy.url, REDIS_DEADLINE_S=str(deadline_s))
    found = by_item(findings)["round_trip"]
    assert (status, found["level"]) == (int(level == "fail"), level)
    assert found["value"] >= 0.06
    assert ("REDIS_DEADLINE_S" in found["hint"]) is (level != "ok")


def test_an_old_server_and_one_of_another_kind() -> None:
    for version, level in {
        "6.0.16": "fail",
        "5.0": "fail",
        "6.2.0": "ok",
        "7.0.15": "ok",
        "10.0": "ok",
    }.items():
        assert doctor_redis.check_version({"redis_version": version}).level == level
    found = doctor_redis.check_version({"redis_version": "7.2.4", "valkey_version": "8.1.4"})
    assert (found.message, found.value) == ("Valkey 8.1.4", "8.1.4")


# --- topologies ---


def test_a_cluster(doctor: Doctor, redis_cluster: Cluster3, redis_prefix: str) -> None:
    status, findings = doctor(REDIS_URL=redis_cluster.url)
    assert (status, not_well(findings)) == (0, [])
    assert "a cluster, keys of this service on 3 of its nodes" in findings[0]["message"]
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


# --- time ---


def test_within_returns_or_raises_like_the_work() -> None:
    def wrong() -> None:
        raise KeyError("x")

    assert within(5.0, lambda: None) is None
    with pytest.raises(KeyError):
        within(5.0, wrong)
    end = Event()
    with pytest.raises(TimeoutError):
        within(0.01, end.wait)
    end.set()


def test_result_has_one_line_without_control_characters() -> None:
    finding = DoctorResult("redis", "x", "fail", "a\x1b[31m\nb", "c\r")
    assert (finding.message, finding.hint) == ("a [31m b", "c ")
