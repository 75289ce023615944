"""A trace of LLM requests, replayed: is every request accounted for, and sent when it should be?

Run: ``python -m benchmarks.replay --trace AzureLLMInferenceTrace_conv.csv`` (Azure/AzurePublicDataset, CC BY
4.0; Patel et al., "Splitwise", ISCA 2024), about a minute at 60x; without ``--trace`` on a made-up one of the
same form, 10 s. Once over HTTP to a process of its own, then twice in process with the same seed, which must
decide alike to the last byte. The control sends the first seconds of the same load to a service that
answers at once: it shows the lag of generator and machine.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from math import isnan
from pathlib import Path
from random import Random
from typing import Any

from autoglm_throttle.traffic.generator import ClientOptions, TargetUrl, launch
from autoglm_throttle.traffic.inproc import VirtualClock, run_inprocess
from autoglm_throttle.traffic.plan import PriorityMix
from autoglm_throttle.traffic.replay import ReplayOptions, Selection, open_replay
from autoglm_throttle.traffic.request_log import UNSENT, RequestLog, RequestResult
from autoglm_throttle.traffic.request_source import RequestSource
from autoglm_throttle.traffic.results import Result
from autoglm_throttle.traffic.trace import HEADER
from benchmarks import harness
from benchmarks.replayed import CONNECTIONS, throttled
from benchmarks.shared.bars import Bar
from examples.demo.process import DemoProcess

SERVER = "benchmarks.replayed"
SPEED = 60.0
LAG_S = 0.005
"""Bound of the lag at the 99th percentile."""

CONTROL_S = 5.0
PRIORITIES = PriorityMix(clients=50, skew=0.8)
MADE_UP_S = 600.0
"""Seconds of the made-up trace, before the speed-up."""

COLUMNS = ("statuses", "lag_s", "response_s", "service_s", "first_byte_s", "promised_s", "reasons")


def made_up(path: Path, seed: int) -> Path:
    """Write a trace of the public form: 5.5 requests/s on average, in bursts, with similar token counts."""
    drawn, t_s = Random(seed), 0.0
    lines = [HEADER]
    while (t_s := t_s + drawn.gammavariate(0.8, 1.0 / (5.5 * 0.8))) < MADE_UP_S:
        minute, second = divmod(t_s, 60.0)
        stamp = f"2024-01-01 00:{int(minute):02}:{int(second):02}.{int(second % 1 * 10_000_000):07}"
        context, generated = drawn.lognormvariate(6.7, 0.9), drawn.lognormvariate(5.1, 0.7)
        lines.append(f"{stamp},{min(14_050, max(2, round(context)))},{min(1_000, max(7, round(generated)))}")
    path.write_text("\r\n".join(lines), encoding="utf-8")
    return path


def over_http(load: RequestSource, speed: float, *, control: bool) -> Result:
    """Replay against a service in a process of its own."""
    options = ClientOptions(connections=256, more_connections=CONNECTIONS - 256)
    with DemoProcess(SERVER, {"speed": speed, "control": control}) as child:
        return launch(load, TargetUrl(port=child.port, identity_header="x-client"), options)


def in_process(load: RequestSource, speed: float) -> Result:
    """Replay in virtual time; the throttle reads its GPU once a second."""
    clock = VirtualClock()
    app, throttle = throttled(speed, clock)

    def watch(_t_s: float) -> dict[str, float]:
        return {"factor_ratio": throttle.tick().factor}

    return run_inprocess(app, load, clock=clock, watch=watch)


def digest(result: Result) -> str:
    """Hash all decisions and their times."""
    checksum = hashlib.sha256(result.request_log.results)
    for name in COLUMNS:
        checksum.update(getattr(result.request_log, name).tobytes())
    checksum.update(repr((result.request_log.reason_texts, result.watched)).encode())
    return checksum.hexdigest()[:16]


def decisions(log: RequestLog) -> dict[str, int]:
    """Count results, those of rejections with their reason."""
    counts: Counter[str] = Counter()
    for number, reason in zip(log.results, log.reasons, strict=True):
        if number < UNSENT:
            texts = (RequestResult(number).label, log.reason_texts[reason])
            counts[" ".join(word for word in texts if word)] += 1
    return dict(sorted(counts.items()))


def lags(log: RequestLog) -> tuple[float, float]:
    """Return the exact 99th percentile and maximum of the lag, in seconds."""
    late = sorted(lag_s for lag_s in log.lag_s if not isnan(lag_s))
    return late[min(len(late) - 1, int(0.99 * len(late)))], late[-1]


def report(name: str, result: Result) -> dict[str, Any]:
    """Print one run, and return its record."""
    planned, counts = len(result.load.plan), decisions(result.request_log)
    lag_p99_s, lag_max_s = lags(result.request_log)
    row = {
        "planned": planned,
        "accounted": sum(counts.values()) if result.balanced else 0,
        "seconds": round(result.run_cost.elapsed_s, 2),
        "lag_p99_s": round(lag_p99_s, 6),
        "lag_max_s": round(lag_max_s, 6),
        "decisions": counts,
    }
    print(
        f"{name}: planned {planned}, accounted {row['accounted']}, {row['seconds']} s,"
        f" lag p99 {1e3 * lag_p99_s:.2f} ms, max {1e3 * lag_max_s:.2f} ms"
    )
    print("  " + ", ".join(f"{arguments_given} {count}" for arguments_given, count in counts.items()))
    return row


def measure(path: Path, speed: float, seed: int, to_s: float | None) -> tuple[dict[str, Any], list[Bar]]:
    """Run all replays of a trace; returns their rows and bars."""

    def load(until_s: float | None) -> RequestSource:
        cut = Selection(speed=speed, to_s=until_s)
        return open_replay(path, cut, ReplayOptions(mix=PRIORITIES, seed=seed)).load

    control_s = speed * CONTROL_S
    played, short = load(to_s), load(control_s if to_s is None else min(to_s, control_s))
    rows = {"control": report("control", over_http(short, speed, control=True))}
    rows["http"] = report("over HTTP", over_http(played, speed, control=False))
    repeats, digests = [], []
    for number in (1, 2):
        begun_s = time.process_time()
        result = in_process(played, speed)
        digests.append(digest(result))
        repeats.append(report(f"in process, run {number} ({digests[-1]})", result))
        print(f"  {time.process_time() - begun_s:.1f} s of CPU")
    rows["in_process"] = repeats[0]
    http, calm = rows["http"], rows["control"]["lag_p99_s"] <= LAG_S
    bars = [
        Bar("requests over HTTP that are not accounted for", http["planned"] - http["accounted"], 0),
        Bar("lag p99 over HTTP, ms", 1e3 * http["lag_p99_s"], 1e3 * LAG_S, calm=calm),
        Bar("different decisions of two runs in process", float(digests[0] != digests[1]), 0),
    ]
    return rows, bars


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Replay a trace of LLM requests")
    parser.add_argument("--trace", type=Path, help="a CSV file of token numbers (default: a made-up one)")
    parser.add_argument("--speed", type=float, default=SPEED, help=f"times faster (default {SPEED:g})")
    parser.add_argument("--seed", type=int, default=0, help="of priorities and callers (default 0)")
    parser.add_argument("--to", type=float, help="only so many seconds of the trace")
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results")
    return parser.parse_args()


def main() -> int:
    """Measure, print and write the record."""
    logging.getLogger("autoglm_throttle").addHandler(logging.NullHandler())
    planned_rps = arguments()
    with tempfile.TemporaryDirectory() as folder:
        path: Path = planned_rps.trace or made_up(Path(folder) / "made-up.csv", 1)
        rows, bars = measure(path, planned_rps.speed, planned_rps.seed, planned_rps.to)
        name = path.name
    for bar in bars:
        print(bar)
    if planned_rps.write:
        record: Mapping[str, Any] = {
            **harness.machine(),
            "trace": name,
            "speed": planned_rps.speed,
            "seed": planned_rps.seed,
            "rows": rows,
            "bars": [bar.record() for bar in bars],
        }
        harness.keep("replay", record)
    return 1 if any(bar.verdict == "MISSED" for bar in bars) else 0


if __name__ == "__main__":
    sys.exit(main())
