"""One server under its load, from start to end, and what is kept of it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from autoglm_throttle.traffic.demo.demo_process import DemoProcess
from autoglm_throttle.traffic.files import max_connections
from autoglm_throttle.traffic.generator import ClientOptions, TargetUrl, launch
from autoglm_throttle.traffic.report import control
from autoglm_throttle.traffic.report.document import make
from autoglm_throttle.traffic.report.run_info import RunInfo
from autoglm_throttle.traffic.report.schema import Document, SegmentPart, TallyDocument
from autoglm_throttle.traffic.request_result import RequestResult
from autoglm_throttle.traffic.request_source import PlannedRequest, RequestSource
from autoglm_throttle.types import Priority
from benchmarks.headline_rows.cases import CONNECTIONS, PATH, Case, Scale
from benchmarks.headline_rows.cores import cores, on
from benchmarks.overloaded import CPU_PATH

SERVER = "benchmarks.headline_rows.served"

PATIENCE_S = 10.0
"""A client that has waited so long is gone."""

TELLING_S = 10.0
"""A server that was just overloaded may take its time to say how much CPU it used."""

FAILED = tuple(ending.label for ending in RequestResult if ending.failed)


def play(case: Case, scale: Scale, redis_url: str) -> dict[str, Any]:
    """The figures of a row: those of every level, and what server and generator needed."""
    chosen = cores()
    server, generator = chosen or (None, None)
    asked = {"variant": case.variant, "row": case.row, "redis_url": redis_url, "core": server}
    load = RequestSource(scale.plan(), (PlannedRequest(target=PATH),))
    options = ClientOptions(
        connections=min(CONNECTIONS, max_connections()), timeout_s=PATIENCE_S, drain_s=PATIENCE_S + 1.0
    )
    with DemoProcess(SERVER, asked) as child, on(generator):
        before_s, began_s = asyncio.run(_cpu_s(child)), time.monotonic()
        result = launch(load, TargetUrl(port=child.port, identity_header="x-user"), options)
        elapsed_s = time.monotonic() - began_s
        server_cpu = (asyncio.run(_cpu_s(child)) - before_s) / elapsed_s
    limits_s = dict.fromkeys(Priority, control.P99_S)
    return figures(make(result, RunInfo(title=case.key, shape=str(scale), limits_s=limits_s)), server_cpu)


async def _cpu_s(child: DemoProcess) -> float:
    give_up_s = time.monotonic() + TELLING_S
    while (told := await child.request(CPU_PATH)) is None:
        if time.monotonic() > give_up_s:
            raise RuntimeError("the server does not tell its CPU time")
        await asyncio.sleep(0.05)
    return float(told["cpu_s"])


def figures(document: Document, server_cpu: float) -> dict[str, Any]:
    """What is kept of a run."""
    generator = document["generator"]
    return {
        "levels": {segment["name"]: level(segment) for segment in document["segments"]},
        "server_cpu": round(server_cpu, 3),
        "generator_cpu": generator["cpu_share"],
        "lag_p99_s": generator["lag"]["p99_s"],
        "reasons": document["totals"]["reasons"],
        "doubts": document["verdict"]["caveats"],
    }


def level(segment: SegmentPart) -> dict[str, Any]:
    """One level of load: times are of the served, in seconds from the intended start."""
    tally, length_s = segment["tally"], segment["end_s"] - segment["start_s"]
    response = tally["response"]
    return {
        **_counts(tally),
        **{name: response[name] for name in ("mean_s", "p50_s", "p95_s", "p99_s")},
        "done_ratio": tally["done_ratio"],
        "error_ratio": tally["error_ratio"],
        "served_rps": round(_counts(tally)["served"] / length_s, 3),
        "goodput_rps": tally["goodput"]["rps"],
        "priorities": {name: _counts(one) for name, one in segment["priorities"].items()},
    }


def _counts(tally: TallyDocument) -> dict[str, int]:
    classes = tally["classes"]
    return {
        "planned": tally["planned"],
        "served": classes["ok"] + classes["degraded"],
        "limited": classes["limited"],
        "shed": classes["shed"],
        "errors": sum(classes[name] for name in FAILED),
    }
