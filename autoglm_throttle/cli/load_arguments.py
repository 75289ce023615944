"""Arguments of ``load``: one value, or every problem at once."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Final

from autoglm_throttle.cli import load_requests
from autoglm_throttle.cli.load_options import (
    Option,
    OptionGroups,
    ProblemList,
    above_zero,
    add_options,
    hidden_query,
    parse_options,
    time_s,
    whole_number,
)
from autoglm_throttle.cli.load_requests import WeightedRequests, read_requests
from autoglm_throttle.cli.run_options import RUN_GROUPS, RunOptions, read_run, split_url
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

# Length of each trial of a search: enough for queues to fill up; ten trials take two minutes.
TRIAL_S: Final = 10.0

# Alias in objectives for the segment of a trial, since its name differs at each rate.
ONLY_SEGMENT: Final = "1"

EPILOG: Final = """\
shapes:
  fixed:RATE:TIME                  one rate
  step:R1,R2,...:TIME              these rates, each for TIME
  step:FROM:TO:STEPS:TIME          equal steps, each for TIME
  spike:BASE:PEAK:BASE_TIME:PEAK_TIME
                                   a rate, a higher one, the first again
  ramp:FROM:TO:TIME                a rate that rises or falls linearly
  users:N:TIME[:THINK]             users that wait for each response, then think (closed loop)
  users:FROM:TO:STEPS:TIME         the same in equal steps
  trace:PATH                       the times of a recording, or a CSV of token numbers with its requests
  rates are requests/s; durations take ms, s or m

objectives of --slo, with commas between them: METRIC[.PRIORITY][@SEGMENT] OP VALUE
  mean, max, p50 .. p99.9          response time of served requests, from the intended start: p99<500ms
  service., first_byte., rejection. prefix of these: from the write; to the first byte; of rejections
  error, limited, shed, dropped, done, goodput
                                   shares of the requests: error<0.5%, goodput.high>0.99
  goodput.rps, rps                 per second: rps@2>=100/s
  OP is < <= > or >=; SEGMENT is a name or number of the shape; values take us, ms, s, % or /s

examples:
  autoglm-throttle load http://127.0.0.1:8000/v1/predict --shape fixed:100:30s
  autoglm-throttle load http://127.0.0.1:8000 --shape step:100,1000,3000,5000:20s --route 'POST /v1/x=70' \\
      --route 'GET /v1/y=30' --slo 'p99<500ms,error<0.5%' --html report.html
  autoglm-throttle load http://127.0.0.1:8000/v1/predict --shape users:50:200:4:30s --watch 4711
  autoglm-throttle load http://127.0.0.1:8000/v1/predict --find-peak 100:5000 \\
      --slo 'p99<500ms,goodput>0.99'
  autoglm-throttle load compare before.json after.json

a line of --requests FILE:
  {"method": "POST", "target": "/v1/x", "body": {"tokens": 5}, "share": 70, "cost": 4, "name": "short"}

exit status:
  0    all objectives hold; without objectives, a request succeeded
  1    an objective failed; without objectives, no request succeeded or the service went down
  2    the run could not start, or a file could not be written
  3    the run is not valid: the generator or the machine was too slow
  130  stopped by Ctrl-C; the report is written
