"""The section of the live page about the latency model, with its heat maps, and about leaks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from autoglm_throttle.observe.latency_model import CELLS, HeatCell, ResourceEffect, Silence
from autoglm_throttle.observe.metric import MetricsInput
from autoglm_throttle.observe.page.text import (
    NOT_KNOWN,
    SHADES,
    Pairs,
    Section,
    Table,
    duration,
    number,
    percent,
    section,
    table,
)
from autoglm_throttle.observe.series import History

RESOURCES: Final = {
    "gpu": "GPU utilization",
    "gpu_memory": "GPU memory",
    "cpu": "cores",
    "iowait": "waiting for disks",
    "queue": "share of requests that wait",
}
SILENCES: Final = {
    Silence.NOT_MEASURED: "it is not measured",
    Silence.TOO_FEW_STEPS: "too few steps with requests so far",
    Silence.DID_NOT_MOVE: "it did not move",
    Silence.MOVED_TOGETHER: "it moved together with {}",
    Silence.WIDE_INTERVAL: "the interval is too wide, or there is no effect",
}


def latency_section(inputs: MetricsInput, _: History) -> Section | None:
    """Describe the models: effects of resources, a heat map for each two of them, and leaks."""
    models = inputs.models
    if models is None:
        return None
    pairs: Pairs = [
        ("steps of 5 s", number(models.latency.steps)),
        ("share of latency that resources explain", percent(models.latency.explained)),
    ]
    effects = [
        (RESOURCES[one.resource], _signed(one.seconds), _interval(one), _reason(one))
        for one in models.latency.effects
    ]
    leaks = [
        (
            one.what,
            number(one.bytes_per_hour, "MB/h", 1e-6),
            _leak(one.bytes_per_hour),
            number(one.full_in_h, "h"),
        )
        for one in models.leaks
    ]
    tables = [
        table(
            "Change of the mean latency with ten points more of a resource",
            "resource|change|95 % interval|known",
            effects,
        ),
        *(_heat(*axes, cells) for axes, cells in models.maps.items() if cells),
        table("Memory that load does not explain, of the last hour", "memory|growth|leak|full in", leaks),
    ]
    return section("latency", "Latency and leaks", pairs, tables)


def _signed(seconds: float | None) -> str:
    return NOT_KNOWN if seconds is None else f"{'−' if seconds < 0 else '+'}{duration(abs(seconds))}"


def _interval(effect: ResourceEffect) -> str | None:
    known = effect.low_s is not None and effect.high_s is not None
    return f"{_signed(effect.low_s)} to {_signed(effect.high_s)}" if known else None


def _reason(effect: ResourceEffect) -> str:
    if effect.silence is None:
        return "yes"
    other = RESOURCES.get(effect.moves_with or "", "another resource")
    return f"no: {SILENCES[effect.silence].format(other)}"


def _leak(bytes_per_hour: float | None) -> str:
    if bytes_per_hour is None:
        return "not known in the first 45 minutes"
    return "yes" if bytes_per_hour else "none found"


def _heat(across: str, down: str, cells: Iterable[HeatCell]) -> Table:
    """Make a heat map: the median latency by two shares, shaded by its rank among all cells."""
    found = {(one.x, one.y): one for one in cells}
    medians = sorted({one.median_s for one in found.values()})
    last = max(1, len(medians) - 1)
    rows, shades = list[list[str]](), list[list[int]]()
    for y in reversed(range(CELLS)):
        row = [found.get((x, y)) for x in range(CELLS)]
        rows.append([f"{10 * y} %", *("" if one is None else duration(one.median_s) for one in row)])
        places = (None if one is None else medians.index(one.median_s) for one in row)
        ranks = (0 if place is None else 1 + round((SHADES - 1) * place / last) for place in places)
        shades.append([0, *ranks])
    return {
        "caption": f"Median latency by {RESOURCES[across]} (across) and {RESOURCES[down]} (down)",
        "head": [RESOURCES[down], *(f"{10 * x} %" for x in range(CELLS))],
        "rows": rows,
        "shades": shades,
    }
