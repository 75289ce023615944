"""The tables of figures in README.md and docs/, made from the records of the benchmarks.

Run: ``python -m benchmarks.figures`` after ``python -m benchmarks.peers --write``, the same of ``serve``,
``instructions``, ``redis``, ``closed_loop``, ``overload``, ``breaker`` or ``headline``, or after
``python -m docs.draw_demo``. It measures nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks import autoscale, batcher, models, newcomer, tokens, vllm
from benchmarks.breakers.part import breakers_part
from benchmarks.harness import RESULTS, line
from benchmarks.headline_rows import part as headline
from benchmarks.instructions_part import cost_part, instructions_part
from benchmarks.loop import table
from benchmarks.overload import LAG_S
from benchmarks.overloaded import ROWS
from benchmarks.scaled import part as scaled
from benchmarks.shared.part import peers_part, redis_part

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
BATCHING = ROOT / "docs" / "batching.md"
BENCHMARKS = ROOT / "docs" / "benchmarks.md"
GATEWAY = ROOT / "docs" / "gateway.md"
GUARDS = ROOT / "docs" / "guards.md"
HEADLINE = ROOT / "docs" / "headline.md"
REDIS_SCALE = ROOT / "docs" / "redis-scale.md"
TOKENS = ROOT / "docs" / "token-limits.md"
VLLM = ROOT / "docs" / "vllm.md"
SCALING = ROOT / "docs" / "scaling.md"
LATENCY = ROOT / "docs" / "latency-and-leaks.md"
DEMO = ROOT / "docs" / "demo.txt"

PEERS = {
    "autoglm_throttle": ("autoglm-throttle", "ours", ""),
    "asgi-ratelimit": ("asgi-ratelimit", "ratelimit", ""),
    "limits-fixed": ("limits", "limits", ", fixed window"),
    "limits-moving": ("limits", "", ", moving window"),
    "slowapi": ("slowapi", "", ""),
}
"""Name in ``peers.json`` -> package, name in ``serve.json``, suffix of the version."""

OVERLOADED = ("2x", "5x")
"""Phases of the demonstration."""

LIMITERS = {
    "adaptive": "**adaptive**",
    "concurrency": "concurrency",
    "tiers": "tiers",
    "gradient": "gradient",
    "codel": "CoDel",
    "aimd": "AIMD",
    "none": "no limit",
}
"""Limiters of the closed loop, and the titles of their columns."""

DEMAND_ROWS = (
    ("half load, full batches: the GPU reads 99 %", "steady_0.5x_batchy", "goodput"),
    ("twice the capacity", "step_2x", "goodput"),
    ("five times", "step_5x", "goodput"),
    ("ten times", "step_10x", "goodput"),
    ("ten times, high priority alone", "step_10x", "high"),
    ("three times, memory for 30 requests", "oom_tight_3x", "goodput"),
)
"""Title, scenario and figure of a row."""

LOADED = 5.0
"""The load with detailed columns in the table of overload over HTTP."""

HEAD = (
    "| | added to an admitted request | a rejected request | memory of 100,000 users "
    "| capacity kept: FastAPI app | raw ASGI app |\n|---|---|---|---|---|---|\n"
)


def peers_table(peers: Mapping[str, Any], serve: Mapping[str, Any]) -> str:
    """Render a row for each library, and the machine and date of each benchmark."""
    rows = "".join(_row(name, peers, serve) for name in PEERS)
    return (
        f"{HEAD}{rows}\nFirst three columns, `benchmarks/peers.py`: {line(peers)}."
        f"\nLast two columns, server CPU per request under uvicorn, `benchmarks/serve.py`: {line(serve)}.\n"
    )


def _row(name: str, peers: Mapping[str, Any], serve: Mapping[str, Any]) -> str:
    package, served, what = PEERS[name]
    cells = [f"{package} {peers['versions'][package]}{what}"]
    cells += [_micros(peers[kind].get(name), name) for kind in ("added_us", "refused_us")]
    held = peers["memory_mb"].get(name)
    cells.append(f"{held:.0f} MB" if held else "-")
    for app in ("fastapi", "asgi"):
        kept = serve["capacity_kept"].get(f"{app}_{served}")
        cells.append(f"{kept:.0%}".replace("%", " %") if kept else "-")
    return f"| {' | '.join(cells)} |\n"


def _micros(cost: Mapping[str, float] | None, name: str) -> str:
    if cost is None:
        return "-"
    beside = "" if name == "autoglm_throttle" else f" (ours: {cost['ours_over_it']:.2f} of it)"
    return f"{cost['us']:.1f} µs{beside}"


def closed_loop_part(kept: Mapping[str, Any]) -> str:
    """Render goodput with a simulated service, a column for each limiter."""
    medians: table.Medians = kept["figures"]["medians"]
    limiters = [
        limiter for limiter in LIMITERS if any(limiter in by_limiter for by_limiter in medians.values())
    ]
    rows = [
        (title, [medians[scenario].get(name, {}).get(figure) for name in limiters])
        for title, scenario, figure in DEMAND_ROWS
    ]
    rows += [
        ("16 scenarios, geometric mean", [table.mean_of_16(medians, name) for name in limiters]),
        ("16 scenarios, the worst", [table.worst_of_16(medians, name, "goodput") for name in limiters]),
        (
            "16 scenarios, the worst for high",
            [table.worst_of_16(medians, limiter, "high") for limiter in limiters],
        ),
    ]
    head = _head("", *(LIMITERS[name] for name in limiters))
    shown = "".join(_cells(title, *(_ratio(value) for value in values)) for title, values in rows)
    tails = ((name.removeprefix("step_"), medians[name]["adaptive"]) for name in table.QUICK)
    sentence = " and ".join(
        f"{row['high_p99_s']:.2f} s at {load}, {row['high_p99_over']:.1f} times the oracle's"
        for load, row in tails
    )
    return (
        f"{head}{shown}\nUnder `adaptive` the 99th percentile of high is {sentence}."
        f"\n`benchmarks/closed_loop.py`, medians of {kept['figures']['seeds']} seeds: {line(kept)}.\n"
    )


def overload_part(kept: Mapping[str, Any]) -> str:
    """Render goodput over real HTTP, a row for each middleware."""
    loads = kept["scale"]["loads"]
    cases = {(case["row"], case["load"]): case for case in kept["rows"]}
    head = _head(
        "",
        *(f"{load:g}x" for load in loads),
        *(f"{what} at {LOADED:g}x" for what in ("high priority", "its p99", "p99 of rejections")),
    )
    rows = "".join(
        _cells(ROWS[name].title, *(_goodput(cases.get((name, load))) for load in loads), *_close(cases, name))
        for name in ROWS
        if any(row == name for row, _ in cases)
    )
    late = any("!" in _goodput(case) for case in cases.values())
    return (
        f"{head}{rows}\nCompletions within {kept['scale']['slo_s']:g} s as a share of this GPU's capacity,"
        f" {kept['capacity_rps']:.0f} requests/s."
        + (" !: the load generator was late, too." if late else "")
        + f"\n`benchmarks/overload.py`, {_rounds(kept['rounds'])}: {line(kept)}.\n"
    )


def _rounds(count: int) -> str:
    return "one round" if count == 1 else f"medians of {count} rounds"


def _goodput(case: Mapping[str, Any] | None) -> str:
    if case is None:
        return "-"
    return _ratio(case["goodput"]) + "!" * ((case["lag_p99_s"] or 0.0) > LAG_S)


def _close(cases: Mapping[tuple[str, float], Mapping[str, Any]], name: str) -> tuple[str, str, str]:
    case = cases.get((name, LOADED))
    if case is None:
        return ("-", "-", "-")
    return _ratio(case["in_time"]["high"]), _time(case["high_p99_s"]), _time(case["refusal_p99_s"])


def _ratio(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.2f}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:.0f} ms" if seconds < 1.0 else f"{seconds:.1f} s"


def _cells(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n"


def _head(*cells: str) -> str:
    return f"{_cells(*cells)}|{'---|' * len(cells)}\n"


def demo_part(kept: str) -> str:
    """Render the overload phases of a demonstration, its summary, and the share of high priority."""
    head, _, shown = kept.partition("\n\n")
    rows = "\n".join(row for row in shown.splitlines() if row.startswith(("phase ", *OVERLOADED)))
    shares = " and ".join(f"{share:.0f} % at {phase}" for phase, share in high_shares(kept).items())
    sentence = shown.strip().splitlines()[-1]
    return (
        f"```text\n{rows}\n```\n\n"
        f"> {sentence}\n\nServed of the high-priority requests within their user limits: {shares}.\n"
        f"([The complete table](demo.txt): {head}.)\n"
    )


def high_shares(kept: str) -> dict[str, float]:
    """Return, by phase, the percent of high-priority requests within user limits that were served."""
    rows = re.findall(r"^(2x|5x) +high +(\d+) +(\d+) +(\d+)", kept, re.MULTILINE)
    return {
        phase: 100 * int(admitted) / (int(sent) - int(limited)) for phase, sent, admitted, limited in rows
    }


MADE: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "closed_loop": closed_loop_part,
    "overload": overload_part,
    "redis": redis_part,
    "headline_hold": headline.summary_part,
    "instructions": instructions_part,
    "newcomer": newcomer.part,
}
"""Record -> function that renders its part of the benchmark page."""


def fill(text: str, name: str, content: str) -> str:
    """Put content between the marks of a part.

    Raises:
        ValueError: the text has no such part, or several.
    """
    pattern = rf"(<!-- {name}: [^>]*-->\n).*?(<!-- /{name} -->)"
    filled, times = re.subn(
        pattern, lambda at: f"{at[1]}\n{content.strip()}\n\n{at[2]}", text, flags=re.DOTALL
    )
    if times != 1:
        raise ValueError(f"{times} parts are named {name}")
    return filled


def parts() -> Iterator[tuple[str, str]]:
    """Generate the parts of the benchmark page: name and content."""
    kept = {name: json.loads((RESULTS / f"{name}.json").read_text()) for name in ("peers", "serve")}
    yield "figures", peers_table(kept["peers"], kept["serve"])
    if "redis" in kept["peers"]:
        yield "redis-peers", peers_part(kept["peers"], kept["serve"])
    yield "demo", demo_part(DEMO.read_text(encoding="utf-8"))
    for name, made in MADE.items():
        path = RESULTS / f"{name}.json"
        if path.exists():
            yield name.replace("_", "-"), made(json.loads(path.read_text()))


def guard_parts() -> Iterator[tuple[str, str]]:
    """Generate the parts of the guards page: name and content."""
    path = RESULTS / "breaker.json"
    if path.exists():
        yield "breakers", breakers_part(json.loads(path.read_text()))


def gateway_parts() -> Iterator[tuple[str, str]]:
    """Generate the parts of the gateway page: name and content."""
    path = RESULTS / "gateway.json"
    if path.exists():
        yield "gateway", gateway_part(json.loads(path.read_text()))


def token_parts() -> Iterator[tuple[str, str]]:
    """Generate the parts of the page of token limits: name and content."""
    path = RESULTS / "tokens.json"
    if path.exists():
        yield "tokens", tokens.tokens_part(json.loads(path.read_text()))


def redis_scale_parts() -> Iterator[tuple[str, str]]:
    """Generate the parts of the page about more than one Redis: name and content."""
    kept = json.loads((RESULTS / "redis_scale.json").read_text())
    yield "redis-server", scaled.server_part(kept)
    yield "redis-loads", scaled.load_part(kept)
    yield "redis-leases", scaled.lease_part(kept)
    shared = json.loads((RESULTS / "redis.json").read_text())
    yield "redis-partition", scaled.partition_part(kept, shared)


def gateway_part(kept: Mapping[str, Any]) -> str:
    """Render throughput and CPU of both proxies."""
    medians = kept["medians"]
    rows = "".join(
        _cells(
            title,
            f"{medians[f'{name} requests/s']:.0f}",
            f"{medians[f'{name} us/request'] / 1e3:.1f} ms",
            f"{medians[f'{name} events/s']:.0f}",
            f"{medians[f'{name} us/event']:.0f} µs",
        )
        for name, title in (("bare", "bare proxy of httpx and Starlette"), ("gateway", "gateway"))
    )
    head = _head("", "requests/s", "CPU of a request", "events/s", "CPU of an event")
    return (
        f"{head}{rows}\n{kept['connections']} connections with short requests; {kept['streams']} streams of "
        f"{kept['events']} events. After a client has left, the upstream sees it within "
        f"{kept['longest_left_ms']:.0f} ms."
        f"\n`benchmarks/gateway.py`, {_rounds(kept['rounds'])}: {line(kept)}.\n"
    )


HEADLINE_PARTS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "headline": headline.headline_part,
    "headline_hold": headline.hold_part,
}
"""Records of the headline page and the functions that render them."""


def headline_parts() -> Iterator[tuple[str, str]]:
    """Generate the parts of the headline page: name and content."""
    for name, made in HEADLINE_PARTS.items():
        path = RESULTS / f"{name}.json"
        if path.exists():
            yield name.replace("_", "-"), made(json.loads(path.read_text()))


def pages() -> dict[Path, dict[str, str]]:
    """Return file -> name of the part -> content between its marks."""
    kept = json.loads((RESULTS / "instructions.json").read_text())
    found = json.loads((RESULTS / "models.json").read_text())
    return {
        README: {"cost": cost_part(kept)},
        BATCHING: {"batcher": batcher.part(json.loads((RESULTS / "batcher.json").read_text()))},
        BENCHMARKS: dict(parts()),
        GATEWAY: dict(gateway_parts()),
        GUARDS: dict(guard_parts()),
        HEADLINE: dict(headline_parts()),
        LATENCY: {"latency-model": models.latency_part(found), "leaks": models.leak_part(found)},
        REDIS_SCALE: dict(redis_scale_parts()),
        SCALING: {"autoscale": autoscale.part(json.loads((RESULTS / "autoscale.json").read_text()))},
        TOKENS: dict(token_parts()),
        VLLM: {"vllm": vllm.part(json.loads((RESULTS / f"{vllm.NAME}.json").read_text()))},
    }


def main() -> None:
    """Update the pages."""
    for path, contents in pages().items():
        text = path.read_text(encoding="utf-8")
        for name, content in contents.items():
            text = fill(text, name, content)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
