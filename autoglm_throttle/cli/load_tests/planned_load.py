"""Builds the load to send from the arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from autoglm_throttle.cli.load_tests.load_arguments import LoadArguments, Offer
from autoglm_throttle.traffic.generator import UserSchedule
from autoglm_throttle.traffic.plan import (
    LoadLevel,
    LoadShape,
    TraceShape,
    Users,
    make_plan,
    make_replay_plan,
)
from autoglm_throttle.traffic.replay import ReplayOptions, Selection, is_trace, of_trace, times_of
from autoglm_throttle.traffic.request_source import RequestSource
from autoglm_throttle.traffic.trace import load_azure_llm

TRACE_TARGET: Final = "/v1/predict"
"""Target of a trace of token numbers if the URL names no path; the simulated service reads them there."""


def build_load(arguments: LoadArguments, offer: Offer) -> RequestSource | UserSchedule:
    """Build the load.

    Raises:
        TrafficError: the file of a trace cannot be read or played, or an objective names another segment.
    """
    load = _build_load(arguments, offer)
    names = load.names if isinstance(load, UserSchedule) else load.plan.names
    arguments.report_options.objectives.check(names)
    return load


def trial_load(arguments: LoadArguments, rate_rps: float, length_s: float) -> RequestSource:
    """Build the load of one trial of a search."""
    load, shape = arguments.load, LoadShape([LoadLevel(rate_rps, length_s)])
    made = make_plan(shape, load.arrivals, load.priority_mix, load.seed)
    return RequestSource(made, arguments.weighted_requests.requests)


def _build_load(arguments: LoadArguments, offer: Offer) -> RequestSource | UserSchedule:
    load = arguments.load
    if isinstance(offer, Users):
        return UserSchedule(offer, arguments.weighted_requests.requests, load.priority_mix, load.seed)
    if isinstance(offer, TraceShape):
        return _trace_load(arguments, Path(offer.path))
    return RequestSource(
        make_plan(offer, load.arrivals, load.priority_mix, load.seed),
        arguments.weighted_requests.requests,
    )


def _trace_load(arguments: LoadArguments, path: Path) -> RequestSource:
    """Build the load of a trace. Only traces of token numbers have own requests; other files give times."""
    load = arguments.load
    selection = Selection(speed=load.speed, rate_rps=load.rate_rps)
    if is_trace(path):
        target = TRACE_TARGET if arguments.path == "/" else arguments.path
        return of_trace(
            load_azure_llm(path),
            selection,
            ReplayOptions(mix=load.priority_mix, seed=load.seed, target=target),
        )
    made = make_replay_plan(selection.offsets(times_of(path)), load.priority_mix, seed=load.seed)
    return RequestSource(made, arguments.weighted_requests.requests)
