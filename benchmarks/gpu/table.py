"""Text output of `benchmarks.gpu_closed_loop`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.gpu.served import ROWS

NO_GPU = "STAND-IN: no GPU was measured, and nothing below is a figure of one"

HEAD = f"{'kernel':10}{'util %':>8}{'power W':>9}{'share':>7}{'SM':>7}{'tensor':>8}{'DRAM':>7}   judged"

_TITLES = ("goodput", "high", "p50", "p99", "refused", "told in", "util %", "power", "SM", "lag")
_ROW_HEAD = f"{'':38}" + "".join(f"{title:>9}" for title in _TITLES) + "   judged"


def kernel(record: Mapping[str, Any]) -> str:
    """Render one kernel: medians, and its two verdicts."""
    if "error" in record:
        return f"{record['kernel']:10}  {record['error']}"
    cells = (
        _number(record["utilization_pct"], ".0f", 8),
        _number(record["power_w"], ".0f", 9),
        _number(record["power_share"], ".2f", 7),
        _number(record["sm_active_ratio"], ".3f", 7),
        _number(record["tensor_active_ratio"], ".3f", 8),
        _number(record["dram_active_ratio"], ".3f", 7),
    )
    last = ", ".join(f"{name} {verdict['finding']}" for name, verdict in record["last"].items())
    return f"{record['kernel']:10}{''.join(cells)}   {last}"


def fitted(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Render the thresholds of the rules, and the measured values on both sides of each."""
    yield f"\n{'rule':16}{'figure':>8}{'below it':>10}{'above it':>10}"
    for one in found:
        sides = "".join(
            f"{'-' if side is None else f'{side:.3f}':>10}"
            for side in (one["highest_under"], one["lowest_over"])
        )
        word = {True: "fits", False: "DOES NOT FIT", None: "not known"}[one["fits"]]
        yield f"{one['rule']:16}{one['figure']:8.2f}{sides}   {word}"


def capacity(record: Mapping[str, Any]) -> str:
    """Render the capacity of the closed loop."""
    steps = ", ".join(
        f"{step['rps']:.1f}/s with {step['inside']} inside ({_ms(step['p50_s'])})" for step in record["steps"]
    )
    return f"\ncapacity {record['rps']:.1f} requests/s: {steps}\n\n{_ROW_HEAD}"


def row(record: Mapping[str, Any]) -> str:
    """Render one row under one load."""
    title = f"{record['load']:>4g}x  {ROWS[record['row']][0]}"
    if "error" in record:
        return f"{title:38}  {record['error']}"
    device = record["card"]
    cells = (
        f"{record['goodput']:.3f}",
        f"{record['in_time']['high']:.3f}",
        _ms(record["all_p50_s"]),
        _ms(record["all_p99_s"]),
        f"{record['refused']:.3f}",
        _ms(record["refusal_p99_s"]),
    )
    shown = "".join(f"{cell:>9}" for cell in cells)
    shown += _number(device["utilization_pct"], ".0f", 9) + _number(device["power_share"], ".2f", 9)
    shown += _number(device["sm_active_ratio"], ".2f", 9) + f"{_ms(record['lag_p99_s']):>9}"
    return f"{title:38}{shown}   {_verdicts(device)}"


def whole(record: Mapping[str, Any]) -> Iterator[str]:
    """Render the cases that were skipped for lack of time."""
    if record["left_out"]:
        yield "left out: " + ", ".join(f"{name} at {load:g}x" for name, load in record["left_out"])


def _verdicts(device: Mapping[str, Any]) -> str:
    found = device["verdicts"].get("witness", {})
    return ", ".join(f"{finding} {share:.0%}" for finding, share in found.items()) or "-"


def _number(spread: list[float] | None, form: str, width: int) -> str:
    return f"{'-' if spread is None else format(spread[1], form):>{width}}"


def _ms(time_s: float | None) -> str:
    return "-" if time_s is None else f"{1e3 * time_s:.0f} ms"
