"""Builds the load to send from the arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from autoglm_throttle.cli.lab.load_asked import Asked, Offer
from autoglm_throttle.traffic.arrivals import Level, Shape, TraceShape, Users, plan, replay
from autoglm_throttle.traffic.generator import Roster
from autoglm_throttle.traffic.load import Load
from autoglm_throttle.traffic.replay import Cut, Manner, is_trace, of_trace, times_of
from autoglm_throttle.traffic.trace import load_azure_llm

TRACED: Final = "/v1/predict"
"""Target of a trace of token numbers if the URL names no path; the simulated service reads them there."""


def offered(asked: Asked, offer: Offer) -> Load | Roster:
    """Build the load.

    Raises:
        TrafficError: the file of a trace cannot be read or played, or an objective names another segment.
    """
    what = _offered(asked, offer)
    names = what.names if isinstance(what, Roster) else what.plan.names
    asked.judging.objectives.check(names)
    return what


def trial(asked: Asked, rate_rps: float, length_s: float) -> Load:
    """Build the load of one trial of a search."""
    made = plan(Shape([Level(rate_rps, length_s)]), asked.arrivals, asked.crowd, asked.seed)
    return Load(made, asked.drawn.requests)


def _offered(asked: Asked, offer: Offer) -> Load | Roster:
    if isinstance(offer, Users):
        return Roster(offer, asked.drawn.requests, asked.crowd, asked.seed)
    if isinstance(offer, TraceShape):
        return _traced(asked, Path(offer.path))
    return Load(plan(offer, asked.arrivals, asked.crowd, asked.seed), asked.drawn.requests)


def _traced(asked: Asked, path: Path) -> Load:
    """Build the load of a trace. Only traces of token numbers have own requests; other files give times."""
    cut = Cut(speed=asked.speed, rate_rps=asked.rate_rps)
    if is_trace(path):
        target = TRACED if asked.path == "/" else asked.path
        return of_trace(load_azure_llm(path), cut, Manner(crowd=asked.crowd, seed=asked.seed, target=target))
    made = replay(cut.offsets(times_of(path)), asked.crowd, seed=asked.seed)
    return Load(made, asked.drawn.requests)
