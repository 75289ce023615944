"""What a report needs to know beside the run itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autoglm_throttle.model import Priority
from autoglm_throttle.traffic.report.objectives import Objectives
from autoglm_throttle.traffic.report.schema import About, Judged

LIMITS_S: Mapping[Priority, float] = {Priority.HIGH: 0.5, Priority.MID: 1.0, Priority.LOW: 2.0}
"""Goodput counts answers within these. 500 ms is the bound of the headline experiment; 2 s is the bound
of the simulated service, at which a person begins to wait; the middle lies between. Decisions of this
project: state your own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """How the load was asked for, and by what it is judged."""

    title: str
    shape: str
    """As it was written."""
    arrivals: str = "uniform"
    seed: int = 0
    mix: Mapping[Priority, float] = field(default_factory=dict)
    """Percent by priority; a priority that is left out had none."""
    limits_s: Mapping[Priority, float] = field(default_factory=lambda: LIMITS_S)
    """Latency limits for goodput; a priority that is left out has none, so all it served is goodput."""
    objectives: Objectives = field(default_factory=Objectives)
    judged: tuple[Judged, ...] = ()
    """Further objectives that somebody else has judged, such as how alike a replay must be."""
    about: About = field(default_factory=About)
    doubts: tuple[str, ...] = ()
    """Further reasons to call the run not valid, such as a control that failed; one sentence each."""
    replay: dict[str, object] | None = None
    """A comparison of a recording with its replay."""
