"""A record of a run of benchmarks.breaker, in which every bar is met."""

from __future__ import annotations

from typing import Any

from benchmarks.breakers.candidates import CANDIDATES, Ours
from benchmarks.breakers.cost import FORMS, VARIANTS
from benchmarks.breakers.fleet import SHARED_BREAKERS

NAMES = [kind.name for kind in CANDIDATES]
MACHINE = {
    "date": "2026-01-02",
    "processor": "a processor",
    "cores": 2,
    "python": "3.11.7",
    "versions": {kind.package: f"{number}.0" for number, kind in enumerate(CANDIDATES)},
}


def costs() -> dict[str, Any]:
    """Build costs: ours adds 200 ns, the others 924, twice the reference of the bounds."""
    usual = {name: {"ns": 924.0, "ours_over_it": 0.1} for name in NAMES}
    usual[Ours.name] = {"ns": 200.4, "ours_over_it": 1.0}
    found: dict[str, Any] = {
        form: {"bare_ns": 60.0, "spread": 1.1, "rows": {name: dict(row) for name, row in usual.items()}}
        for form in FORMS
    }
    found["coroutine"]["rows"] |= {name: {"ns": 300.0, "ours_over_it": 0.7} for name in VARIANTS}
    del found["block"]["rows"]["circuitbreaker"], found["told"]["rows"]["purgatory"]
    return found


def shared_row(lost_errors: float = 0.0, commands: float = 0.0) -> dict[str, Any]:
    """One breaker over Redis."""
    figures = {"us": 0.3, "wall_us": 0.34, "over_local": 1.0, "lost_us": 0.3, "lost_over_it": 1.0}
    return {**figures, "lost_wall_us": 0.41, "errors": 0, "commands": commands, "lost_errors": lost_errors}


def record() -> dict[str, Any]:
    """Build the record of a whole run."""
    one = {"least": 1, "most": 1, "of": 100}
    races = {name: {"tasks": {**one, "most": 1000}, "threads": dict(one)} for name in NAMES}
    races[Ours.name] = {"tasks": dict(one), "threads": dict(one), "processes": dict(one)}
    opening = {"median_ms": 1.24, "max_ms": 9.06, "of": 20}
    rows = {name: shared_row() for name in SHARED_BREAKERS} | {"purgatory": shared_row(1.0, 2.0)}
    return {
        **MACHINE,
        "rounds": 21,
        "cost": costs(),
        "shared": {"server": "valkey-9.1.2", "spread": 1.1, "rows": rows},
        "opening": {"idle": opening, "busy": dict(opening), "cold": {**opening, "refused": 20}},
        "half_open": races,
        "threads": {"bare": 0.1, **dict.fromkeys(NAMES, 0.101)},
    }
