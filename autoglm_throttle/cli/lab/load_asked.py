"""Arguments of ``load``: one value, or every problem at once."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Final

from autoglm_throttle.cli.lab import judging, requested, sending, watching
from autoglm_throttle.cli.lab.faults import Faults
from autoglm_throttle.cli.lab.judging import Judging
from autoglm_throttle.cli.lab.option import Option, add_options, command, hidden_query
from autoglm_throttle.cli.lab.requested import Drawn, above_zero
from autoglm_throttle.cli.lab.sending import Sending, cut_url, time_s
from autoglm_throttle.traffic.arrivals import (
    Arrivals,
    Crowd,
    Level,
    Shape,
    TraceShape,
    Users,
    parse_mix,
    parse_shape,
)
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.watch import Look

TRIAL_S: Final = 10.0
"""Length of each trial of a search: enough for queues to fill up; ten trials take two minutes."""

OFFERED: Final = (
    Option("--shape", "SHAPE", "how much, for how long; see below"),
    Option("--arrivals", "PROCESS", "uniform, poisson or gamma:K, K below 1 in bursts (default: uniform)"),
    Option("--mix", "SHARES", "percent of the priorities (default: high=10,mid=30,low=60)"),
    Option("--clients", "N", "different callers (default: 1); see --identity-header"),
    Option("--skew", "S", "Zipf exponent of the callers' shares; 0: all alike (default: 0)"),
    Option("--seed", "N", "of all draws (default: 0)"),
    Option("--speed", "X", "how many times faster a trace is played (default: 1)"),
    Option("--rate", "R", "the mean rate at which a trace is played, in requests/s"),
    Option(
        "--find-peak",
        "LOW:HIGH[:TIME]",
        "instead of a shape: search the greatest rate that holds --slo; a trial takes TIME "
        f"(default: {TRIAL_S:g}s)",
    ),
)

OPTIONS: Final = (
    *OFFERED,
    *requested.OPTIONS,
    *sending.FIELDS,
    *sending.EFFORT,
    *judging.OPTIONS,
    *watching.OPTIONS,
)


Offer = Shape | Users | TraceShape
"""Types of a parsed `--shape`."""

ONLY_SEGMENT: Final = "1"
"""Alias in objectives for the segment of a trial, since its name differs at each rate."""


@dataclass(frozen=True, slots=True)
class Search:
    """A search for the highest rate."""

    low_rps: float
    high_rps: float
    trial_s: float


UNREADABLE: Final = Search(1.0, 2.0, TRIAL_S)
"""Placeholder for an offer that could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Parsed arguments of ``load``."""

    offer: Offer | Search
    shape_text: str
    arrivals: Arrivals
    crowd: Crowd
    seed: int
    speed: float
    rate_rps: float | None
    drawn: Drawn
    path: str
    """Path of the URL; the target of a trace."""
    sending: Sending
    judging: Judging
    looks: tuple[Look, ...]
    command: str
    """In a form without secrets."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_options(parser, "what is offered", OFFERED)
    add_options(parser, "what is requested", requested.OPTIONS)
    add_options(parser, "where, and with which fields", sending.FIELDS)
    add_options(parser, "how it is sent", sending.EFFORT)
    add_options(parser, "how it is judged and told", judging.OPTIONS)
    add_options(parser, "what is watched meanwhile, once a second", watching.OPTIONS)


