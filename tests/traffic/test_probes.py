"""Probes of a service under load."""

from __future__ import annotations

import http.server
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from autoglm_throttle.gpu.scrape.exposition import Series
from autoglm_throttle.observe.metrics import METRICS
from autoglm_throttle.traffic import probes
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.probes import (
    MetricsProbe,
    Probe,
    Prober,
    ProbeTargetLostError,
    ProcessProbe,
    numbers,
)
from autoglm_throttle.types import ProviderUnavailable

WAIT_S = 60.0


HELD_BYTES = 50_000_000

PARENT = f"""
import subprocess, sys
child = "held = bytearray({HELD_BYTES}); print(flush=True); input()"
workers = []
print(flush=True)
for line in sys.stdin:
    if line.strip() == "start":
        workers.append(subprocess.Popen(
            [sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        workers[-1].stdout.readline()
    elif line.strip() == "stop":
        workers[-1].communicate(b"end")
    print(flush=True)
"""


class Family:
    """A process that starts and stops children that hold 50 MB each; all end with its input."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._read()

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        self._read()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.process.stdout.readline()


@pytest.fixture
def family() -> Iterator[Family]:
    made = Family()
    with made.process:
        yield made
        made.process.kill()


def test_a_real_process_with_its_child(family: Family) -> None:
    family.tell("start")
    probe = ProcessProbe(family.process.pid)
    first = probe.sample(1.0)
    assert HELD_BYTES < first["rss_bytes"] < 10 * HELD_BYTES
    assert "cpu_share" not in first
    assert 0.0 <= probe.sample(2.0)["cpu_share"] < 1.0
    family.process.kill()
    family.process.wait(WAIT_S)
    with pytest.raises(ProbeTargetLostError, match="has ended"):
        probe.sample(3.0)


def test_process_that_ended_and_was_not_waited_for_is_lost(family: Family) -> None:
    probe = ProcessProbe(family.process.pid)
    family.process.kill()
    deadline_s = time.monotonic() + WAIT_S
    while psutil.Process(family.process.pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    with pytest.raises(ProbeTargetLostError):
        probe.sample(1.0)


def test_workers_that_come_and_go(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "CHILD_SEARCH_SAMPLES", 2)
    probe = ProcessProbe(family.process.pid)
    alone = probe.sample(0.0)["rss_bytes"]
    family.tell("start")
    assert probe.sample(1.0)["rss_bytes"] < alone + HELD_BYTES  # searched for in every second sample
    assert probe.sample(2.0)["rss_bytes"] > alone + HELD_BYTES
    assert probe.sample(3.0)["cpu_share"] < 0.5  # the work of a new worker before its first sample is unknown
    family.tell("stop")
    assert probe.sample(4.0)["rss_bytes"] < alone + HELD_BYTES


def test_our_own_work_is_seen() -> None:
    probe = ProcessProbe(os.getpid())
    probe.sample(0.0)
    until_s = time.process_time() + 0.2
    while time.process_time() < until_s:
        pass
    assert probe.sample(1.0)["cpu_share"] >= 0.15


def test_a_process_that_is_not_there_cannot_be_watched() -> None:
    with pytest.raises(TrafficError, match="there is no process 4999999 to watch"):
        ProcessProbe(4_999_999)


def test_reused_process_id_is_not_monitored(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = ProcessProbe(family.process.pid)
    monkeypatch.setattr(psutil.Process, "is_running", lambda _: False)  # psutil compares the start times
    with pytest.raises(ProbeTargetLostError):
        probe.sample(1.0)


def test_missing_psutil_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    with pytest.raises(TrafficError, match="this needs psutil: "):
        ProcessProbe(os.getpid())


PAGE = """\
# HELP autoglm_throttle_factor_ratio x
autoglm_throttle_factor_ratio 0.7
autoglm_throttle_inflight_requests 12
autoglm_throttle_queued_requests{priority="high"} 1
autoglm_throttle_queued_requests{priority="low"} 4
autoglm_throttle_gpu_utilization_ratio{gpu="0"} 0.5
autoglm_throttle_gpu_utilization_ratio{gpu="1"} 1
autoglm_throttle_gpu_memory_used_bytes{gpu="0"} 10
autoglm_throttle_gpu_memory_total_bytes{gpu="0"} 40
autoglm_throttle_gpu_power_watts{gpu="0"} 200
autoglm_throttle_gpu_power_watts{gpu="1"} NaN
nonsense of another exporter that nobody reads
"""
NUMBERS = {
    "factor_ratio": 0.7,
    "inflight": 12.0,
    "waiting": 5.0,
    "gpu_utilization_ratio": 0.75,
    "gpu_memory_ratio": 0.25,
    "gpu_power_w": 200.0,
}


class PageServer:
    def __init__(self) -> None:
        self.page = PAGE.encode()
        self.paths: list[str] = []
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.paths.append(self.path)
                self.send_response(200 if owner.answers(self.path) else 307)
                self.end_headers()
                self.wfile.write(owner.page)

            def log_message(self, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def answers(self, path: str) -> bool:
        return True

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def served() -> Iterator[PageServer]:
    server = PageServer()
    yield server
    server.close()


def test_the_page_of_a_service(served: PageServer) -> None:
    assert MetricsProbe(served.url).sample(0.0) == NUMBERS
    assert MetricsProbe(f"{served.url}/other?x=1").sample(0.0) == NUMBERS
    assert served.paths == ["/metrics", "/other?x=1"]


@pytest.mark.parametrize("path", ["/metrics", "/metrics/"])
def test_a_redirect_is_not_followed(path: str, served: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "answers", lambda _: False)
    look = MetricsProbe(f"{served.url}{path}")
    with pytest.raises(TrafficError, match=r"--metrics: metrics of 127\.0\.0\.1:\d+ answers 307"):
        look.check()
    assert served.paths == [path]


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (b"up 1\n", "has no metrics of this library"),
        (b"autoglm_throttle_factor_ratio one\n", "is no series"),
    ],
)
def test_empty_metrics_page_is_rejected(page: bytes, said: str, served: PageServer) -> None:
    served.page = page
    with pytest.raises(ProviderUnavailable, match=said):
        MetricsProbe(served.url).sample(0.0)


@pytest.mark.parametrize("url", ["127.0.0.1:80", "ftp://x", "http://", ""])
def test_no_url(url: str) -> None:
    with pytest.raises(TrafficError):
        MetricsProbe(url)


def test_admitted_requests_are_counted_without_a_limiter() -> None:
    active = [Series("autoglm_throttle_active_requests", {"priority": name}, 2.0) for name in ("high", "low")]
    gate = Series("autoglm_throttle_inflight_requests", {}, 7.0)
    assert numbers(active) == {"inflight": 4.0}
    assert numbers([gate, *active]) == {"inflight": 7.0}


def test_memory_without_a_total_is_no_ratio() -> None:
    assert numbers([Series("autoglm_throttle_gpu_memory_used_bytes", {}, 1.0)]) == {}


def test_the_metrics_that_are_read_exist() -> None:
    names = {spec.name for spec in METRICS}
    assert set(probes.WANTED) <= names


class Scripted:
    """Returns a number, fails or loses its target, depending on the sample."""

    def __init__(self, name: str, *script: float | Exception) -> None:
        self.name = name
        self._script = list(script)
        self.ended = threading.Event()

    def sample(self, now: float) -> dict[str, float]:
        step = self._script.pop(0)
        if not self._script:
            self.ended.set()
            self._script.append(step)
        if isinstance(step, Exception):
            raise step
        return {self.name: step}


def test_probes_run_concurrently_and_independently() -> None:
    well, ill, gone = (
        Scripted("a", 1.0, 2.0, 3.0),
        Scripted("b", OSError("no"), 5.0),
        Scripted("c", ProbeTargetLostError("off")),
    )
    begun_s = time.monotonic()
    with Prober([well, ill, gone], every_s=0.02) as watch:
        for look in (well, ill, gone):
            assert look.ended.wait(WAIT_S)
        ended_s = time.monotonic()
    rows = watch.samples(begun_s, ended_s + 1.0)
    assert {"a", "b", "t_s"} in [set(row) for row in rows]
    assert [row["t_s"] for row in rows] == sorted(row["t_s"] for row in rows)
    assert all("c" not in row for row in rows)
    assert sorted(watch.faults) == ["b no", "c off"]
    assert watch.samples(ended_s + 1.0, ended_s + 2.0) == ()


def test_failed_samples_are_counted() -> None:
    look = Scripted("x", OSError("no"), OSError("no"), OSError("no"), 1.0)
    with Prober([look], every_s=0.001) as watch:
        assert look.ended.wait(WAIT_S)
    assert watch.faults == ["x no (3 failed samples)"]


def test_unreachable_and_hanging_urls_delay_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probes, "TIMEOUT_S", 10 * WAIT_S)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with socket.create_server(("127.0.0.1", 0)) as closed:
            dead = closed.getsockname()[1]
        well = Scripted("a", 1.0, 1.0, 1.0)
        looks: list[Probe] = [
            MetricsProbe(f"http://127.0.0.1:{port}"),
            MetricsProbe(f"http://127.0.0.1:{dead}"),
            well,
        ]
        begun_s = time.monotonic()
        with Prober(looks, every_s=0.01) as watch:
            assert well.ended.wait(WAIT_S)
            while not watch.faults and time.monotonic() < begun_s + WAIT_S:
                threading.Event().wait(0.01)
        assert any(f"metrics of 127.0.0.1:{dead} cannot be reached" in fault for fault in watch.faults)
