"""nginx as a second tier: rates of each tier, changes in force at once, networks, dead writers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autoglm_throttle.admission.nginx_flags import NginxFlags
from tests.servers import server as server_module
from tests.servers.nginx_server import Nginx, Seen, needs_nginx, running
from tests.servers.server import Server, ask
from tests.store.polling import HANG_S, until

pytestmark = [needs_nginx, pytest.mark.server, pytest.mark.xdist_group("load")]

RATE_RPS = 100.0
SECONDS = 4.0
CLIENTS = ("127.0.0.2", "127.0.0.3")
TIERS = (1.0, 0.7, 0.4, 0.0)
EACH_MINUTE = "1/m"
"""The burst is one: two requests of one network are admitted in the first minute."""


@pytest.fixture
def nginx() -> Iterator[Nginx]:
    with running(POLICY="tiers", RATE_HIGH_RPS=str(RATE_RPS)) as one:
        yield one


@contextlib.contextmanager
def tier_set(nginx: Nginx) -> Iterator[Callable[[float], None]]:
    """A writer of flags in this process; the function puts a tier in force."""
    factor = 1.0
    flags = NginxFlags(nginx.flags, TIERS, lambda: factor, lambda: pytest.fail("the folder has a fault"))

    def put(wanted: float) -> None:
        nonlocal factor
        factor = wanted
        flags.step()

    try:
        yield put
    finally:
        flags.leave_lock()


def send(nginx: Nginx, source: str, count: int, rate_rps: float) -> None:
    """Send requests evenly; those that are late are sent at once."""
    started = time.monotonic()
    pause = threading.Event()
    with contextlib.closing(nginx.connection(source)) as connection:
        for number in range(count):
            pause.wait(max(0.0, started + number / rate_rps - time.monotonic()))
            ask(connection, "/")


def logged(nginx: Nginx, source: str, count: int) -> list[Seen]:
    """The requests of an address, once all of them are in the log."""
    until(lambda: len(nginx.seen(source)) == count, HANG_S, "all are in the log")
    return nginx.seen(source)


def lost(seen: list[Seen], rate_rps: float, burst: int) -> tuple[int, float]:
    """The requests that a leaky bucket admits at these times, and those it could have admitted besides."""
    excess, admitted, unused = 0.0, 1, 0.0
    last_s = seen[0].at_s
    for one in seen[1:]:
        drained = excess - rate_rps * (one.at_s - last_s)
        if max(0.0, drained) + 1.0 <= burst:
            unused += max(0.0, -drained)
            excess, last_s = max(0.0, drained) + 1.0, one.at_s
            admitted += 1
    return admitted, unused


@pytest.mark.slow
@pytest.mark.parametrize("factor", TIERS[:3])
def test_two_addresses_get_the_rate_of_the_tier(nginx: Nginx, factor: float) -> None:
    rate_rps = factor * RATE_RPS
    with tier_set(nginx) as put:
        put(factor)
        count = int(1.5 * rate_rps * SECONDS)
        clients = [
            threading.Thread(target=send, args=(nginx, source, count, 1.5 * rate_rps)) for source in CLIENTS
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
    for source in CLIENTS:
        seen = logged(nginx, source, count)
        elapsed_s = seen[-1].at_s - seen[0].at_s
        admitted = sum(one.status == 200 for one in seen)
        expected, unused = lost(seen, rate_rps, round(rate_rps / 10))
        share = (admitted + unused) / (rate_rps * elapsed_s)
        print(f"tier {factor:g}, {source}: {admitted / elapsed_s:.1f} requests/s of {rate_rps:g}")
        assert {one.status for one in seen} == {200, 429}
        assert admitted == pytest.approx(expected, rel=0.02)
        assert share == pytest.approx(1.0, abs=0.05)


def test_tier_is_in_force_at_the_next_request(nginx: Nginx) -> None:
    with tier_set(nginx) as put, contextlib.closing(nginx.connection()) as connection:
        put(1.0)
        for _ in range(5):  # within the burst
            assert ask(connection, "/").status == 200
            put(0.0)
            closed = ask(connection, "/")
            assert (closed.status, closed.headers["retry-after"]) == (503, "2")
            assert closed.headers["content-type"] == "application/problem+json"
            assert json.loads(closed.body)["reason"] == "gpu:overload"
            assert ask(connection, "/health").status == 200, "an exempt path"
            assert [ask(connection, path).status for path in ("/metrics", "/metrics/")] == [403, 403]
            put(1.0)
            assert ask(connection, "/health").status == 200


def test_limited_address_is_answered_in_our_form() -> None:
    with running(POLICY="tiers", RATE_HIGH_RPS=EACH_MINUTE) as nginx:
        assert [nginx.get().status for _ in range(2)] == [200, 200]
        limited = nginx.get()
        assert (limited.status, limited.headers["retry-after"]) == (429, "60")
        assert json.loads(limited.body)["reason"] == "rate:address"
        assert "limiting requests" not in [line for line in nginx.errors().splitlines() if "[error]" in line]


@pytest.mark.parametrize(
    ("first", "second", "status"),
    [
        ("2001:db8:0:1::1", "2001:db8:0:1:ffff::2", 429),
        ("2001:db8:0:a::1", "2001:db8:0:a::2", 429),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", 200),
        ("10.0.0.1", "10.0.0.2", 200),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", 200),
    ],
    ids=["one network", "a newline byte", "two networks", "IPv4", "IPv4 inside IPv6"],
)
def test_an_ipv6_network_is_one_client(first: str, second: str, status: int) -> None:
    with running(POLICY="tiers", RATE_HIGH_RPS=EACH_MINUTE) as nginx:
        for _ in range(2):
            assert nginx.get(headers={"x-test-address": first}).status == 200
        assert nginx.get(headers={"x-test-address": first}).status == 429
        assert nginx.get(headers={"x-test-address": second}).status == status


class Fleet:
    """Workers that read one GPU from a file, and an nginx in front of two of them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gpu = folder / "gpu.csv"
        self.flags = folder / "flags"
        self.servers: list[Server] = []
        self._environ = {
            "GPU": f"fake:{self.gpu}",
            "POLICY": "tiers",
            "TIER_SAMPLES": "1",
            "SAMPLE_INTERVAL_S": "0.2",
            "TRUSTED_PROXIES": "127.0.0.1",
        }
        self._monkeypatch = monkeypatch

    def use(self, pct: float) -> None:
        """Set the utilization of the GPU."""
        new = self.gpu.with_suffix(".new")
        new.write_text(f"index,utilization_pct\n0,{pct}\n")
        new.replace(self.gpu)  # no worker reads half a file

    def start(self) -> Server:
        """One more worker."""
        environ = self._environ | {"NGINX_FLAGS_DIR": str(self.flags)}
        for name, value in environ.items():
            self._monkeypatch.setitem(server_module.ENVIRONMENT, f"AUTOGLM_THROTTLE_{name}", value)
        command = (
            "-m",
            "uvicorn",
            "tests.servers.edge_service:app",
            "--port",
            "{port}",
            "--log-level",
            "error",
        )
        self.servers.append(Server(*command, "--no-proxy-headers"))
        return self.servers[-1]

    def kill(self, server: Server) -> None:
        """Kill a worker, as the kernel does when memory is short."""
        os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait(HANG_S)


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    with tempfile.TemporaryDirectory(prefix="edge-") as folder:
        Path(folder).chmod(0o755)  # nginx runs as another user if the tests run as root
        fleet = Fleet(Path(folder), monkeypatch)
        try:
            yield fleet
        finally:
            for server in fleet.servers:
                server.stop()