"""


@dataclass(frozen=True, slots=True)
class Search:
    """A search for the highest rate."""

    low_rps: float
    high_rps: float
    trial_s: float


UNREADABLE: Final = Search(1.0, 2.0, TRIAL_S)  # Placeholder for an offer that could not be read


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadArguments:
    """Parsed arguments of ``load``."""

    offer: LoadShape | Users | TraceShape | Search
    shape_text: str
    arrivals: Arrivals
    priority_mix: PriorityMix
    seed: int
    speed: float  # Speed factor for a trace
    rate_rps: float | None  # Mean rate for a trace; None: by its speed factor
    weighted_requests: WeightedRequests
    path: str  # Path of the URL; the target of a trace
    run: RunOptions


def _seed(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise TrafficError(f"{text!r} is not a whole number") from None


def _search_bounds(text: str) -> Search:
    parts = text.split(":")
    if not 2 <= len(parts) <= 3:
        raise TrafficError(f"{text!r} is not LOW:HIGH[:TIME], such as 100:5000:10s")
    low_rps, high_rps = above_zero(parts[0]), above_zero(parts[1])
    if low_rps >= high_rps:
        raise TrafficError(f"{parts[0]} is not below {parts[1]}")
    return Search(low_rps, high_rps, time_s(parts[2]) if len(parts) == 3 else TRIAL_S)


GROUPS: Final[OptionGroups] = {
    "offered load": (
        Option("--shape", "SHAPE", "rate and duration; see below", parse_shape),
        Option(
            "--arrivals",
            "PROCESS",
            "uniform, poisson or gamma:K, K below 1 in bursts (default: uniform)",
            Arrivals.parse,
            Arrivals.UNIFORM,
        ),
        Option(
            "--mix",
            "SHARES",
            "percent of the priorities (default: high=10,mid=30,low=60)",
            parse_mix,
            PriorityMix().mix,
        ),
        Option(
            "--clients",
            "N",
            "number of distinct callers (default: 1); see --identity-header",
            lambda text: PriorityMix(clients=whole_number(1)(text)).clients,
            1,
        ),
        Option(
            "--skew",
            "S",
            "Zipf exponent of the callers' shares; 0: equal shares (default: 0)",
            lambda text: PriorityMix(skew=float(text)).skew,
            0.0,
        ),
        Option("--seed", "N", "seed of all random draws (default: 0)", _seed, 0),
        Option("--speed", "X", "speed factor for a trace (default: 1)", above_zero, 1.0),
        Option("--rate", "R", "mean rate for a trace, in requests/s", above_zero),
        Option(
            "--find-peak",
            "LOW:HIGH[:TIME]",
            "instead of a shape: search for the highest rate that meets --slo; a trial takes TIME "
            f"(default: {TRIAL_S:g}s)",
            _search_bounds,
        ),
    ),
    "requests": load_requests.OPTIONS,
    **RUN_GROUPS,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.usage = (
        "autoglm-throttle load URL --shape SHAPE [options]\n       autoglm-throttle load compare A B"
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument(
        "words", metavar="URL", nargs="+", help="URL of the service; or compare and the JSON of two reports"
    )
    add_options(parser, GROUPS)


def read_arguments(args: argparse.Namespace, url: str) -> LoadArguments:
    """Read a command line."""
    problems = ProblemList()
    place, path = split_url(url)
    args.url = url
    values = parse_options(args, {"": GROUPS["offered load"]}, problems)
    requests = read_requests(args, path, problems)
    base = url if args.route or args.requests is not None else place
    arguments = LoadArguments(
        offer=values.shape or values.find_peak or UNREADABLE,
        shape_text=args.shape or args.find_peak or "",
        arrivals=values.arrivals,
        priority_mix=PriorityMix(values.mix, values.clients, values.skew, requests.shares),
        seed=values.seed,
        speed=values.speed,
        rate_rps=values.rate,
        weighted_requests=requests,
        path=path,
        run=read_run(args, ["load", hidden_query(url)], GROUPS, base, problems),
    )
    _check_together(args, arguments, problems)
    if values.find_peak is not None:
        _check_search(values.find_peak, arguments, problems)
    problems.raise_if_any()
    return arguments


def _check_together(args: argparse.Namespace, arguments: LoadArguments, problems: ProblemList) -> None:
    """Check options that are valid alone but not together."""
    searched, shaped = args.find_peak is not None, args.shape is not None
    # An unreadable shape may have been a trace: report no second problem about its options.
    unreadable = shaped and isinstance(arguments.offer, Search)
    traced = isinstance(arguments.offer, TraceShape) or unreadable
    aims = bool(arguments.run.objectives.terms) or args.slo is not None
    for holds, option, problem in (
        (not shaped and not searched, "--shape", "is required, such as fixed:100:10s; or use --find-peak"),
        (shaped and searched, "--find-peak", "creates its own shapes: omit --shape"),
        (searched and not aims, "--find-peak", "needs --slo with the objectives to meet"),
        (args.speed is not None and not traced, "--speed", "applies only to trace:PATH"),
        (args.rate is not None and not traced, "--rate", "applies only to trace:PATH"),
        (args.speed is not None and args.rate is not None, "--rate", "sets the speed: omit --speed"),
        (
            args.arrivals is not None and isinstance(arguments.offer, Users | TraceShape),
            "--arrivals",
            "users start after their previous response, and a trace has its own times: omit it",
        ),
    ):
        if holds:
            problems.add(option, problem)


def _check_search(search: Search, arguments: LoadArguments, problems: ProblemList) -> None:
    """Check for errors that would end every search at its first trial, or in the middle."""
    problems.make("--find-peak", lambda: LoadShape([LoadLevel(search.high_rps, search.trial_s)]), None)
    for term in arguments.run.objectives.terms:
        if term.segment not in (None, ONLY_SEGMENT):
            problems.add(
                "--slo", f"{term.text}: a trial of --find-peak has one segment: leave @{term.segment} out"
            )
        mix = arguments.priority_mix.mix
        share = 1.0 if term.priority is None else mix.get(term.priority, 0.0) / 100.0
        if term.unit == "rps" and ">" in term.operator and term.bound >= share * search.low_rps:
            problems.add(
                "--slo",
                f"{term.text}: fails at {search.low_rps:g}/s, where the search starts, even for a perfect "
                "service: use ratios, such as done>0.99",
            )
