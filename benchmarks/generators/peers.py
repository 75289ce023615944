"""Other load generators. Each runs in a process of its own, on one core, with the same connections as ours.

Locust replaces parts of the standard library as it is imported, so the programs of the Python peers are
texts: no module of the project imports them, and they may run in another environment.
"""

from __future__ import annotations

import importlib.util
import json
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.generators.ours import CONNECTIONS

PATH = "/v1/predict"
BODY = "{}"
FIELDS = {"content-type": "application/json", "x-priority": "low"}

AIOHTTP = f"""
import asyncio, json, sys, time
import aiohttp
try:
    from uvloop import run
except ImportError:
    from asyncio import run

async def main(port, seconds):
    url, count = f"http://127.0.0.1:{{port}}{PATH}", 0
    end_s = time.monotonic() + seconds
    async def caller(session):
        nonlocal count
        while time.monotonic() < end_s:
            async with session.post(url, data={BODY!r}, headers={FIELDS!r}) as answer:
                await answer.read()
                count += answer.status == 200
    connector = aiohttp.TCPConnector(limit={CONNECTIONS})
    async with aiohttp.ClientSession(connector=connector) as session:
        cpu_s, wall_s = time.process_time(), time.monotonic()
        await asyncio.gather(*(caller(session) for _ in range({CONNECTIONS})))
        cpu_s, wall_s = time.process_time() - cpu_s, time.monotonic() - wall_s
    print(json.dumps({{"answers": count, "elapsed_s": wall_s, "cpu_s": cpu_s}}))

run(main(int(sys.argv[1]), float(sys.argv[2])))
"""

LOCUST = f"""
import json, time
from locust import FastHttpUser, events, task

begun = {{}}

@events.spawning_complete.add_listener
def begin(**_):
    begun.update(count=Caller.count, cpu_s=time.process_time(), wall_s=time.monotonic())

@events.test_stopping.add_listener
def end(**_):
    print(json.dumps({{
        "answers": Caller.count - begun["count"],
        "elapsed_s": time.monotonic() - begun["wall_s"],
        "cpu_s": time.process_time() - begun["cpu_s"],
    }}), flush=True)

class Caller(FastHttpUser):
    count = 0

    @task
    def ask(self):
        answer = self.client.post({PATH!r}, data={BODY!r}, headers={FIELDS!r})
        Caller.count += answer.status_code == 200
"""

WRK = "\n".join(
    (
        'wrk.method = "POST"',
        f"wrk.body = {BODY!r}",
        *(f'wrk.headers["{n}"] = "{v}"' for n, v in FIELDS.items()),
    )
)


@dataclass(frozen=True)
class Peer:
    """One load generator."""

    title: str
    run: Callable[[int, float], dict[str, Any]] | None
    """Returns answers, elapsed_s and cpu_s for a port and seconds; None: it is not installed."""


def ours(kind: str) -> Peer:
    """Build ours, ``paced`` or as fast as possible (``ceiling``)."""

    def run(port: int, seconds: float) -> dict[str, Any]:
        return last_line(
            [sys.executable, "-m", "benchmarks.generators.ours", str(port), str(seconds), kind], seconds
        )

    return Peer("autoglm_throttle", run)


def aiohttp() -> Peer:
    """Build the client of aiohttp, with one task for each connection."""

    def run(port: int, seconds: float) -> dict[str, Any]:
        return last_line([sys.executable, "-c", AIOHTTP, str(port), str(seconds)], seconds)

    return Peer("aiohttp", run if importlib.util.find_spec("aiohttp") else None)


def locust(python: str | None) -> Peer:
    """Build the FastHttpUser of Locust, one user for each connection, without a pause between requests.

    Args:
        python: an interpreter with Locust; None: this one, if it has Locust.
    """

    def run(port: int, seconds: float) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "program.py"
            program.write_text(LOCUST)
            options = ["-f", str(program), "--headless", "--json", "--loglevel", "ERROR"]
            clients = ["-u", str(CONNECTIONS), "-r", "1000", "-t", f"{seconds + 1:.0f}s"]
            where = ["-H", f"http://127.0.0.1:{port}"]
            return last_line([python or sys.executable, "-m", "locust", *options, *clients, *where], seconds)

    return Peer("Locust FastHttpUser", run if python or importlib.util.find_spec("locust") else None)


def wrk() -> Peer:
    """Build wrk with one thread."""
    found = shutil.which("wrk")

    def run(port: int, seconds: float) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "program.lua"
            program.write_text(WRK)
            command = [found or "wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds:.0f}", "-s", str(program)]
            before, begun_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
            output_text = _output([*command, f"http://127.0.0.1:{port}{PATH}"], seconds)
            after, elapsed_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - begun_s
        counted = re.search(r"(\d+) requests in", output_text)
        if counted is None or "Non-2xx" in output_text:
            raise RuntimeError(f"wrk said {output_text!r}")
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return {"answers": int(counted[1]), "elapsed_s": elapsed_s, "cpu_s": cpu_s}

    return Peer("wrk, one thread", run if found else None)


def _output(command: list[str], seconds: float) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=seconds + 60).stdout


def last_line(command: list[str], seconds: float) -> dict[str, Any]:
    output = [line for line in _output(command, seconds).splitlines() if line.startswith("{")]
    figures: dict[str, Any] = json.loads(output[-1])
    return figures