@pytest.mark.slow
def test_flags_survive_killed_writers(fleet: Fleet) -> None:
    fleet.use(92.0)
    first = fleet.start()
    until(lambda: flags_in(fleet) == {"tier40"}, HANG_S, "the first worker writes")
    second = fleet.start()
    addresses = [f"127.0.0.1:{one.port}" for one in (first, second)]
    with running(*addresses, flags=fleet.flags, POLICY="tiers") as nginx:
        assert nginx.get().status == 200

        fleet.kill(first)
        assert [nginx.get().status for _ in range(3)] == [200] * 3, "by the other worker"
        fleet.use(97.0)
        until(lambda: flags_in(fleet) == {"tier0"}, HANG_S, "the second worker has taken over")
        assert nginx.get().status == 503

        fleet.kill(second)
        assert flags_in(fleet) == {"tier0"}, "the documented weakness: no process is left that could know"
        assert nginx.get().status == 503

        fleet.use(20.0)
        third = fleet.start()
        until(lambda: not flags_in(fleet), HANG_S, "a new worker puts the flags right")
        assert nginx.get().status == 502, "the addresses of the dead workers"
        fleet.use(97.0)
        until(lambda: flags_in(fleet) == {"tier0"}, HANG_S, "it follows")
        third.end(HANG_S)
        assert not flags_in(fleet), "cleared at the stop"


@pytest.mark.slow
def test_client_cannot_name_another_address(fleet: Fleet) -> None:
    fleet.use(20.0)
    service = fleet.start()
    with running(f"127.0.0.1:{service.port}", flags=fleet.flags, POLICY="tiers") as nginx:
        forged = {"x-forwarded-for": "203.0.113.9", "x-test-address": "198.51.100.7"}
        assert json.loads(nginx.get(headers=forged).body)["forwarded"] == ["198.51.100.7"]


def flags_in(fleet: Fleet) -> set[str]:
    return {path.name for path in fleet.flags.iterdir()} - {"lock"}
