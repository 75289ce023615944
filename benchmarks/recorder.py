"""Cost of recording: microseconds of the event loop per request, and the share of 5000 requests/s answered.

Run: ``python -m benchmarks.recorder``. The first part drives the middleware without a server, in one process
with the writer's thread: its time on the loop is the processor time of the loop's own thread. The second part
is one uvicorn process on loopback, offered 5000 small POSTs a second by the load generator.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autoglm_throttle.traffic.generator import ClientOptions, OpenLoopSender, TargetUrl
from autoglm_throttle.traffic.plan import Arrivals, LoadShape, PriorityMix, make_plan
from autoglm_throttle.traffic.record import Recorder, RecorderMiddleware, RecorderSettings, open_recording
from autoglm_throttle.traffic.request_source import PlannedRequest, RequestSource
from benchmarks import harness
from benchmarks.shared.bars import Bar

ROWS = {"bare": "", "recorded": "a.jsonl", "packed": "a.jsonl.gz"}
"""Row -> name of the file."""

REQUESTS = 20_000
RATE_RPS = 5000
SECONDS = 4
BODY = b'{"prompt": "%s"}' % (b"x" * 200)

ON_THE_LOOP_US = 15.0
KEPT = 0.97
"""Bound of the answered share."""

CALM = 0.9
"""Share of the offered requests that the bare app must answer; with less the machine was busy."""

SCOPE: dict[str, Any] = {
    "type": "http",
    "method": "POST",
    "path": "/v1/predict",
    "raw_path": b"/v1/predict",
    "root_path": "",
    "query_string": b"stream=true",
    "headers": [
        (b"host", b"127.0.0.1:8000"),
        (b"accept", b"*/*"),
        (b"accept-encoding", b"gzip, deflate"),
        (b"connection", b"keep-alive"),
        (b"user-agent", b"benchmark"),
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(BODY)),
        (b"authorization", b"Bearer none"),
        (b"x-priority", b"high"),
    ],
}


def micros_on_the_loop(row: str) -> float:
    """Measure the processor time of the event loop thread for each request."""
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(RecorderSettings(path=Path(folder) / ROWS[row])) if ROWS[row] else None
        spent = asyncio.run(_drive(recorder))
        if recorder is not None:
            recorder.close()
            if recorder.counts.written != REQUESTS:
                raise RuntimeError(f"another job was done: {recorder.counts}")
    return spent / REQUESTS * 1e6


async def _drive(recorder: Recorder | None) -> float:
    from benchmarks.recorded import plain

    app: Any = plain if recorder is None else RecorderMiddleware(plain, recorder)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": BODY, "more_body": False}

    async def send(message: Any) -> None:  # noqa: ARG001
        return

    spent = 0.0
    for start in range(0, REQUESTS, 250):
        scopes = [{**SCOPE, "client": (f"10.0.{n % 200}.1", 4)} for n in range(start, start + 250)]
        before = time.thread_time()
        for scope in scopes:
            await app(scope, receive, send)
        spent += time.thread_time() - before
        await asyncio.sleep(0.01)  # 5000/s need 0.05: the writer has its turn
    return spent


@contextlib.contextmanager
def served(row: str, folder: str) -> Iterator[int]:
    """Run a uvicorn process with one of the apps; yields its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", f"benchmarks.recorded:{row}", "--port", str(port)]
    server = subprocess.Popen(
        [*command, "--log-level", "warning", "--no-access-log"],
        env={**os.environ, "BENCHMARK_RECORD_PATH": str(Path(folder) / "a.jsonl")},
    )
    try:
        deadline = time.monotonic() + 20.0
        while True:
            try:
                cpu_s(port)
                break
            except OSError:
                if server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the server of row {row} did not start") from None
                time.sleep(0.05)
        yield port
    finally:
        server.terminate()
        server.wait(10)


def cpu_s(port: int) -> float:
    """Read the CPU seconds of the server."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/cpu", timeout=5) as answer:
        return float(answer.read())


def share_answered(row: str, micros: dict[str, list[float]]) -> float:
    """Measure the share of offered requests answered in time; server CPU for each goes to ``micros``."""
    made = make_plan(
        LoadShape.parse(f"fixed:{RATE_RPS}:{SECONDS}"), Arrivals.UNIFORM, PriorityMix(clients=100), 1
    )
    load = RequestSource(made, (PlannedRequest(body=BODY),))
    with tempfile.TemporaryDirectory() as folder:
        with served(row, folder) as port:
            before = cpu_s(port)
            options = ClientOptions(connections=64, timeout_s=2.0, drain_s=2.0)
            result = asyncio.run(OpenLoopSender(load, TargetUrl(port=port), options).run())
            answered = sum(one.admitted for one in result.tallies.values())
            micros.setdefault(row, []).append((cpu_s(port) - before) / max(1, answered) * 1e6)
        if ROWS[row]:
            _account(Path(folder) / ROWS[row], answered)
    return answered / len(made)


def _account(path: Path, answered: int) -> None:
    recording = open_recording(path)
    kept = sum(entry.status == 200 for entry in recording.entries())
    dropped = 0 if recording.end is None else recording.end.dropped
    if kept + dropped < answered:
        raise RuntimeError(f"{answered} were answered, {kept} recorded and {dropped} dropped")


def main() -> None:
    """Measure, print and write the record."""
    options = harness.arguments(__doc__ or "", rounds=5)
    loop = harness.interleave(
        {row: functools.partial(micros_on_the_loop, row) for row in ROWS}, options.rounds
    )
    micros: dict[str, list[float]] = {}
    done = harness.interleave(
        {row: functools.partial(share_answered, row, micros) for row in ROWS}, options.rounds
    )
    on_the_loop = {
        row: statistics.median(a - b for a, b in zip(loop[row], loop["bare"], strict=True)) for row in ROWS
    }
    kept = {row: harness.ratio(done, row, "bare") for row in ROWS}
    calm = statistics.median(done["bare"]) >= CALM
    print(f"{'':12}{'us on the loop':>16}{'server CPU us':>16}{f'answered of {RATE_RPS}/s':>22}{'kept':>10}")
    for row in ROWS:
        cpu, answered = statistics.median(micros[row]), statistics.median(done[row])
        print(f"{row:12}{on_the_loop[row]:16.1f}{cpu:16.1f}{answered:22.1%}{kept[row]:10.1%}")
    evaluated = [
        bar
        for row in ROWS
        if ROWS[row]
        for bar in (
            Bar(f"{row}, us of the loop for each request", on_the_loop[row], ON_THE_LOOP_US),
            Bar(f"{row}, throughput kept at {RATE_RPS}/s", kept[row], KEPT, at_most=False, calm=calm),
        )
    ]
    print("\n".join(map(str, evaluated)))
    result = {
        **harness.machine("uvicorn"),
        "rounds": options.rounds,
        "rate_rps": RATE_RPS,
        "seconds": SECONDS,
        "loop_us": on_the_loop,
        "server_us": {row: statistics.median(values) for row, values in micros.items()},
        "answered": {row: statistics.median(values) for row, values in done.items()},
        "kept": kept,
        "bars": [bar.record() for bar in evaluated],
        "all": {"loop_us": loop, "answered": done, "server_us": micros},
    }
    print(harness.line(result))
    if options.write:
        harness.keep("recorder", result)


if __name__ == "__main__":
    main()
