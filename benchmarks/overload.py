"""Overload over real HTTP: goodput of a service at 1, 2, 5 and 10 times its capacity.

Run: ``python -m benchmarks.overload``, about ten minutes for each round. Each row is a uvicorn process of its
own with the simulated service, behind the throttle, behind a peer with the right limit set by hand, or alone.
Clients are open loop, 10/30/60 % of high, mid and low priority, and leave at the objective of 2 s. Goodput is
completions within the objective per second, over what the GPU can do of that load: its capacity, measured
closed loop in the same run, or all of the load where that is less. The last rows are controls: the same load
with a GPU that takes no time shows what the server, the middleware and the client can do.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from autoglm_throttle.traffic.generator import ClientOptions, OpenLoopSender, TargetUrl
from autoglm_throttle.traffic.generator.connection_pool import max_connections
from autoglm_throttle.traffic.histogram import Histogram
from autoglm_throttle.traffic.plan import Arrivals, LoadPlan, LoadShape, PriorityMix, make_plan
from autoglm_throttle.traffic.request_source import RequestSource
from autoglm_throttle.traffic.results import Result
from autoglm_throttle.types import Priority
from benchmarks import harness
from benchmarks.goodput import GoodputObserver
from benchmarks.overloaded import CONNECTIONS, CPU_PATH, ROWS
from examples.demo.process import DemoProcess

SERVER = "benchmarks.overloaded"
CONTROLS = tuple(name for name, row in ROWS.items() if row.instant)
OPENED = 16
"""Connections before the start. More are opened as needed; the limit of uvicorn counts idle ones, too."""

INSIDE = 64
"""Requests in flight while the capacity is measured: four batches, so the GPU never waits."""

OFFERED_MULTIPLE = 3.0
"""Offered multiple of the nominal capacity meanwhile; requests above INSIDE are not sent."""

REPLY_S = 10.0
"""Longest wait for the CPU time: the limit of uvicorn rejects this request, too, until connections close."""

LAG_S = 0.010
"""Largest 99th percentile of the lag of a generator that is not overloaded (the rule of the load tests)."""


@dataclass(frozen=True)
class Scale:
    """Sizes and durations of a run."""

    capacity_rps: float = 100.0
    """Nominal capacity: a tenth of the load that uvicorn and the generator carry easily on two cores."""
    slo_s: float = 2.0
    warm_s: float = 5.0
    window_s: float = 12.0
    loads: tuple[float, ...] = (1.0, 2.0, 5.0, 10.0)
    """Loads as multiples of the capacity."""
    rows: tuple[str, ...] = tuple(name for name in ROWS if name not in CONTROLS)

    @property
    def seconds(self) -> float:
        """Return the seconds of each run."""
        return self.warm_s + self.window_s

    def plan(self, load: float, seed: int) -> LoadPlan:
        """Build the requests of a run."""
        shape = LoadShape.parse(f"fixed:{load * self.capacity_rps}:{self.seconds}")
        return make_plan(shape, Arrivals.POISSON, PriorityMix(), seed)

    def cases(self) -> list[tuple[str, float]]:
        """Return every row and load, the controls at the highest load only."""
        cases = [(row, load) for load in self.loads for row in self.rows]
        return cases + [(control, self.loads[-1]) for control in CONTROLS]


QUICK = Scale(
    slo_s=1.0, warm_s=1.0, window_s=2.0, loads=(5.0,), rows=("none", "adaptive"), capacity_rps=100.0
)
"""A functional check without meaningful figures."""


@dataclass(frozen=True)
class Run:
    """One row under one load."""

    observed: GoodputObserver
    result: Result
    server_cpu: float
    """Share of a core."""
    client_cpu: float
    """Share of a core."""


async def drive(child: DemoProcess, made: LoadPlan, observed: GoodputObserver, options: ClientOptions) -> Run:
    """Send a plan to a service."""
    generator = OpenLoopSender(RequestSource(made), TargetUrl(port=child.port), options, observed.note)
    server_s, client_s, began_s = await _cpu_s(child), time.process_time(), time.monotonic()
    result = await generator.run()
    elapsed_s = time.monotonic() - began_s
    server_s, client_s = await _cpu_s(child) - server_s, time.process_time() - client_s
    return Run(observed, result, server_s / elapsed_s, client_s / elapsed_s)


async def _cpu_s(child: DemoProcess) -> float:
    give_up_s = time.monotonic() + REPLY_S
    while (reply := await child.request(CPU_PATH)) is None:
        if time.monotonic() > give_up_s:
            raise RuntimeError("the server does not tell its CPU time")
        await asyncio.sleep(0.05)
    return float(reply["cpu_s"])


def run(row: str, load: float, scale: Scale, seed: int) -> Run:
    """Run a row under a load, from the start of its server to its end."""
    options = ClientOptions(
        connections=OPENED,
        more_connections=min(CONNECTIONS, max_connections()) - OPENED,
        timeout_s=scale.slo_s,
        drain_s=scale.slo_s + 1.0,
    )
    made = scale.plan(load, seed)
    return _served(row, scale, made, GoodputObserver(made, scale.slo_s, scale.warm_s, scale.seconds), options)


def capacity_rps(scale: Scale) -> float:
    """Measure the completions per second of a saturated GPU."""
    made = scale.plan(OFFERED_MULTIPLE, 0)
    observed = GoodputObserver(made, scale.seconds, scale.warm_s, scale.seconds)
    _served("none", scale, made, observed, ClientOptions(connections=INSIDE, max_inflight=INSIDE))
    return observed.completed_rps()


def _served(row: str, scale: Scale, load: LoadPlan, observed: GoodputObserver, options: ClientOptions) -> Run:
    service_options = {"row": row, "capacity_rps": scale.capacity_rps, "slo_s": scale.slo_s}
    with DemoProcess(SERVER, service_options) as child:
        return asyncio.run(drive(child, load, observed, options))


def figures(done: Run, capacity: float, *, instant: bool) -> dict[str, Any]:
    """Compute the figures of a run; shares have the maximum 1, times are in seconds."""
    observed = done.observed
    offered_rps = observed.offered_rps()
    possible_rps = offered_rps if instant else min(offered_rps, capacity)
    high = observed.classes[Priority.HIGH]
    planned = sum(counts.planned for counts in observed.classes.values())
    return {
        "goodput": observed.completed_rps() / possible_rps,
        "in_time": {
            p.label: counts.in_time / max(1, counts.planned) for p, counts in observed.classes.items()
        },
        "completed_rps": {p.label: observed.completed_rps(p) for p in Priority},
        "high_p50_s": high.response.percentile(0.5),
        "high_p99_s": high.response.percentile(0.99),
        "refused": sum(counts.rejected for counts in observed.classes.values()) / planned,
        "refusal_p50_s": observed.rejection.percentile(0.5),
        "refusal_p99_s": observed.rejection.percentile(0.99),
        "server_cpu": done.server_cpu,
        "client_cpu": done.client_cpu,
        "lag_p99_s": _lag(done.result).percentile(0.99),
        "reasons": dict(done.result.total().reasons.most_common()),
    }


def _lag(result: Result) -> Histogram:
    lag = Histogram()
    for late_s in result.request_log.lag_s:
        if not math.isnan(late_s):
            lag.record(late_s)
    return lag


def middle(several: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the median of each figure over the rounds that have it."""
    merged: dict[str, Any] = {}
    for name, first in several[0].items():
        values = [one[name] for one in several]
        if name == "reasons":
            continue
        if isinstance(first, dict):
            merged[name] = middle(values)
        else:
            known = [value for value in values if value is not None]
            merged[name] = statistics.median(known) if known else None
    return merged


