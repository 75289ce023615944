"""``agent`` samples without an app, and serves the metrics of its host."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import redis

from autoglm_throttle import Settings, ThrottleError
from autoglm_throttle.cli import agent, main
from autoglm_throttle.cli.agent import serve
from autoglm_throttle.settings.groups.gpu import GpuSettings
from autoglm_throttle.settings.groups.store import StoreSettings
from autoglm_throttle.store.gpu import RemoteGpuProvider
from tests.store.polling import HANG_S, until
from tests.store.server import RedisServer


@pytest.fixture
def card(tmp_path: Path) -> str:
    path = tmp_path / "card.csv"
    path.write_text("device,index,utilization_pct\nGPU-1,0,73\n")
    return f"fake:{path}"


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def test_metrics_of_the_host_are_served_until_the_end(card: str, capsys: pytest.CaptureFixture[str]) -> None:
    pages = []

    def wait() -> None:
        url = capsys.readouterr().out.split()[-1]
        while 'gpu_utilization_ratio{gpu="0"} 0.73' not in (page := get(url)):
            pass
        pages.append((url, page))

    serve(Settings(gpu=card), "127.0.0.1", 0, wait)
    ((url, page),) = pages
    assert "autoglm_throttle_host_memory_total_bytes" in page
    with pytest.raises(OSError, match="refused"):
        get(url)


def test_taken_port_is_an_error_with_its_address() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ThrottleError, match=f"127.0.0.1:{port}: Address already in use"):
            serve(Settings(gpu="none"), "127.0.0.1", port, lambda: None)


def test_missing_exporter_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "find_spec", lambda _: None)
    with pytest.raises(ThrottleError, match="prometheus-client is not installed"):
        serve(Settings(gpu="none"), "127.0.0.1", 0, lambda: None)


@pytest.mark.parametrize("port", ["-1", "65536", "x", "1.5"])
def test_port_names_its_range(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["agent", "--port", port])
    assert "must be a whole number from 0 to 65535" in capsys.readouterr().err


def test_process_ends_with_success_at_sigterm(card: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOGLM_THROTTLE_GPU", card)
    command = [sys.executable, "-m", "autoglm_throttle", "agent", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("metrics of this host on http://127.0.0.1:")
        process.terminate()
        assert process.wait(30) == 0


@pytest.mark.slow
@pytest.mark.xdist_group("load")
def test_the_gpu_of_a_killed_agent_is_lost_and_never_idle(
    card: str, own_server: RedisServer, redis_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"GPU": card, "FLEET_GPU": "true", "REDIS_URL": own_server.url, "REDIS_PREFIX": redis_prefix}
    for name, value in settings.items():
        monkeypatch.setenv(f"AUTOGLM_THROTTLE_{name}", value)
    store, seen = StoreSettings(redis_prefix=redis_prefix), set[tuple[str, float | None]]()

    def connect() -> Any:
        return redis.Redis.from_url(own_server.url)

    reader = RemoteGpuProvider(None, connect, "reader", store, GpuSettings())

    def shows(health: str) -> bool:
        rows = {(row.health, row.utilization_pct) for row in reader.read()}
        seen.update(rows)
        return any(found == health for found, _ in rows)

    command = [sys.executable, "-m", "autoglm_throttle", "agent", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        until(lambda: shows("ok"), HANG_S, "the GPU of the agent")
        process.kill()
    until(lambda: shows("lost"), HANG_S, "the loss of its GPU")
    assert seen == {("ok", 73.0), ("lost", None)}
    reader.close()
