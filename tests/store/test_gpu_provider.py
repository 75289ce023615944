"""The provider of a fleet: own and remote rows, and their state during errors."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import resources
from typing import Any

import fakeredis
import pytest
import redis
from pydantic import SecretStr

from autoglm_throttle.settings.groups.gpu import GpuSettings
from autoglm_throttle.settings.groups.store import StoreSettings
from autoglm_throttle.store.client import TIMEOUT_S, RedisClients
from autoglm_throttle.store.gpu import RIGHTS, RemoteGpuProvider, fleet_gpu_key
from autoglm_throttle.types import GpuProvider, GpuSample, ProviderMisconfigured, ProviderUnavailable
from autoglm_throttle.types.errors import NoSourceError
from tests.store.clients import Wire
from tests.store.server import RedisServer

GIB = 2**30


def payload(device: str) -> bytes:
    """One device, right but for what the test makes of it."""
    columns = ["device", "index", "kind", "health", "age_s"]
    return json.dumps({"v": 1, "i": 1, "c": columns, "r": [[device, 0, "mig", "ok", 0]]}).encode()


class Own:
    """A host's own GPUs, which do what the test says."""

    name = "own"
    min_interval_s = 0.5

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.error: Exception | None = None
        self.pct = 50.0
        self.calls: list[str] = []

    def read(self) -> Sequence[GpuSample]:
        self.calls.append("read")
        if self.error is not None:
            raise self.error
        return [
            GpuSample(
                device="GPU-x",
                index=0,
                taken_at_s=self.clock(),
                source="own",
                utilization_pct=self.pct,
                memory_total_bytes=80 * GIB,
            )
        ]

    def close(self) -> None:
        self.calls.append("close")

    def reset_after_fork(self) -> None:
        self.calls.append("forget")


