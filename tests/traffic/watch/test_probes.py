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

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.gpu.exposition import Series
from autoglm_throttle.observe.metrics import METRICS
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.watch import MetricsProbe, Probe, Prober, ProbeTargetLostError, ProcessProbe
from autoglm_throttle.traffic.watch import metrics as metrics_page
from autoglm_throttle.traffic.watch.process import (
    CHILD_SEARCH_SAMPLES,
    PROC,
    ProcessTable,
    Usage,
    descendants,
    parse_ps,
    parse_stat,
    read_proc,
    read_ps,
)
from autoglm_throttle.types import ProviderUnavailable

WAIT_S = 60.0
STAT = "77 (a (b) c) S 1 77 77 0 -1 4194560 9 8 7 6 250 50 3 2 20 0 5 0 12345 1000000 512 1844"


def test_stat_line_is_parsed() -> None:
    usage = parse_stat(STAT, 100, 4096)
    assert usage == Usage(77, 1, "12345", 3.0, 512 * 4096)


@pytest.mark.parametrize("state", ["Z", "X"])
def test_a_process_that_has_ended_uses_nothing(state: str) -> None:
    assert parse_stat(STAT.replace(") S ", f") {state} "), 100, 4096) is None


@pytest.mark.parametrize("text", ["", "77 (x) S 1", "nonsense"])
def test_malformed_stat_line_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="stat"):
        parse_stat(text, 100, 4096)


def test_ps_output_is_parsed() -> None:
    found = parse_ps("  77     1  2048   0:03.52 S\n 78 77 1024 1-02:03:04 R+\n 79 77 0 00:00:00 Z+\n\n")
    assert found == {
        77: Usage(77, 1, "", 3.52, 2048 * 1024),
        78: Usage(78, 77, "", 93_784.0, 1024 * 1024),
    }


