"""The report page of a demonstration."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autoglm_throttle.traffic.report import Objectives, RunInfo, make
from autoglm_throttle.traffic.report.page import render
from autoglm_throttle.traffic.results import Result
from autoglm_throttle.types import Policy, Priority
from autoglm_throttle.version import __version__
from examples.demo.scenario import PRIORITY_MIX, SLO_S, Scenario, scale_of

PATH = Path("demo-report.html")
"""Default path, in the working directory."""

OBJECTIVES = "done>=100%,error<=0%"
"""Minimal guarantee of the throttle at any load: every request gets an answer, and none fails."""


def page_sample(state: dict[str, Any], t_s: float) -> dict[str, float]:
    """Convert a state of the throttle to a sample of the report, ``t_s`` after the first intended start."""
    sample = {"t_s": t_s, "factor_ratio": float(state["factor"])}
    if state["utilization_pct"] is not None:
        sample["gpu_utilization_ratio"] = state["utilization_pct"] / 100.0
    if state["power_w"] is not None:
        sample["gpu_power_w"] = float(state["power_w"])
    if state["concurrency"] is not None:
        sample["inflight"] = float(state["concurrency"]["in_flight"])
        sample["waiting"] = float(sum(state["concurrency"]["waiting"].values()))
    return sample


def page(
    scenario: Scenario, policy: Policy, result: Result, sentences: Sequence[str], problems: Sequence[str]
) -> str:
    """Render the page; the sentences are shown below the verdict."""
    run_info = RunInfo(
        title=f"Policy {policy}: {scenario.title}",
        shape=_shape(scenario),
        arrivals="uniform" if scenario.speed is None else "of the trace",
        mix=PRIORITY_MIX.mix,
        limits_s=dict.fromkeys(Priority, SLO_S / scale_of(scenario.speed)),
        objectives=Objectives.parse(OBJECTIVES),
        about={
            "library": __version__,
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
            "cores": os.cpu_count() or 1,
            "command": f"autoglm-throttle demo --policy {policy}",
        },
        caveats=tuple(problems),
    )
    return render(make(result, run_info), sentences)


def _shape(scenario: Scenario) -> str:
    plan = scenario.plan
    counts = [plan.segments.count(segment) for segment in range(len(plan.names))]
    begins_s = (0.0, *plan.ends_s)
    lengths_s = [end_s - begin_s for begin_s, end_s in zip(begins_s, plan.ends_s, strict=False)]
    return ", ".join(
        f"{name} {count / max(length_s, 1e-9):.0f}/s for {length_s:.3g} s"
        for name, count, length_s in zip(plan.names, counts, lengths_s, strict=True)
    )