class Site:
    """Hosts on one store, on one clock that the test moves; the store's runs with it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.server = fakeredis.FakeServer()
        self.down: Exception | None = None
        self.made = 0

    def clock(self) -> float:
        return self.now

    def connect(self) -> Any:
        self.made += 1
        client: Any = fakeredis.FakeRedis(server=self.server)
        timed = resources.files("autoglm_throttle.store").joinpath("fleet_gpu.lua").read_text("utf-8")
        timed = timed.replace("redis.call('TIME')", "{ KEYS[2], KEYS[3] }")

        def evalsha(sha: str, keys: int, key: str, *arguments: Any) -> Any:
            if self.down is not None:
                raise self.down
            seconds, micros = divmod(round(self.now * 1e6), 1_000_000)
            return client.eval(timed, 3, key, seconds, micros, *arguments)

        client.evalsha = evalsha
        return client

    def host(self, name: str, *, gpus: bool = True, **settings: Any) -> tuple[RemoteGpuProvider, Own]:
        own = Own(self.clock)
        local = own if gpus else None
        gpu = GpuSettings(**settings)
        return RemoteGpuProvider(local, self.connect, name, StoreSettings(), gpu, self.clock), own


def gateway(wire: Wire, **settings: Any) -> RemoteGpuProvider:
    return RemoteGpuProvider(None, wire.connect, "a", StoreSettings(), GpuSettings(**settings), lambda: 1.0)


@pytest.fixture
def site() -> Site:
    return Site()


def seen(rows: Sequence[GpuSample]) -> dict[str, tuple[str, float | None]]:
    return {row.device: (row.health, row.utilization_pct) for row in rows}


def test_it_is_a_provider_like_any_other(site: Site) -> None:
    provider, own = site.host("a")
    assert isinstance(provider, GpuProvider)
    assert provider.min_interval_s == own.min_interval_s
    assert site.host("b", gpus=False)[0].min_interval_s == 0.2


def test_each_host_sees_all(site: Site) -> None:
    (a, own_a), (b, own_b) = site.host("a"), site.host("b")
    own_a.pct, own_b.pct = 30.0, 70.0
    assert seen(a.read()) == {"GPU-x": ("ok", 30.0)}
    site.now += 0.5
    rows = b.read()
    assert seen(rows) == {"GPU-x": ("ok", 70.0), "a/GPU-x": ("ok", 30.0)}
    assert [row.taken_at_s for row in rows] == [1000.5, 1000.0]
    assert (rows[0].host, rows[1].host) == ("", "a")
    assert seen(a.read())["b/GPU-x"] == ("ok", 70.0)


def test_remote_rows_are_read_and_not_republished(site: Site) -> None:
    (a, own), (b, _) = site.host("a"), site.host("b", gpus=False)
    (row,) = own.read()
    scraped = replace(row, device="GPU-y", host="node-7", source="dcgm:node-7:9400")
    own.read = lambda: [scraped, row]  # type: ignore[method-assign]
    assert seen(a.read()).keys() == {"GPU-x", "GPU-y"}
    assert seen(b.read()).keys() == {"a/GPU-x"}
    own.read = lambda: [scraped]  # type: ignore[method-assign]
    site.now += 61.0
    assert seen(a.read()).keys() == {"GPU-y"}
    assert seen(b.read()) == {"a/GPU-x": ("lost", None)}, "what is not ours does not keep it alive"
    own.read = lambda: [replace(row, device="GPU-z", host="a"), row]  # type: ignore[method-assign]
    site.now += 1.0
    a.read()
    assert seen(b.read()).keys() == {"a/GPU-x", "a/GPU-z"}, "an exporter of ours names us"


def test_gateway_without_gpus_sees_remote_gpus_at_once(site: Site) -> None:
    gateway, _ = site.host("gateway", gpus=False)
    assert gateway.read() == []
    site.host("a")[0].read()
    assert seen(gateway.read()) == {"a/GPU-x": ("ok", 50.0)}


def test_auto_without_source_is_a_gateway_too(site: Site) -> None:
    provider, own = site.host("gateway")
    own.error = NoSourceError("nothing found")
    assert provider.read() == []
    site.host("a")[0].read()
    assert seen(provider.read()) == {"a/GPU-x": ("ok", 50.0)}
    assert own.calls == ["read"], "it looks again after a minute"
    site.now += 60.0
    provider.read()
    assert own.calls[-1] == "read"


def test_failing_source_hides_no_host_and_is_lost_when_stale(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    (a, own), (b, _) = site.host("a"), site.host("b")
    a.read()
    own.error = RuntimeError("driver gone")
    for _ in range(4):
        site.now += 1.0
        b.read()
        assert seen(a.read())["GPU-x"] == ("ok", 50.0)
    site.now += 0.5
    b.read()
    assert seen(a.read()) == {"GPU-x": ("lost", None), "b/GPU-x": ("ok", 50.0)}
    assert seen(b.read())["a/GPU-x"] == ("lost", None), "what it does not read it does not publish"
    assert [line for line in caplog.messages if "own cannot be read" in line] == [
        "GPU fleet: this host's own cannot be read: RuntimeError: driver gone"
    ]
    own.error = None
    site.now += 60.0
    assert seen(a.read())["GPU-x"] == ("ok", 50.0)
    assert "close" in own.calls, "after some failures it is opened anew"


def test_rows_of_a_slow_source_that_fails_are_held_for_longer(site: Site) -> None:
    (a, own), (b, _) = site.host("a"), site.host("b")
    (row,) = own.read()
    own.read = lambda: [replace(row, age_s=12.0, period_s=30.0)]  # type: ignore[method-assign]
    a.read()

    def fails() -> Sequence[GpuSample]:
        raise RuntimeError("exporter gone")

    own.read = fails  # type: ignore[method-assign]
    for after_s, health in ((63.0, "ok"), (63.1, "lost")):
        site.now = 1000.0 + after_s
        b.read()
        assert seen(a.read())["GPU-x"][0] == health


def test_a_source_that_fails_on_the_only_host_is_a_failure(site: Site) -> None:
    provider, own = site.host("a")
    own.error = ProviderUnavailable("no driver")
    with pytest.raises(ProviderUnavailable, match="no driver"):
        provider.read()


def test_misconfigured_source_is_logged_once(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    provider, own = site.host("a")
    own.error = ProviderMisconfigured("install it")
    with pytest.raises(ProviderUnavailable, match="install it"):
        provider.read()
    site.host("b")[0].read()
    assert seen(provider.read()) == {"b/GPU-x": ("ok", 50.0)}
    assert own.calls.count("read") == 1
    assert len(caplog.messages) == 1


def test_a_killed_host_is_stale_then_lost_and_never_idle(site: Site) -> None:
    (a, _), (b, _) = site.host("a"), site.host("b")
    b.read()
    told = []
    for _ in range(70):
        told.append(seen(a.read())["b/GPU-x"])
        site.now += 1.0
    assert told[:5] == [("ok", 50.0)] * 5
    assert set(told[5:]) == {("lost", None)}, "also after the store has forgotten it"


def test_store_outage_leaves_local_rows_and_pauses_calls(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    (a, _), (b, _) = site.host("a"), site.host("b")
    b.read()
    a.read()
    site.down = redis.TimeoutError("slow")
    begun = site.now
    told = {}
    for _ in range(20):
        told[site.now - begun] = seen(a.read())
        site.now += 1.0
    assert told[3.0] == {"GPU-x": ("ok", 50.0), "b/GPU-x": ("ok", 50.0)}
    assert told[5.0] == {"GPU-x": ("ok", 50.0)}, "not lost: unknown"
    assert a.script.failures == 5, "at 0, 2, 7, 12 and 17 s"
    site.down = None
    site.now += 5.0
    assert seen(a.read()) == {"GPU-x": ("ok", 50.0)}, "the others, too, had nowhere to publish"
    b.read()
    assert "b/GPU-x" in seen(a.read())
    away, back = caplog.messages
    assert "TimeoutError: slow" in away
    assert "answers again" in back
    assert a.script.last_error == "TimeoutError: slow"


def test_single_failure_makes_no_host_silent(site: Site) -> None:
    (a, _), (b, _) = site.host("a"), site.host("b")
    for tick in range(8):
        site.down = redis.TimeoutError("slow") if tick == 3 else None
        b.read()
        site.down = None
        told = seen(a.read())
        assert told["b/GPU-x"] == ("ok", 50.0), tick
        site.now += 1.0
    assert b.script.failures == 1


def test_missing_rights_are_named_in_full(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.down = redis.exceptions.NoPermissionError("User x has no permissions")
    site.host("a")[0].read()
    assert RIGHTS in caplog.text


@pytest.mark.parametrize(
    ("host", "payload"),
    [
        (b"b", b'{"v":2}'),
        (b"b", "no JSON"),
        (b"", b"{}"),
        ("h" * 300, b"{}"),
        (b"\xff", b"\xff"),
        (b"b\x1b[2J", payload("MIG-1")),
        (b"b", payload("MIG-1\n2026-01-01 ERROR all is lost")),
        (b"b", payload("MIG-1").replace(b"health", b"he\\nlth")),
    ],
)
def test_a_host_that_talks_nonsense_is_ignored_and_counted(
    host: bytes | str, payload: bytes | str, caplog: pytest.LogCaptureFixture
) -> None:
    wire = Wire()
    wire.answer = lambda arguments: [host, 1, payload]
    provider = gateway(wire)
    assert provider.read() == []
    assert provider.read() == []
    assert (provider.hosts.ignored, provider.script.failures) == (2, 0)
    assert len(caplog.messages) == 1
    assert caplog.messages[0].isprintable()


def test_host_is_read_beside_malformed_one() -> None:
    wire = Wire()
    wire.answer = lambda arguments: [b"b", 1, payload("a\0"), b"c", 1, payload("MIG-1")]
    provider = gateway(wire)
    assert seen(provider.read()).keys() == {"c/MIG-1"}
    assert (provider.hosts.ignored, provider.script.failures) == (1, 0)


@pytest.mark.parametrize("reply", [None, [b"b"], [b"b", "young", b"{}"], 7])
def test_a_reply_of_another_shape_is_a_failure(reply: Any) -> None:
    wire = Wire()
    wire.answer = lambda arguments: reply
    provider = gateway(wire)
    assert provider.read() == []
    assert provider.script.failures == 1
    assert wire.closed == 1


def test_too_many_devices_are_not_published_but_count_here(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    provider, own = site.host("a")
    (row,) = own.read()
    many = [row.__class__(device=f"GPU-{n:0100}", index=n, taken_at_s=1.0, source="own") for n in range(200)]
    own.read = lambda: many  # type: ignore[method-assign]
    assert len(provider.read()) == 200
    assert "is not published" in caplog.text
    assert site.host("b")[0].read()[1:] == []


def test_a_script_that_is_not_there_is_sent() -> None:
    wire = Wire()
    wire.knows_script = False
    wire.answer = lambda arguments: []
    provider = gateway(wire, sample_interval_s=0.5)
    provider.read()
    assert wire.knows_script
    ((host, _, interval_us, payload),) = wire.calls
    assert (host, interval_us, payload) == ("a", 500_000, "")


def test_closing_and_forgetting(site: Site) -> None:
    provider, own = site.host("a")
    provider.read()
    provider.close()
    provider.close()
    assert own.calls[-1] == "close"
    parent = provider.process
    provider.reset_after_fork()
    assert own.calls[-1] == "forget"
    assert provider.process != parent
    gateway, _ = site.host("b", gpus=False)
    gateway.close()
    gateway.reset_after_fork()


def test_key_has_the_tag_of_the_fleet() -> None:
    assert fleet_gpu_key(StoreSettings(redis_prefix="pre", service="svc")) == "pre:svc:{fleet}:gpu"


def test_stale_age_of_settings_holds_for_own_rows(site: Site) -> None:
    provider, own = site.host("a", gpu_stale_after_s=9.0)
    provider.read()
    own.error = RuntimeError("driver gone")
    site.host("b")[0].read()
    for after_s, health in ((9.0, "ok"), (9.5, "lost")):
        site.now = 1000.0 + after_s
        site.host("b")[0].read()
        assert seen(provider.read())["GPU-x"][0] == health


def test_hanging_server_costs_one_read_250_ms(own_server: RedisServer) -> None:
    made = 0

    def connect() -> Any:
        nonlocal made
        made += 1
        return clients.sync(TIMEOUT_S)

    settings = StoreSettings(redis_url=SecretStr(own_server.url))
    clients = RedisClients(settings)
    gpu = GpuSettings().model_copy(update={"sample_interval_s": 600.0})
    provider = RemoteGpuProvider(Own(time.monotonic), connect, "a", settings, gpu)
    try:
        provider.read()
        own_server.pause()
        begun = time.monotonic()
        assert len(provider.read()) == 1
        assert time.monotonic() - begun >= 0.8 * TIMEOUT_S
        for _ in range(4):
            assert len(provider.read()) == 1
        assert made == 1, "the store is not called again at once"
    finally:
        own_server.resume()
        provider.close()
    assert provider.script.failures == 1


@pytest.fixture(autouse=True)
def _heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "autoglm_throttle")
