"""The commands of examples/deploy run as processes: compose beside a real Redis and Prometheus, systemd."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from autoglm_throttle.settings import PREFIX
from tests.examples.deployed import FOLDER, KEY, environment, kill, manifest, process, unit
from tests.store.polling import HANG_S, until
from tests.store.server import RedisServer, free_port

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.xdist_group("load")]

PROMETHEUS = shutil.which("prometheus")


@dataclass
class Composed:
    """The service of compose.yaml as a process, and its store."""

    port: int
    store: RedisServer

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@pytest.fixture
def composed(own_server: RedisServer, tmp_path: Path) -> Iterator[Composed]:
    service = manifest("compose.yaml")["services"]["inference"]
    environ = environment("compose.yaml", "inference", {"KEY_SECRET": KEY})
    address = f"{PREFIX}REDIS_URL"
    environ[address] = environ[address].replace("valkey:6379", f"127.0.0.1:{own_server.port}")
    port = free_port()
    # The container's port and its own network become a free port of loopback.
    command = [{"8000": str(port), "0.0.0.0": "127.0.0.1"}.get(word, word) for word in service["command"]]
    with process([sys.executable, "-m", *command], environ, tmp_path / "service"):
        found = Composed(port, own_server)
        until(lambda: answer(f"{found.url}/ready")[0] == 200, HANG_S, "the service is ready")
        yield found


def answer(url: str, body: object = None) -> tuple[int, str]:
    """Status and body of one request."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=HANG_S) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def generated(composed: Composed) -> tuple[int, str]:
    return answer(f"{composed.url}/v1/generate", {"prompt": "a b"})


def limited(composed: Composed) -> str:
    """The body of the first limited answer; the limit of a minute ends every loop."""
    for _ in range(31):
        status, body = generated(composed)
        if status == 429:
            return body
    raise AssertionError("no request was limited")


def test_compose_answers_and_limits_in_its_store(composed: Composed) -> None:
    assert generated(composed) == (200, '{"text":"b a"}')
    assert json.loads(limited(composed))["error"]["type"] == "rate_limit_error"
    assert composed.store.command("DBSIZE") > 0, "the limit is that of the store"
    assert answer(f"{composed.url}/ready") == (200, '{"ready":true}')


@contextlib.contextmanager
def prometheus(composed: Composed, folder: Path) -> Iterator[str]:
    """Prometheus with the mounted files, its target and its interval replaced; yields its URL."""
    folder.mkdir()
    for volume in manifest("compose.yaml")["services"]["prometheus"]["volumes"]:
        source, target, _ = volume.split(":")
        shutil.copy(FOLDER / source, folder / Path(target).name)
    file = folder / "prometheus.yml"
    text = file.read_text()
    assert text.count("inference:8000") == 1
    text = text.replace("inference:8000", f"127.0.0.1:{composed.port}").replace(": 15s", ": 1s")
    file.write_text(text)
    port = free_port()
    command = [
        *(str(PROMETHEUS), f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}"),
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with process(command, {}, folder / "output"):
        url = f"http://127.0.0.1:{port}"
        until(lambda: answer(f"{url}/-/ready")[0] == 200, HANG_S, "Prometheus is ready")
        yield url


def value(url: str, query: str) -> float:
    """The value of a query without labels; NaN: there is none yet."""
    _, body = answer(f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query})}")
    found = json.loads(body)["data"]["result"]
    return float(found[0]["value"][1]) if found else float("nan")


@pytest.mark.skipif(PROMETHEUS is None, reason="Prometheus is not installed")
def test_prometheus_of_compose_scrapes_the_service(composed: Composed, tmp_path: Path) -> None:
    limited(composed)
    with prometheus(composed, tmp_path / "prometheus") as url:
        until(lambda: value(url, 'up{job="inference"}') == 1.0, HANG_S, "the target is scraped")
        query = 'sum(autoglm_throttle_requests_total{job="inference",decision="limited"})'
        until(lambda: value(url, query) >= 1.0, HANG_S, "the limited request is counted")
        until(
            lambda: value(url, 'count(autoglm_throttle_scale_hold{job="inference"})') == 1.0,
            HANG_S,
            "the metrics of the autoscaler have the job of its query",
        )


def test_unit_of_systemd_leaves_no_flags_after_a_kill(tmp_path: Path) -> None:
    lines = unit("systemd/inference.service")["Service"]
    service = dict(lines)
    flags, gpu = tmp_path / service["RuntimeDirectory"], tmp_path / "gpu.csv"
    flags.mkdir(int(service["RuntimeDirectoryMode"], 8))  # as systemd does
    gpu.write_text("index,utilization_pct\n0,97\n")
    given = dict(text.split("=", 1) for key, text in lines if key == "Environment")
    environ = {
        name: text.replace(f"/run/{service['RuntimeDirectory']}", str(flags)) for name, text in given.items()
    }
    # The file /etc/inference.env of this host: a GPU that is too busy.
    environ |= {f"{PREFIX}GPU": f"fake:{gpu}", f"{PREFIX}POLICY": "tiers", f"{PREFIX}TIER_SAMPLES": "1"}
    port = free_port()

    def command(key: str) -> list[str]:
        words = [{"8000": str(port)}.get(word, word) for word in shlex.split(service[key])]
        program = Path(words[0]).name
        own = {"uvicorn": ["-m", "uvicorn"], "autoglm-throttle": ["-m", "autoglm_throttle"]}.get(program)
        return [sys.executable, *own, *words[1:]] if own else words

    with process(command("ExecStartPre"), environ, tmp_path / "check") as check:
        assert check.wait(HANG_S) == 0
    with process(command("ExecStart"), environ, tmp_path / "output") as running:
        until((flags / "tier0").exists, HANG_S, "a worker has written its flag")
        kill(running)
    assert (flags / "tier0").exists(), "no process was left to clear it"
    after = [
        word.replace(f"/run/{service['RuntimeDirectory']}", str(flags)) for word in command("ExecStopPost")
    ]
    subprocess.run(after, check=True)
    assert {path.name for path in flags.iterdir()} == {"lock"}
