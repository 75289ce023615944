"""Each test server behaves as its fixture states."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.store import resp
from tests.store.cluster import Cluster3
from tests.store.polling import HANG_S, until
from tests.store.proxy import AUTHORITY, SlowProxy
from tests.store.sentinel import SentinelPair
from tests.store.server import RedisServer, binaries, newest

pytestmark = pytest.mark.server
ROOT = Path(__file__).parents[2]


def test_each_installed_server_reports_its_kind(redis_server: RedisServer) -> None:
    info = redis_server.info("server")
    version = info.get("valkey_version", info["redis_version"])
    assert redis_server.binary.name.endswith(f"-{version}")


def test_a_paused_server_does_not_answer_until_it_is_resumed(own_server: RedisServer) -> None:
    own_server.pause()
    with pytest.raises(TimeoutError):
        resp.ask(own_server.port, "PING", timeout_s=0.1)
    own_server.resume()
    assert own_server.command("PING") == "PONG"


def test_a_restarted_server_is_empty_and_where_it_was(own_server: RedisServer) -> None:
    port, pid = own_server.port, own_server.pid
    own_server.command("SET", "k", "v")
    own_server.restart()
    assert own_server.command("GET", "k") is None
    assert own_server.port == port
    assert own_server.pid != pid


def test_port_of_killed_server_refuses_connections(own_server: RedisServer) -> None:
    own_server.kill()
    with pytest.raises(ConnectionRefusedError):
        own_server.command("PING")


def test_a_password_is_asked_for() -> None:
    with RedisServer(newest(), password="hush") as server:
        assert server.command("PING") == "PONG"
        with pytest.raises(resp.ReplyError, match="NOAUTH"):
            resp.ask(server.port, "PING")
        assert server.url == f"redis://:hush@127.0.0.1:{server.port}/0"


def test_cluster_has_three_nodes_with_a_third_of_slots_each(redis_cluster: Cluster3) -> None:
    owners = [node.port for node in redis_cluster.nodes]
    ranges = redis_cluster.nodes[2].command("CLUSTER", "SLOTS")
    assert sorted(row[2][1] for row in ranges) == sorted(owners)
    assert sum(row[1] - row[0] + 1 for row in ranges) == 16_384


@pytest.mark.slow
def test_a_cluster_of_the_oldest_program_works_too() -> None:
    with Cluster3(binaries()[0]) as cluster:
        assert cluster.whole()


def test_a_sentinel_promotes_the_replica_of_a_primary_that_ends(own_sentinel: SentinelPair) -> None:
    own_sentinel.primary.command("SET", "k", "v")
    until(lambda: own_sentinel.replica.command("GET", "k") == "v", HANG_S, "the value on the replica")
    own_sentinel.primary.kill()
    until(own_sentinel.failed_over, HANG_S, "a new primary")
    assert own_sentinel.replica.command("GET", "k") == "v"
    assert own_sentinel.replica.command("SET", "k", "w") == "OK"


def test_a_shared_sentinel_knows_its_primary(redis_sentinel: SentinelPair) -> None:
    assert redis_sentinel.primary_port() == redis_sentinel.primary.port
    with pytest.raises(resp.ReplyError, match="READONLY"):
        redis_sentinel.replica.command("SET", "k", "v")


def test_proxy_delays_as_configured_and_forwards_all(slow_proxy: SlowProxy) -> None:
    assert resp.ask(slow_proxy.port, "ECHO", "x" * 200_000) == "x" * 200_000
    slow_proxy.delay_s = 0.1
    started = time.monotonic()
    assert resp.ask(slow_proxy.port, "PING") == "PONG"
    assert time.monotonic() - started >= 0.1
    assert slow_proxy.opened == 2


def test_proxy_refuses_then_accepts_connections(slow_proxy: SlowProxy) -> None:
    slow_proxy.reject()
    with pytest.raises(ConnectionRefusedError):
        resp.ask(slow_proxy.port, "PING")
    slow_proxy.accept()
    assert resp.ask(slow_proxy.port, "PING") == "PONG"


def test_a_proxy_breaks_the_connections_that_are_open(slow_proxy: SlowProxy) -> None:
    with socket.create_connection(("127.0.0.1", slow_proxy.port), HANG_S) as connection:
        stream = connection.makefile("rb")
        connection.sendall(resp.encode(("PING",)))
        assert resp.decode(stream) == "PONG"
        slow_proxy.cut()
        with pytest.raises(ConnectionError):
            resp.decode(stream)


def test_a_server_behind_tls_is_trusted_by_its_authority_alone(tls_proxy: SlowProxy) -> None:
    with socket.create_connection(("127.0.0.1", tls_proxy.port), HANG_S) as plain:
        context = ssl.create_default_context(cafile=str(AUTHORITY))
        with context.wrap_socket(plain, server_hostname="localhost") as connection:
            connection.sendall(resp.encode(("PING",)))
            assert connection.recv(100) == b"+PONG\r\n"
    with socket.create_connection(("127.0.0.1", tls_proxy.port), HANG_S) as plain:
        stranger = ssl.create_default_context()
        with pytest.raises(ssl.SSLCertVerificationError):
            stranger.wrap_socket(plain, server_hostname="localhost")


KILLED = """
import os, sys
from tests.store.server import RedisServer
with RedisServer() as frozen, RedisServer() as server, RedisServer() as gone:
    gone.kill()
    frozen.pause()
    print(frozen.pid, server.pid, server._folder, flush=True)
    sys.stdin.read()
"""


def test_servers_end_with_a_test_run_that_is_killed(tmp_path: Path) -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", KILLED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    with run:
        assert run.stdout is not None
        *pids, folder = run.stdout.readline().split()
        assert Path(folder).is_dir()
        run.send_signal(signal.SIGKILL)
        run.wait()
        until(lambda: not any(_alive(int(pid)) for pid in pids), HANG_S, "the end of the servers")
        until(lambda: not list(tmp_path.iterdir()), HANG_S, "the end of their folders")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return not state.stdout.strip().startswith("Z")


def test_another_server_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    named = tmp_path / "my-redis"
    named.symlink_to(newest().path)
    monkeypatch.setenv("TEST_REDIS_SERVER", str(named))
    binaries.cache_clear()
    try:
        assert named in [binary.path for binary in binaries()]
        monkeypatch.setenv("TEST_REDIS_SERVER", "/bin/echo")
        binaries.cache_clear()
        with pytest.raises(OSError, match="no Redis or Valkey server"):
            binaries()
    finally:
        binaries.cache_clear()


def test_a_copy_of_a_program_is_not_another_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    copied = newest()
    shutil.copy(copied.path, tmp_path / "redis-server")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("TEST_REDIS_SERVER", raising=False)
    binaries.cache_clear()
    try:
        assert [binary.name for binary in binaries()].count(copied.name) == 1
    finally:
        binaries.cache_clear()