def measure(scale: Scale, rounds: int) -> dict[str, Any]:
    """Measure every row at every load once in each round; only arrivals differ between rounds."""
    seen: dict[tuple[str, float], list[dict[str, Any]]] = {case: [] for case in scale.cases()}
    capacities = []
    for number in range(rounds):
        capacities.append(capacity_rps(scale))
        for row, load in scale.cases():
            done = run(row, load, scale, seed=number + 1)
            seen[row, load].append(figures(done, capacities[-1], instant=ROWS[row].instant))
    return {
        **harness.machine("uvicorn", "uvloop", "limits", "asgi-ratelimit"),
        "rounds": rounds,
        "scale": asdict(scale),
        "capacity_rps": statistics.median(capacities),
        "rows": [{"row": row, "load": load, **middle(each)} for (row, load), each in seen.items()],
        "all": [{"row": row, "load": load, "rounds": each} for (row, load), each in seen.items()],
    }


HEADINGS = (
    *("", "goodput", "high", "mid", "low", "high p50", "high p99", "refused", "told in", "CPU", "client"),
)


def table(result: dict[str, Any]) -> list[str]:
    """Render the result."""
    lines, last = [], None
    slo_s = result["scale"]["slo_s"]
    for row in result["rows"]:
        if row["load"] != last and row["row"] not in CONTROLS:
            last = row["load"]
            rate_rps = last * result["scale"]["capacity_rps"]
            lines += ["", _line((f"load {last:g}x, {rate_rps:g} requests/s", *HEADINGS[1:]))]
        elif row["row"] == CONTROLS[0]:
            lines += ["", _line((f"controls at {row['load']:g}x", *HEADINGS[1:]))]
        lines.append(_line(_cells(row)))
    return [
        *lines[1:],
        "",
        f"goodput: completions within {slo_s:g} s, of what the GPU can do; it does"
        f" {result['capacity_rps']:.1f} requests/s, measured closed loop.",
        "high, mid, low: share of the class answered in time. told in: 99th percentile of refusals.",
        "CPU, client: share of a core that the server, and the clients, took.",
    ]


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    late = "!" if (row["lag_p99_s"] or 0.0) > LAG_S else ""
    shares = (row["goodput"], *row["in_time"].values())
    times = (row["high_p50_s"], row["high_p99_s"])
    return (
        ROWS[row["row"]].title + late,
        *(f"{share:.3f}" for share in shares),
        *(_ms(time_s) for time_s in times),
        f"{row['refused']:.3f}",
        _ms(row["refusal_p99_s"]),
        *(f"{row[name]:.0%}" for name in ("server_cpu", "client_cpu")),
    )


def _ms(time_s: float | None) -> str:
    return "-" if time_s is None else f"{1e3 * time_s:.0f} ms"


def _line(cells: Sequence[str]) -> str:
    return f"{cells[0]:32}" + "".join(f"{cell:>9}" for cell in cells[1:])


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print and write the record."""
    logging.getLogger("autoglm_throttle").addHandler(logging.NullHandler())
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of all rows (default 3)")
    parser.add_argument("--rows", nargs="+", choices=list(Scale.rows), help="only these, and the controls")
    parser.add_argument(
        "--quick", action="store_true", help="seconds instead of minutes, and no figures to keep"
    )
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results")
    options = parser.parse_args(argv)
    if options.quick and options.write:
        parser.error("--quick gives no figures to keep")
    scale = QUICK if options.quick else Scale()
    if options.rows:
        scale = replace(scale, rows=tuple(options.rows))
    result = measure(scale, 1 if options.quick else options.rounds)
    print("\n".join(table(result)))
    print(harness.line(result))
    if options.write:
        harness.keep("overload", result)


if __name__ == "__main__":
    main()