def read(args: argparse.Namespace, url: str) -> Asked:
    """Read a command line.

    Raises:
        UsageError: with every problem that is visible before anything is sent.
    """
    faults = Faults()
    place, path = cut_url(url)
    named = bool(args.route) or args.requests is not None
    drawn = requested.read(args, path, faults)
    shape = faults.read("--shape", parse_shape, args.shape, None)
    search = faults.read("--find-peak", _search, args.find_peak, None)
    crowd = _crowd(args, drawn, faults)
    asked = Asked(
        offer=shape or search or UNREADABLE,
        shape_text=args.shape or args.find_peak or "",
        arrivals=faults.read("--arrivals", Arrivals.parse, args.arrivals, Arrivals.UNIFORM),
        crowd=crowd,
        seed=faults.read("--seed", _seed, args.seed, 0),
        speed=faults.read("--speed", above_zero, args.speed, 1.0),
        rate_rps=faults.read("--rate", above_zero, args.rate, None),
        drawn=drawn,
        path=path,
        sending=sending.read(args, url, url if named else place, faults),
        judging=judging.read(args, faults),
        looks=watching.read(args, faults),
        command=command(["load", hidden_query(url)], OPTIONS, args),
    )
    _together(args, asked, faults)
    if search is not None:
        _searched(search, asked, faults)
    faults.end()
    return asked


def _crowd(args: argparse.Namespace, drawn: Drawn, faults: Faults) -> Crowd:
    usual = Crowd(kinds=drawn.shares)
    mix = faults.read("--mix", parse_mix, args.mix, dict(usual.mix))
    clients = faults.read(
        "--clients", lambda text: Crowd(clients=sending.whole(1)(text)).clients, args.clients, 1
    )
    skew = faults.read("--skew", lambda text: Crowd(skew=float(text)).skew, args.skew, 0.0)
    return Crowd(mix, clients, skew, drawn.shares)


def _seed(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise TrafficError(f"{text!r} is not a whole number") from None


def _search(text: str) -> Search:
    words = text.split(":")
    if not 2 <= len(words) <= 3:
        raise TrafficError(f"{text!r} is not LOW:HIGH[:TIME], such as 100:5000:10s")
    low_rps, high_rps = above_zero(words[0]), above_zero(words[1])
    if low_rps >= high_rps:
        raise TrafficError(f"{words[0]} is not below {words[1]}")
    return Search(low_rps, high_rps, time_s(words[2]) if len(words) == 3 else TRIAL_S)


def _together(args: argparse.Namespace, asked: Asked, faults: Faults) -> None:
    """Check options that are valid alone but not together."""
    searched, shaped = args.find_peak is not None, args.shape is not None
    # An unreadable shape may have been a trace: report no second problem about its options.
    unreadable = shaped and isinstance(asked.offer, Search)
    traced = isinstance(asked.offer, TraceShape) or unreadable
    aims = bool(asked.judging.objectives.terms) or args.slo is not None
    for holds, option, fault in (
        (not shaped and not searched, "--shape", "say how much, such as fixed:100:10s, or use --find-peak"),
        (shaped and searched, "--find-peak", "makes its own shapes: leave --shape out"),
        (searched and not aims, "--find-peak", "needs --slo: what the service must reach"),
        (args.speed is not None and not traced, "--speed", "is for trace:PATH alone"),
        (args.rate is not None and not traced, "--rate", "is for trace:PATH alone"),
        (args.speed is not None and args.rate is not None, "--rate", "sets the speed: leave --speed out"),
        (
            args.arrivals is not None and isinstance(asked.offer, Users | TraceShape),
            "--arrivals",
            "users come when their answers let them, and a trace has its own times: leave it out",
        ),
    ):
        if holds:
            faults.note(option, fault)


def _searched(search: Search, asked: Asked, faults: Faults) -> None:
    """Check for errors that would end every search at its first trial, or in the middle."""
    faults.make("--find-peak", lambda: Shape([Level(search.high_rps, search.trial_s)]), None)
    for term in asked.judging.objectives.terms:
        if term.segment not in (None, ONLY_SEGMENT):
            faults.note(
                "--slo", f"{term.text}: a trial of --find-peak has one segment: leave @{term.segment} out"
            )
        share = 1.0 if term.priority is None else asked.crowd.mix.get(term.priority, 0.0) / 100.0
        if term.unit == "rps" and ">" in term.operator and term.bound >= share * search.low_rps:
            faults.note(
                "--slo",
                f"{term.text}: fails at {search.low_rps:g}/s, where the search begins, however good the "
                "service: state ratios, such as done>0.99",
            )
