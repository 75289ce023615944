"""A throttled LLM service before a synthetic trace; prints a digest of everything that was decided.

Run as a script, so that a test can compare processes whose hashes differ: ``python -m
tests.traffic.inproc.throttled_trace SEED``.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from pathlib import Path
from random import Random

from autoglm_throttle import Settings, Throttle
from autoglm_throttle.asgi import ThrottleMiddleware
from autoglm_throttle.testing.simulated import LlmSpec, SimulatedGpu, SimulatedGpuSpec, service
from autoglm_throttle.traffic.inproc import VirtualClock, run_inprocess
from autoglm_throttle.traffic.plan import PriorityMix
from autoglm_throttle.traffic.replay import ReplayOptions, Selection, of_trace
from autoglm_throttle.traffic.request_log import RequestResult
from autoglm_throttle.traffic.results import Result
from autoglm_throttle.traffic.trace import HEADER, load_azure_llm

ROWS = 250
COLUMNS = ("statuses", "lag_s", "response_s", "service_s", "first_byte_s", "promised_s", "reasons")


def write_trace(path: Path, seed: int) -> None:
    """A file in the form of the public Azure traces, with bursts."""
    drawn, t_s = Random(seed), 0.0
    lines = [HEADER]
    for _ in range(ROWS):
        t_s += drawn.expovariate(2.0 if drawn.random() < 0.1 else 40.0)
        minute, second = divmod(t_s, 60.0)
        stamp = f"2023-11-16 18:{int(minute):02}:{int(second):02}.{int(second % 1 * 10_000_000):07}"
        lines.append(f"{stamp},{drawn.randint(2, 4000)},{drawn.randint(7, 600)}")
    path.write_text("\r\n".join(lines), encoding="utf-8")


def play(path: Path, seed: int) -> Result:
    """One run: the real throttle with a manual sampler that reads the simulated GPU once a second."""
    clock = VirtualClock()
    sim = SimulatedGpu(SimulatedGpuSpec(work=LlmSpec()), clock=clock)
    throttle = Throttle(
        Settings(policy="adaptive", user_limit="4/second", retry_jitter=0.0),
        gpu=sim,
        sampling="manual",
        clock=clock,
    )

    def watch(_t_s: float) -> dict[str, float]:
        return {"factor_ratio": throttle.tick().factor}

    options = ReplayOptions(mix=PriorityMix(clients=20, skew=1.0), seed=seed)
    load = of_trace(load_azure_llm(path), Selection(), options)
    app = ThrottleMiddleware(service(sim), throttle=throttle)
    return run_inprocess(app, load, clock=clock, watch=watch, abort=0.05, seed=seed)


def digest(result: Result) -> str:
    """Digest of the request log and of the samples."""
    sheet, told = result.request_log, hashlib.sha256()
    told.update(sheet.results)
    for name in COLUMNS:
        told.update(getattr(sheet, name).tobytes())
    told.update(json.dumps([sheet.reason_texts, result.watched, result.run_cost.elapsed_s]).encode())
    return told.hexdigest()


def main() -> None:
    """Replay a trace file with a seed and print the digest."""
    result = play(Path(sys.argv[1]), int(sys.argv[2]))
    counts = Counter(RequestResult(ending).label for ending in result.request_log.results)
    print(digest(result), json.dumps(counts, sort_keys=True))


if __name__ == "__main__":
    main()
