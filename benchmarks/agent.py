"""Cost of observing a host: a reading of its cores, memory and disks, and ``autoglm-throttle agent``.

Run: ``python -m benchmarks.agent``, two minutes, on Linux. A load of one resource must move the figure of
this resource alone. The agent reads one device of a simulated NVML library (cc compiles it) once a second, as
by default; its memory is compared with an interpreter that has imported its packages.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autoglm_throttle.observe.host import HostMonitor
from autoglm_throttle.observe.series import STEP_S
from benchmarks import harness
from benchmarks.shared.bars import Bar
from tests.fake_nvml.build import build

READING_MS, HOST_SHARE = 0.3, 0.0003
"""Most CPU time of a reading, and the most of a core that the readings of a service may take."""
AGENT_SHARE, AGENT_MB = 0.002, 12.0
WARM_UP_S = 10.0
BLOCK = os.urandom(8 << 20)
SHOWN, SHOWN_OF_OTHERS = 0.9, 0.5
"""Least share of a load that its own figure shows, and the most that figures of other resources show."""
IMPORTS = "import pydantic, redis, prometheus_client, sys; print('ready', flush=True); sys.stdin.read()"


def reading(rounds: int = 1000, pause_s: float = 0.2) -> dict[str, float]:
    """Measure the CPU time of a reading: the least of a row without pauses, and the median with them.

    With pauses the caches of the processor hold the work of others, as in a service.
    """
    now = 0.0
    monitor = HostMonitor(lambda: now)
    taken: dict[str, list[float]] = {"least_ms": [], "paused_ms": []}
    for name, count, sleep_s in (("least_ms", rounds, 0.0), ("paused_ms", rounds // 20, pause_s)):
        for _ in range(count):
            now += 2.0
            time.sleep(sleep_s)
            begun_s = time.thread_time()
            monitor.current()
            taken[name].append((time.thread_time() - begun_s) * 1e3)
    return {"least_ms": min(taken["least_ms"]), "paused_ms": statistics.median(taken["paused_ms"])}


def loads(length_s: float = 2.0) -> dict[str, dict[str, float]]:
    """Load one resource after another; return what the host shows meanwhile, and what was done."""
    found = {}
    for name, load in {"cores": _busy, "disk": _write, "network": _transmit}.items():
        monitor = HostMonitor()
        monitor.current()
        begun_s = time.monotonic()
        done = load(begun_s + length_s)
        view, passed_s = monitor.current(), time.monotonic() - begun_s
        found[name] = {
            "done": done / passed_s,
            "cores": view.cpu_busiest_ratio or 0.0,
            "disk": view.disk_bytes_per_second.get("write", 0.0),
            "network": view.network_bytes_per_second.get("transmit", 0.0),
        }
    return found


def _busy(until_s: float) -> float:
    begun_s = time.process_time()
    while time.monotonic() < until_s:
        pass
    return time.process_time() - begun_s


def _write(until_s: float) -> float:
    """Write to a disk; return the bytes."""
    written = 0
    with tempfile.TemporaryFile(dir=Path(__file__).parent) as file:
        while time.monotonic() < until_s:
            file.seek(0)
            written += file.write(BLOCK)
            file.flush()
            os.fsync(file.fileno())
    return written


def _transmit(until_s: float) -> float:
    """Send to another socket of this machine; return the bytes."""
    sent = 0
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        client.connect(server.getsockname())
        receiver = server.accept()[0]
        with receiver:
            while time.monotonic() < until_s:
                sent += client.send(BLOCK[: 1 << 16])
                receiver.recv(1 << 20)
    return sent


def agent(length_s: float) -> dict[str, float]:
    """Measure the share of a core that the agent takes, and its memory above that of its packages."""
    with tempfile.TemporaryDirectory() as folder:
        environment = build(Path(folder))
        Path(environment["FAKE_NVML_FILE"]).write_text("-1.count=1\n")
        command = ["-m", "autoglm_throttle", "agent", "--port", "0"]
        share, used_mb = _measured(command, environment, length_s)
        _, imports_mb = _measured(["-c", IMPORTS], environment, 0.0)
    return {"share": share, "mb": used_mb - imports_mb, "length_s": length_s}


def _measured(
    arguments: Sequence[str], environment: Mapping[str, str], length_s: float
) -> tuple[float, float]:
    """Run an interpreter; return its share of a core after a while, and its memory in MB."""
    pipe = subprocess.PIPE
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        if length_s:
            time.sleep(WARM_UP_S)
        before_s, begun_s = _cpu_s(child.pid), time.monotonic()
        time.sleep(length_s)
        share = (_cpu_s(child.pid) - before_s) / (time.monotonic() - begun_s)
        status = Path(f"/proc/{child.pid}/status").read_text()
        used_kb = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
        child.terminate()
    return share, used_kb * 1024 / 1e6


def _cpu_s(process: int) -> float:
    """Return the CPU time of all threads of a process; the usual one is counted in steps of 10 ms."""
    files = Path(f"/proc/{process}/task").glob("*/schedstat")
    return sum(int(path.read_text().split()[0]) for path in files) * 1e-9


def bars(found: Mapping[str, Any]) -> Iterator[Bar]:
    """Compute the bars of the parts that were measured."""
    if "reading" in found:
        one = found["reading"]
        yield Bar("a reading of the host, least CPU ms", one["least_ms"], READING_MS)
        share = one["paused_ms"] / 1e3 / STEP_S
        yield Bar(f"readings each {STEP_S:g} s, share of a core", share, HOST_SHARE)
    if "loads" in found:
        yield from _load_bars(found["loads"])
    if "agent" in found:
        yield Bar("the agent, share of a core", found["agent"]["share"], AGENT_SHARE)
        yield Bar("the agent, MB above its packages", found["agent"]["mb"], AGENT_MB)


def _load_bars(found: Mapping[str, Mapping[str, float]]) -> Iterator[Bar]:
    for name, row in found.items():
        yield Bar(f"load of {name}: shown over done", row[name] / row["done"], SHOWN, at_most=False)
        for other in (one for one in found if one not in {name, "cores"}):  # to write takes a core, too
            text = f"load of {name}: {other} over its own load"
            yield Bar(text, row[other] / found[other]["done"], SHOWN_OF_OTHERS)


def main() -> int:
    """Measure, print and keep the record; returns 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=90.0, help="time for which the agent is measured")
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results")
    options = parser.parse_args()
    parts: dict[str, Callable[[], object]] = {
        "reading": reading,
        "loads": loads,
        "agent": lambda: agent(options.seconds),
    }
    found = {name: measure() for name, measure in parts.items()}
    evaluated = list(bars(found))
    print("\n".join(map(str, evaluated)))
    result = {
        **harness.machine("psutil", "nvidia-ml-py"),
        **found,
        "bars": [bar.record() for bar in evaluated],
    }
    if options.write:
        harness.keep("agent", result)
    return 1 if any(bar.verdict == "MISSED" for bar in evaluated) else 0


if __name__ == "__main__":
    sys.exit(main())
