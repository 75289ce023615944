"""The figures of `benchmarks.gpu_closed_loop` for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.gpu.served import ROWS

NO_GPU = "STAND-IN: no GPU was measured, and nothing below is a figure of one"

HEAD = f"{'kernel':10}{'util %':>8}{'power W':>9}{'share':>7}{'SM':>7}{'tensor':>8}{'DRAM':>7}   judged"

_TITLES = ("goodput", "high", "p50", "p99", "refused", "told in", "util %", "power", "SM", "lag")
_ROW_HEAD = f"{'':38}" + "".join(f"{title:>9}" for title in _TITLES) + "   judged"


def kernel(told: Mapping[str, Any]) -> str:
    """One kernel: medians, and its two verdicts."""
    if "error" in told:
        return f"{told['kernel']:10}  {told['error']}"
    cells = (
        _number(told["utilization_pct"], ".0f", 8),
        _number(told["power_w"], ".0f", 9),
        _number(told["power_share"], ".2f", 7),
        _number(told["sm_active_ratio"], ".3f", 7),
        _number(told["tensor_active_ratio"], ".3f", 8),
        _number(told["dram_active_ratio"], ".3f", 7),
    )
    last = ", ".join(f"{name} {verdict['finding']}" for name, verdict in told["last"].items())
    return f"{told['kernel']:10}{''.join(cells)}   {last}"


def fitted(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The figures of the rules, and what was seen on both sides of each."""
    yield f"\n{'rule':16}{'figure':>8}{'below it':>10}{'above it':>10}"
    for one in found:
        sides = "".join(
            f"{'-' if side is None else f'{side:.3f}':>10}"
            for side in (one["highest_under"], one["lowest_over"])
        )
        word = {True: "fits", False: "DOES NOT FIT", None: "not known"}[one["fits"]]
        yield f"{one['rule']:16}{one['figure']:8.2f}{sides}   {word}"


def capacity(told: Mapping[str, Any]) -> str:
    """The closed loop."""
    steps = ", ".join(
        f"{step['rps']:.1f}/s with {step['inside']} inside ({_ms(step['p50_s'])})" for step in told["steps"]
    )
    return f"\ncapacity {told['rps']:.1f} requests/s: {steps}\n\n{_ROW_HEAD}"


def row(told: Mapping[str, Any]) -> str:
    """One row under one load."""
    title = f"{told['load']:>4g}x  {ROWS[told['row']][0]}"
    if "error" in told:
        return f"{title:38}  {told['error']}"
    card = told["card"]
    cells = (
        f"{told['goodput']:.3f}",
        f"{told['in_time']['high']:.3f}",
        _ms(told["all_p50_s"]),
        _ms(told["all_p99_s"]),
        f"{told['refused']:.3f}",
        _ms(told["refusal_p99_s"]),
    )
    shown = "".join(f"{cell:>9}" for cell in cells)
    shown += _number(card["utilization_pct"], ".0f", 9) + _number(card["power_share"], ".2f", 9)
    shown += _number(card["sm_active_ratio"], ".2f", 9) + f"{_ms(told['lag_p99_s']):>9}"
    return f"{title:38}{shown}   {_judged(card)}"


def whole(record: Mapping[str, Any]) -> Iterator[str]:
    """What was left out, for lack of time."""
    if record["left_out"]:
        yield "left out: " + ", ".join(f"{name} at {load:g}x" for name, load in record["left_out"])


def _judged(card: Mapping[str, Any]) -> str:
    found = card["verdicts"].get("witness", {})
    return ", ".join(f"{finding} {share:.0%}" for finding, share in found.items()) or "-"


def _number(spread: list[float] | None, form: str, width: int) -> str:
    return f"{'-' if spread is None else format(spread[1], form):>{width}}"


def _ms(time_s: float | None) -> str:
    return "-" if time_s is None else f"{1e3 * time_s:.0f} ms"
