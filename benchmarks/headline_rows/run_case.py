"""One run of a server under its load, and its record."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from autoglm_throttle.traffic.generator import ClientOptions, TargetUrl, launch
from autoglm_throttle.traffic.generator.connection_pool import max_connections
from autoglm_throttle.traffic.report import RunInfo, make
from autoglm_throttle.traffic.report.schema import Document, Part
from autoglm_throttle.traffic.request_log import RequestResult
from autoglm_throttle.traffic.request_source import PlannedRequest, RequestSource
from autoglm_throttle.types import Priority
from benchmarks.headline_rows import control
from benchmarks.headline_rows.cases import CONNECTIONS, PATH, Case, Scale
from benchmarks.headline_rows.cores import cores, on
from benchmarks.overloaded import CPU_PATH
from examples.demo.process import DemoProcess

SERVER = "benchmarks.headline_rows.served"

TIMEOUT_S = 10.0
"""Time after which a client disconnects."""

REPLY_S = 10.0
"""Longest wait for the CPU time of a server, which may still be overloaded."""

FAILED = tuple(ending.label for ending in RequestResult if ending.failed)


def run_case(case: Case, scale: Scale, redis_url: str) -> dict[str, Any]:
    """Run a case; returns the figures of every level, and the CPU of server and generator."""
    chosen = cores()
    server, generator = chosen or (None, None)
    service_options = {"variant": case.variant, "row": case.row, "redis_url": redis_url, "core": server}
    load = RequestSource(scale.plan(), (PlannedRequest(target=PATH),))
    options = ClientOptions(
        connections=min(CONNECTIONS, max_connections()), timeout_s=TIMEOUT_S, drain_s=TIMEOUT_S + 1.0
    )
    with DemoProcess(SERVER, service_options) as child, on(generator):
        before_s, began_s = asyncio.run(_cpu_s(child)), time.monotonic()
        result = launch(load, TargetUrl(port=child.port, identity_header="x-user"), options)
        elapsed_s = time.monotonic() - began_s
        server_cpu = (asyncio.run(_cpu_s(child)) - before_s) / elapsed_s
    limits_s = dict.fromkeys(Priority, control.P99_S)
    return figures(make(result, RunInfo(title=case.key, shape=str(scale), limits_s=limits_s)), server_cpu)


async def _cpu_s(child: DemoProcess) -> float:
    give_up_s = time.monotonic() + REPLY_S
    while (reply := await child.request(CPU_PATH)) is None:
        if time.monotonic() > give_up_s:
            raise RuntimeError("the server does not report its CPU time")
        await asyncio.sleep(0.05)
    return float(reply["cpu_s"])


def figures(document: Document, server_cpu: float) -> dict[str, Any]:
    """Build the record of a run."""
    generator = document["generator"]
    return {
        "levels": {segment["name"]: level(segment) for segment in document["segments"]},
        "server_cpu": round(server_cpu, 3),
        "generator_cpu": generator["cpu_share"],
        "lag_p99_s": generator["lag"]["p99_s"],
        "reasons": document["totals"]["reasons"],
        "doubts": document["verdict"]["caveats"],
    }


def level(segment: Part) -> dict[str, Any]:
    """Build the record of a level; times are of served requests, from the intended start."""
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


def _counts(tally: Part) -> dict[str, int]:
    classes = tally["classes"]
    return {
        "planned": tally["planned"],
        "served": classes["ok"] + classes["degraded"],
        "limited": classes["limited"],
        "shed": classes["shed"],
        "errors": sum(classes[name] for name in FAILED),
    }