BUSY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "held = bytearray(50_000_000); print(flush=True); input()"],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def busy() -> Iterator[subprocess.Popen[bytes]]:
    """A process with a child that holds 50 MB; both end with its input."""
    with subprocess.Popen(
        [sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


@pytest.mark.parametrize("read", [read_proc, read_ps])
def test_a_real_process_with_its_child(read: object, busy: subprocess.Popen[bytes]) -> None:
    if read is read_proc and not PROC.exists():
        read = read_ps
    look = ProcessProbe(busy.pid, read)  # type: ignore[arg-type]
    first = look.sample(1.0)
    assert 55_000_000 < first["rss_bytes"] < 500_000_000
    assert "cpu_share" not in first
    assert 0.0 <= look.sample(2.0)["cpu_share"] < 1.0
    busy.kill()
    busy.wait(WAIT_S)
    with pytest.raises(ProbeTargetLostError, match=f"process {busy.pid} has ended"):
        look.sample(3.0)


def test_our_own_work_is_seen() -> None:
    look = ProcessProbe(os.getpid())
    look.sample(0.0)
    until_s = time.process_time() + 0.2
    while time.process_time() < until_s:
        pass
    assert look.sample(1.0)["cpu_share"] >= 0.15


def test_a_process_that_is_not_there_cannot_be_watched() -> None:
    with pytest.raises(TrafficError, match="there is no process 0 to watch"):
        ProcessProbe(0, lambda pids: {})


def _usage(pid: int, cpu_s: float, *, parent: int = 1, born: str = "1") -> Usage:
    return Usage(pid, parent, born, cpu_s, 100)


def _scripted(*tables: list[Usage]) -> ProcessProbe:
    script = iter([{usage.pid: usage for usage in table} for table in tables])
    return ProcessProbe(7, lambda pids: next(script))


def test_reused_process_id_is_not_monitored() -> None:
    look = _scripted([_usage(7, 1.0)], [_usage(7, 0.5, born="2")])
    with pytest.raises(ProbeTargetLostError):
        look.sample(1.0)


def test_workers_that_come_and_go() -> None:
    def table(*pids: int, cpu_s: float) -> list[Usage]:
        return [_usage(7, cpu_s), *(_usage(pid, cpu_s, parent=7) for pid in pids)]

    seen: list[frozenset[int] | None] = []
    script = [table(8, cpu_s=1.0), table(cpu_s=1.0), table(cpu_s=1.5)]
    script += [table(cpu_s=1.5)] * (CHILD_SEARCH_SAMPLES - len(script)) + [
        table(9, cpu_s=1.75),
        table(9, cpu_s=2.0),
    ]
    tables = iter(script)

    def read(pids: frozenset[int] | None) -> ProcessTable:
        seen.append(pids)
        return {usage.pid: usage for usage in next(tables)}

    look = ProcessProbe(7, read)
    assert look.sample(1.0)["rss_bytes"] == 100.0
    assert look.sample(2.0)["cpu_share"] == 0.5
    for second in range(3, CHILD_SEARCH_SAMPLES):
        look.sample(float(second))
    last = look.sample(float(CHILD_SEARCH_SAMPLES))
    assert last == {"rss_bytes": 200.0, "cpu_share": 0.25}
    assert look.sample(CHILD_SEARCH_SAMPLES + 1.0)["cpu_share"] == 0.25 + 0.25
    assert [pids is None for pids in seen] == [True, *[False] * (CHILD_SEARCH_SAMPLES - 1), True, False]
    assert seen[1] == frozenset((7, 8))


@given(st.dictionaries(st.integers(1, 30), st.integers(0, 30)))
def test_descendants_are_found_by_their_parents(parents: dict[int, int]) -> None:
    table = {pid: _usage(pid, 0.0, parent=parent) for pid, parent in parents.items()}

    def descends(pid: int) -> bool:
        seen = set[int]()
        while pid in table and pid not in seen:
            if pid == 7:
                return True
            seen.add(pid)
            pid = parents[pid]
        return False

    expected = {pid for pid in table if descends(pid)}
    assert descendants(table, 7) == expected


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
        self.mounted = False
        """Whether only paths with a slash at their end are answered."""
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
        return not self.mounted or path.partition("?")[0].endswith("/")

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


def test_the_page_of_an_application_that_is_mounted(served: PageServer) -> None:
    served.mounted = True
    look = MetricsProbe(f"{served.url}/metrics?x=1")
    assert [look.sample(0.0), look.sample(1.0)] == [NUMBERS, NUMBERS]
    assert served.paths == ["/metrics?x=1", "/metrics/?x=1", "/metrics/?x=1"], "it is asked astray only once"


@pytest.mark.parametrize("path", ["/metrics", "/metrics/"])
def test_another_redirect_is_not_followed(
    path: str, served: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "answers", lambda _: False)
    look = MetricsProbe(f"{served.url}{path}")
    with pytest.raises(TrafficError, match=r"--metrics: metrics of 127\.0\.0\.1:\d+ answers 307"):
        look.check()
    assert len(served.paths) == 2 - path.endswith("/")


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
    assert metrics_page.numbers(active) == {"inflight": 4.0}
    assert metrics_page.numbers([gate, *active]) == {"inflight": 7.0}


def test_memory_without_a_total_is_no_ratio() -> None:
    assert metrics_page.numbers([Series("autoglm_throttle_gpu_memory_used_bytes", {}, 1.0)]) == {}


def test_the_metrics_that_are_read_exist() -> None:
    names = {spec.name for spec in METRICS}
    assert set(metrics_page.WANTED) <= names


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
    assert sorted(watch.faults) == ["b no", "off"]
    assert watch.samples(ended_s + 1.0, ended_s + 2.0) == ()


def test_failed_samples_are_counted() -> None:
    look = Scripted("x", OSError("no"), OSError("no"), OSError("no"), 1.0)
    with Prober([look], every_s=0.001) as watch:
        assert look.ended.wait(WAIT_S)
    assert watch.faults == ["x no (3 failed samples)"]


def test_unreachable_and_hanging_urls_delay_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics_page, "TIMEOUT_S", 10 * WAIT_S)
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
