"""Arguments of ``load``: one value, or every problem at once."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Final

from autoglm_throttle.cli.load_tests import probe_options, report_options, request_options, send_options
from autoglm_throttle.cli.load_tests.option import Option, add_options, command, hidden_query
from autoglm_throttle.cli.load_tests.problems import ProblemList
from autoglm_throttle.cli.load_tests.report_options import ReportOptions
from autoglm_throttle.cli.load_tests.request_options import WeightedRequests, above_zero
from autoglm_throttle.cli.load_tests.send_options import SendOptions, split_url, time_s
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.plan import (
    Arrivals,
    LoadLevel,
    LoadShape,
    PriorityMix,
    TraceShape,
    Users,
    parse_mix,
    parse_shape,
)
from autoglm_throttle.traffic.probes import Probe

TRIAL_S: Final = 10.0
"""Length of each trial of a search: enough for queues to fill up; ten trials take two minutes."""

LOAD_OPTIONS: Final = (
    Option("--shape", "SHAPE", "rate and duration; see below"),
    Option("--arrivals", "PROCESS", "uniform, poisson or gamma:K, K below 1 in bursts (default: uniform)"),
    Option("--mix", "SHARES", "percent of the priorities (default: high=10,mid=30,low=60)"),
    Option("--clients", "N", "number of distinct callers (default: 1); see --identity-header"),
    Option("--skew", "S", "Zipf exponent of the callers' shares; 0: equal shares (default: 0)"),
    Option("--seed", "N", "seed of all random draws (default: 0)"),
    Option("--speed", "X", "speed factor for a trace (default: 1)"),
    Option("--rate", "R", "mean rate for a trace, in requests/s"),
    Option(
        "--find-peak",
        "LOW:HIGH[:TIME]",
        "instead of a shape: search for the highest rate that meets --slo; a trial takes TIME "
        f"(default: {TRIAL_S:g}s)",
    ),
)

OPTIONS: Final = (
    *LOAD_OPTIONS,
    *request_options.OPTIONS,
    *send_options.FIELD_OPTIONS,
    *send_options.EFFORT_OPTIONS,
    *report_options.OPTIONS,
    *probe_options.OPTIONS,
)


Offer = LoadShape | Users | TraceShape
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
class LoadOptions:
    """The load to offer, of `LOAD_OPTIONS`."""

    offer: Offer | Search
    shape_text: str
    arrivals: Arrivals
    priority_mix: PriorityMix
    seed: int
    speed: float
    """Speed factor for a trace."""
    rate_rps: float | None
    """Mean rate for a trace; None: by its speed factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadArguments:
    """Parsed arguments of ``load``."""

    load: LoadOptions
    weighted_requests: WeightedRequests
    path: str
    """Path of the URL; the target of a trace."""
    send_options: SendOptions
    report_options: ReportOptions
    probes: tuple[Probe, ...]
    command: str
    """In a form without secrets."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_options(parser, "offered load", LOAD_OPTIONS)
    add_options(parser, "requests", request_options.OPTIONS)
    add_options(parser, "target and header fields", send_options.FIELD_OPTIONS)
    add_options(parser, "sending", send_options.EFFORT_OPTIONS)
    add_options(parser, "objectives and report", report_options.OPTIONS)
    add_options(parser, "monitoring during the run, once a second", probe_options.OPTIONS)


def read(args: argparse.Namespace, url: str) -> LoadArguments:
    """Read a command line.

    Raises:
        UsageError: with every problem that is visible before anything is sent.
    """
    problems = ProblemList()
    place, path = split_url(url)
    named = bool(args.route) or args.requests is not None
    weighted_requests = request_options.read(args, path, problems)
    shape = problems.read("--shape", parse_shape, args.shape, None)
    search = problems.read("--find-peak", _search, args.find_peak, None)
    arguments = LoadArguments(
        load=_load_options(args, shape or search or UNREADABLE, weighted_requests, problems),
        weighted_requests=weighted_requests,
        path=path,
        send_options=send_options.read(args, url, url if named else place, problems),
        report_options=report_options.read(args, problems),
        probes=probe_options.read(args, problems),
        command=command(["load", hidden_query(url)], OPTIONS, args),
    )
    _check_together(args, arguments, problems)
    if search is not None:
        _check_search(search, arguments, problems)
    problems.raise_if_any()
    return arguments


def _load_options(
    args: argparse.Namespace,
    offer: Offer | Search,
    weighted_requests: WeightedRequests,
    problems: ProblemList,
) -> LoadOptions:
    return LoadOptions(
        offer=offer,
        shape_text=args.shape or args.find_peak or "",
        priority_mix=_priority_mix(args, weighted_requests, problems),
        arrivals=problems.read("--arrivals", Arrivals.parse, args.arrivals, Arrivals.UNIFORM),
        seed=problems.read("--seed", _seed, args.seed, 0),
        speed=problems.read("--speed", above_zero, args.speed, 1.0),
        rate_rps=problems.read("--rate", above_zero, args.rate, None),
    )


def _priority_mix(
    args: argparse.Namespace, weighted_requests: WeightedRequests, problems: ProblemList
) -> PriorityMix:
    default = PriorityMix(kinds=weighted_requests.shares)
    mix = problems.read("--mix", parse_mix, args.mix, dict(default.mix))
    clients = problems.read(
        "--clients",
        lambda text: PriorityMix(clients=send_options.whole_number(1)(text)).clients,
        args.clients,
        1,
    )
    skew = problems.read("--skew", lambda text: PriorityMix(skew=float(text)).skew, args.skew, 0.0)
    return PriorityMix(mix, clients, skew, weighted_requests.shares)


def _seed(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise TrafficError(f"{text!r} is not a whole number") from None


def _search(text: str) -> Search:
    parts = text.split(":")
    if not 2 <= len(parts) <= 3:
        raise TrafficError(f"{text!r} is not LOW:HIGH[:TIME], such as 100:5000:10s")
    low_rps, high_rps = above_zero(parts[0]), above_zero(parts[1])
    if low_rps >= high_rps:
        raise TrafficError(f"{parts[0]} is not below {parts[1]}")
    return Search(low_rps, high_rps, time_s(parts[2]) if len(parts) == 3 else TRIAL_S)


def _check_together(args: argparse.Namespace, arguments: LoadArguments, problems: ProblemList) -> None:
    """Check options that are valid alone but not together."""
    searched, shaped = args.find_peak is not None, args.shape is not None
    # An unreadable shape may have been a trace: report no second problem about its options.
    unreadable = shaped and isinstance(arguments.load.offer, Search)
    traced = isinstance(arguments.load.offer, TraceShape) or unreadable
    aims = bool(arguments.report_options.objectives.terms) or args.slo is not None
    for holds, option, problem in (
        (not shaped and not searched, "--shape", "is required, such as fixed:100:10s; or use --find-peak"),
        (shaped and searched, "--find-peak", "creates its own shapes: omit --shape"),
        (searched and not aims, "--find-peak", "needs --slo with the objectives to meet"),
        (args.speed is not None and not traced, "--speed", "applies only to trace:PATH"),
        (args.rate is not None and not traced, "--rate", "applies only to trace:PATH"),
        (args.speed is not None and args.rate is not None, "--rate", "sets the speed: omit --speed"),
        (
            args.arrivals is not None and isinstance(arguments.load.offer, Users | TraceShape),
            "--arrivals",
            "users start after their previous response, and a trace has its own times: omit it",
        ),
    ):
        if holds:
            problems.add(option, problem)


def _check_search(search: Search, arguments: LoadArguments, problems: ProblemList) -> None:
    """Check for errors that would end every search at its first trial, or in the middle."""
    problems.make("--find-peak", lambda: LoadShape([LoadLevel(search.high_rps, search.trial_s)]), None)
    for term in arguments.report_options.objectives.terms:
        if term.segment not in (None, ONLY_SEGMENT):
            problems.add(
                "--slo", f"{term.text}: a trial of --find-peak has one segment: leave @{term.segment} out"
            )
        mix = arguments.load.priority_mix.mix
        share = 1.0 if term.priority is None else mix.get(term.priority, 0.0) / 100.0
        if term.unit == "rps" and ">" in term.operator and term.bound >= share * search.low_rps:
            problems.add(
                "--slo",
                f"{term.text}: fails at {search.low_rps:g}/s, where the search starts, even for a perfect "
                "service: use ratios, such as done>0.99",
            )
