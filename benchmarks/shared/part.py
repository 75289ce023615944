"""Sections of the benchmark page about limits on Redis, made from the kept records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.harness import line
from benchmarks.shared.bars import TUNED
from benchmarks.shared.rows import TITLES

SHOWN = (
    "store",
    "throttle",
    "moving",
    *TUNED,
    "fixed-blocking",
    "throttled",
    "asgi-ratelimit",
    "each",
    "floor",
    "floor-batch",
)
"""Rows of the benchmark that the page shows."""

DEPTHS = ("1", "64", "512")
FULL = "64"
"""Number of tasks of the columns beside the decisions."""

PEERS = ("autoglm_throttle", "asgi-ratelimit", "limits-fixed", "limits-moving", "slowapi")


def redis_part(kept: Mapping[str, Any]) -> str:
    """Render decisions per second and their cost for the server, then a sentence for each other figure."""
    table = kept["decisions"]
    rows = "".join(_row(name, table) for name in SHOWN if name in table[FULL]["rows"])
    names = ("decisions/s, one process", *(f"{d} task{'s' * (d != '1')}" for d in DEPTHS))
    columns = (*names, f"p99 at {DEPTHS[-1]}", "round trips each", "connections", "Redis CPU each")
    text = "".join(f"- {sentence}\n" for sentence in _sentences(kept))
    return (
        f"{_cells(*columns)}|{'---|' * len(columns)}\n{rows}"
        f"\nThe last three columns are at {FULL} tasks. !: with errors, not counted as decisions.\n\n{text}"
        f"\n`benchmarks/redis.py`, {kept['server']}, medians of {kept['rounds']} rounds, "
        f"client and server on the same processors: {line(kept)}.\n"
    )


def _row(name: str, table: Mapping[str, Any]) -> str:
    rows = [table[depth]["rows"][name] for depth in DEPTHS]
    full = table[FULL]["rows"][name]
    return _cells(
        TITLES[name],
        *(f"{row['per_s']:,.0f}" + "!" * bool(row["errors"]) for row in rows),
        f"{rows[-1]['p99_ms']:.1f} ms",
        f"{full['round_trips']:.2f}",
        f"{full['connections']}",
        f"{full['server_us']:.1f} µs",
    )


def _sentences(kept: Mapping[str, Any]) -> Iterator[str]:
    loop, peers = kept["open_loop"], [kept["open_loop"][name] for name in TUNED]
    peer = min(peers, key=lambda one: float(one["p99_ms"]))
    yield (
        f"5,000 arrivals a second: half are decided within {loop['throttle']['p50_ms']:.1f} ms, "
        f"99 % within {loop['throttle']['p99_ms']:.1f} ms; by `limits` within {peer['p50_ms']:.1f} and "
        f"{peer['p99_ms']:.1f} ms (control without decisions: {loop['control']['p99_ms']:.1f} ms)."
    )
    windows = kept["exactness"]["worst_window"]
    yield (
        f"Units admitted in the worst window, relative to the limit: {windows['store']:.2f}, compact "
        f"{windows['store-compact']:.2f}; `limits` moving {windows['moving-raised']:.2f}, sliding counter "
        f"{windows['counter']:.2f}, fixed {windows['fixed-raised']:.2f}."
    )
    held = kept["memory"]
    yield (
        f"Memory of a user at a limit of 100: {held['store']:,.0f} bytes, "
        f"`limits` moving {held['moving']:,.0f}; at 10,000: {held['store-compact']:,.0f}, "
        f"at 1,000,000: {held['store-compact-million']:,.0f}."
    )
    attack = kept["attack"]
    yield (
        f"With nine of ten decisions for users over their limit, Redis receives "
        f"{_percent(attack['with']['asked_of_refused'])} of those; "
        f"the deny cache makes {attack['speedup']:.1f} times the decisions possible."
    )
    frozen = kept["failure"]["frozen"]
    yield (
        f"Redis frozen: the first decision takes {frozen['first_ms']:.0f} ms, each after the third at most "
        f"{frozen['after_third_ms']:.2f} ms; checks resume {frozen['recovery_s']:.1f} s after it is back."
    )


def peers_part(peers: Mapping[str, Any], serve: Mapping[str, Any]) -> str:
    """Render whole requests: a row for each library, as in memory."""
    shared = peers["redis"]
    columns = (f"limits on Redis, {shared['tasks']} tasks", "requests/s", "ours over it", "errors")
    rows = "".join(
        _cells(
            name,
            f"{shared['rows'][name]['rps']:,.0f}",
            f"{shared['rows'][name]['ours_over_it']:.1f}",
            f"{sum(shared['rows'][name]['errors'].values()):,}",
        )
        for name in PEERS
    )
    kept = serve["capacity_kept"]
    return (
        f"{_cells(*columns)}|{'---|' * len(columns)}\n{rows}"
        f"\nCapacity kept under uvicorn: FastAPI app {_percent(kept['fastapi_redis'])} "
        f"(`limits` {_percent(kept['fastapi_redislimits'])}), raw ASGI app {_percent(kept['asgi_redis'])} "
        f"({_percent(kept['asgi_redislimits'])}).\n"
        f"`benchmarks/peers.py`, {shared['server']}: {line(peers)}.\n`benchmarks/serve.py`: {line(serve)}.\n"
    )


def _percent(share: float) -> str:
    return f"{share * 100:.2g} %" if share < 0.1 else f"{share * 100:.0f} %"


def _cells(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n"
