"""Builds the load to send from the arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from autoglm_throttle.cli.lab.load_asked import LoadArguments, Offer
from autoglm_throttle.traffic.arrivals import Level, Shape, TraceShape, Users, plan, replay
from autoglm_throttle.traffic.generator import Roster
from autoglm_throttle.traffic.load import Load
from autoglm_throttle.traffic.replay import Cut, Manner, is_trace, of_trace, times_of
from autoglm_throttle.traffic.trace import load_azure_llm

TRACE_TARGET: Final = "/v1/predict"
"""Target of a trace of token numbers if the URL names no path; the simulated service reads them there."""


def build_load(arguments: LoadArguments, offer: Offer) -> Load | Roster:
    """Build the load.

    Raises:
        TrafficError: the file of a trace cannot be read or played, or an objective names another segment.
    """
    load = _build_load(arguments, offer)
    names = load.names if isinstance(load, Roster) else load.plan.names
    arguments.report_options.objectives.check(names)
    return load


def trial_load(arguments: LoadArguments, rate_rps: float, length_s: float) -> Load:
    """Build the load of one trial of a search."""
    made = plan(
        Shape([Level(rate_rps, length_s)]), arguments.arrivals, arguments.priority_mix, arguments.seed
    )
    return Load(made, arguments.weighted_requests.requests)


def _build_load(arguments: LoadArguments, offer: Offer) -> Load | Roster:
    if isinstance(offer, Users):
        return Roster(offer, arguments.weighted_requests.requests, arguments.priority_mix, arguments.seed)
    if isinstance(offer, TraceShape):
        return _trace_load(arguments, Path(offer.path))
    return Load(
        plan(offer, arguments.arrivals, arguments.priority_mix, arguments.seed),
        arguments.weighted_requests.requests,
    )


def _trace_load(arguments: LoadArguments, path: Path) -> Load:
    """Build the load of a trace. Only traces of token numbers have own requests; other files give times."""
    selection = Cut(speed=arguments.speed, rate_rps=arguments.rate_rps)
    if is_trace(path):
        target = TRACE_TARGET if arguments.path == "/" else arguments.path
        return of_trace(
            load_azure_llm(path),
            selection,
            Manner(crowd=arguments.priority_mix, seed=arguments.seed, target=target),
        )
    made = replay(selection.offsets(times_of(path)), arguments.priority_mix, seed=arguments.seed)
    return Load(made, arguments.weighted_requests.requests)
