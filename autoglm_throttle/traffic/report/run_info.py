"""Inputs of a report besides the run itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autoglm_throttle.traffic.report.objectives import Objectives
from autoglm_throttle.traffic.report.schema import About, ObjectiveResult
from autoglm_throttle.types import Priority

LIMITS_S: Mapping[Priority, float] = {Priority.HIGH: 0.5, Priority.MID: 1.0, Priority.LOW: 2.0}
"""Latency limits for goodput, seconds by priority.

500 ms is the bound of the headline experiment; 2 s is the bound of the simulated service, at which a person
begins to wait; the middle lies between. Decisions of this project: state your own.
"""


@dataclass(frozen=True, slots=True)
class ReplayInfo:
    """Results that only a replay has."""

    comparison: dict[str, object] | None = None
    """Comparison of the recording with its replay; None: there is none."""
    objectives: tuple[ObjectiveResult, ...] = ()
    """Results of further objectives, such as the similarity to the recording."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """Title, load parameters and objectives of a run."""

    title: str
    shape: str
    """Shape of the load, as the user wrote it."""
    arrivals: str = "uniform"
    seed: int = 0
    mix: Mapping[Priority, float] = field(default_factory=dict)
    """Percent by priority; a missing priority has none."""
    limits_s: Mapping[Priority, float] = field(default_factory=lambda: LIMITS_S)
    """Latency limits for goodput; without a limit all served requests of a priority are goodput."""
    objectives: Objectives = field(default_factory=Objectives)
    about: About = field(default_factory=About)
    caveats: tuple[str, ...] = ()
    """Further reasons why the run is not valid, such as a failed control; one sentence each."""
    replay: ReplayInfo = field(default_factory=ReplayInfo)
    """Results of a replay; empty for any other run."""
