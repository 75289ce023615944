"""``load``: sends load to a service and reports the results; ``load compare``: two reports side by side."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from autoglm_throttle.cli.options import (
    HIDDEN,
    RUN_GROUPS,
    RUN_STATUSES,
    Option,
    OptionGroups,
    ProblemList,
    above_zero,
    add_options,
    hidden_query,
    is_given,
    read_run,
    run_command,
    split_url,
    time_s,
    whole_number,
)
from autoglm_throttle.cli.output import EXIT_OK, to_stderr, write, write_json
from autoglm_throttle.cli.run import (
    Search,
    check_probes,
    clients_text,
    defer_signals,
    preview,
    report_of,
    search_peak,
    write_report,
)
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.generator import UserSchedule
from autoglm_throttle.traffic.plan import (
    Arrivals,
    LoadLevel,
    LoadShape,
    PriorityMix,
    TraceShape,
    Users,
    format_plan,
    make_plan,
    make_replay_plan,
    parse_mix,
    parse_shape,
)
from autoglm_throttle.traffic.replay import ReplayOptions, Selection, is_trace, of_trace, times_of
from autoglm_throttle.traffic.report import Document, compare, comparison, loads
from autoglm_throttle.traffic.request_source import (
    REQUEST_FIELDS,
    WITHOUT_BODY,
    PlannedRequest,
    RequestSource,
    planned_request,
    read_requests,
)
from autoglm_throttle.traffic.trace import load_azure_llm

# Target of a trace of token numbers if the URL names no path; the simulated service reads them there.
TRACE_TARGET: Final = "/v1/predict"

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

"""


Route = tuple[str, str, float]  # Method, empty if not stated; path and query; share
Requests = tuple[tuple[PlannedRequest, ...], tuple[float, ...]]  # The requests and their shares
NO_REQUESTS: Final[Requests] = (PlannedRequest(),), (1.0,)  # Placeholder for unreadable ones


def _seed(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise TrafficError(f"{text!r} is not a whole number") from None


def _clients(text: str) -> int:
    return PriorityMix(clients=whole_number(text)).clients


def _skew(text: str) -> float:
    return PriorityMix(skew=float(text)).skew


def _search_bounds(text: str) -> Search:
    parts = text.split(":")
    if not 2 <= len(parts) <= 3:
        raise TrafficError(f"{text!r} is not LOW:HIGH[:TIME], such as 100:5000:10s")
    low_rps, high_rps = above_zero(parts[0]), above_zero(parts[1])
    if low_rps >= high_rps:
        raise TrafficError(f"{parts[0]} is not below {parts[1]}")
    return Search(low_rps, high_rps, time_s(parts[2]) if len(parts) == 3 else TRIAL_S)


def _split_share(text: str) -> tuple[str, str, str]:
    """Split at the last ``=``; the whole text is the first part if there is none."""
    place, equals, share = text.rpartition("=")
    return (place, equals, share) if equals else (text, "", "")


def _hidden_route(text: str) -> str:
    """Return a route without the values of its query. The share is not one of them."""
    place, equals, share = _split_share(text)
    return f"{hidden_query(place)}{equals}{share}"


def _route(text: str) -> Route:
    """Read ``POST /v1/x=70``, ``/v1/x=70`` or ``/v1/x``; after a query with values the share is required."""
    last = text.partition("?")[2].rpartition("&")[2]
    if "=" in text.partition("?")[2] and last.count("=") < 2:
        raise TrafficError("a path with query values must end with its share, such as 'GET /v1/x?y=5=1'")
    place, equals, share = _split_share(text)
    parts = place.split()
    if not 1 <= len(parts) <= 2 or not parts[-1].startswith("/"):
        raise TrafficError(f"{text!r} is not METHOD PATH=SHARE, such as 'POST /v1/x=70'")
    return (parts[0] if len(parts) == 2 else ""), parts[-1], above_zero(share if equals else "1")


_PEAK: Final = (
    "instead of a shape: search for the highest rate that meets --slo; a trial takes TIME"
    f" (default: {TRIAL_S:g}s)"
)
_BODY: Final = "body of POST, PUT and PATCH (default: {}); with --method, of that method"
_ROUTE: Final = "a route below URL and its share of the requests, such as 'POST /v1/x=70'; repeatable"
_FILE: Final = f"requests as JSON lines or TOML ([[requests]]), with any of {', '.join(REQUEST_FIELDS)}"

_OFFERED: Final = (
    Option("--shape", "SHAPE", "rate and duration; see below", parse_shape),
    Option("--arrivals", "PROCESS", "uniform, poisson or gamma:K; K < 1: bursts", Arrivals.parse, "uniform"),
    Option("--mix", "SHARES", "percent of the priorities", parse_mix, "high=10,mid=30,low=60"),
    Option("--clients", "N", "number of distinct callers; see --identity-header", _clients, "1"),
    Option("--skew", "S", "Zipf exponent of the callers' shares; 0: equal shares", _skew, "0"),
    Option("--seed", "N", "seed of all random draws", _seed, "0"),
    Option("--speed", "X", "speed factor for a trace", above_zero, "1"),
    Option("--rate", "R", "mean rate for a trace, in requests/s", above_zero),
    Option("--find-peak", "LOW:HIGH[:TIME]", _PEAK, _search_bounds),
)
_REQUESTS: Final = (
    Option("--method", "METHOD", "of the requests, and of routes without one", default="POST"),
    Option("--body", "TEXT", _BODY, str.encode, shown=lambda _: HIDDEN),
    Option("--body-file", "FILE", "the same, from a file"),
    Option("--route", "'METHOD PATH=SHARE'", _ROUTE, _route, many=True, shown=_hidden_route),
    Option("--requests", "FILE", _FILE, read_requests),
)
GROUPS: Final[OptionGroups] = {"offered load": _OFFERED, "requests": _REQUESTS, **RUN_GROUPS}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.usage = (
        "autoglm-throttle load URL --shape SHAPE [options]\n"
        "       autoglm-throttle load compare A B [--format text|json]"
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG + RUN_STATUSES
    parser.add_argument(
        "words", metavar="URL", nargs="+", help="URL of the service; or compare and the JSON of two reports"
    )
    add_options(parser, GROUPS)


def read_arguments(args: argparse.Namespace, url: str) -> None:
    """Check a command line and raise all problems together; the namespace gets the values made of several.

    These are those of `read_run`, ``offer``, ``planned`` (the requests), ``priority_mix``, and ``path`` of
    the URL.
    """
    place, args.path = split_url(url)
    args.planned, shares = _requests(args)
    args.offer = args.shape or args.find_peak
    args.priority_mix = PriorityMix(args.mix, args.clients, args.skew, shares)
    common = url if is_given(args, "--route") or is_given(args, "--requests") else place
    read_run(args, ["load", hidden_query(url)], url, common)
    _check_together(args)
    if args.find_peak is not None:
        _check_search(args, args.find_peak)
    args.problems.raise_if_any()


def _check_together(args: argparse.Namespace) -> None:
    """Check options that are valid alone but not together."""
    searched, shaped = is_given(args, "--find-peak"), is_given(args, "--shape")
    # An unreadable shape may have been a trace: report no second problem about its options.
    traced = isinstance(args.offer, TraceShape) or (shaped and args.shape is None)
    own_times = isinstance(args.offer, Users | TraceShape)
    speeded, rated = is_given(args, "--speed"), is_given(args, "--rate")
    for holds, option, problem in (
        (not shaped and not searched, "--shape", "is required, such as fixed:100:10s; or use --find-peak"),
        (shaped and searched, "--find-peak", "creates its own shapes: omit --shape"),
        (searched and not is_given(args, "--slo"), "--find-peak", "needs --slo with the objectives to meet"),
        (speeded and not traced, "--speed", "applies only to trace:PATH"),
        (rated and not traced, "--rate", "applies only to trace:PATH"),
        (speeded and rated, "--rate", "sets the speed: omit --speed"),
        (
            is_given(args, "--arrivals") and own_times,
            "--arrivals",
            "users start after their previous response, and a trace has its own times: omit it",
        ),
    ):
        if holds:
            args.problems.add(option, problem)


def _check_search(args: argparse.Namespace, search: Search) -> None:
    """Check for errors that would end every search at its first trial, or in the middle."""
    problems: ProblemList = args.problems
    problems.make("--find-peak", lambda: LoadShape([LoadLevel(search.high_rps, search.trial_s)]), None)
    for term in args.slo.terms:
        if term.segment not in (None, ONLY_SEGMENT):
            problems.add(
                "--slo", f"{term.text}: a trial of --find-peak has one segment: leave @{term.segment} out"
            )
        share = 1.0 if term.priority is None else args.mix.get(term.priority, 0.0) / 100.0
        if term.unit == "rps" and ">" in term.operator and term.bound >= share * search.low_rps:
            problems.add(
                "--slo",
                f"{term.text}: fails at {search.low_rps:g}/s, where the search starts, even for a perfect "
                "service: use ratios, such as done>0.99",
            )


def _requests(args: argparse.Namespace) -> Requests:
    """Build the requests of a command line, and their shares."""
    problems: ProblemList = args.problems
    if is_given(args, "--requests"):
        for option in ("--route", "--body", "--body-file", "--method"):
            if is_given(args, option):
                problems.add("--requests", f"defines the whole request: leave {option} out")
        return args.requests or NO_REQUESTS
    has_routes = is_given(args, "--route")
    if has_routes and not args.route:
        return NO_REQUESTS
    routes: list[Route] = args.route or [("", args.path, 1.0)]
    routes = [(method or args.method, target, share) for method, target, share in routes]
    body = _body(args)
    if body is not None and has_routes and all(method in WITHOUT_BODY for method, _, _ in routes):
        problems.add("--body", "no route sends a body: omit it, or define it with --requests")
    planned = []
    for method, target, _ in routes:
        # The given body is meant for the other routes, if there are any.
        own = None if has_routes and method in WITHOUT_BODY else body
        planned.append(
            problems.make("--route", partial(planned_request, method, target, own), PlannedRequest())
        )
    return tuple(planned), tuple(share for _, _, share in routes)


def _body(args: argparse.Namespace) -> bytes | None:
    problems: ProblemList = args.problems
    body: bytes | None = args.body
    if args.body_file is None:
        return body
    if body is not None:
        problems.add("--body-file", "use either --body or --body-file")
    return problems.make("--body-file", Path(args.body_file).read_bytes, body)


def run(args: argparse.Namespace) -> int:
    """Send a load, search for a peak or compare; return the exit status, as listed at the end of the help."""
    return run_command("load", lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    words: Sequence[str] = args.words
    if words[0] == "compare":
        return _compare(args, words[1:])
    if len(words) != 1:
        raise TrafficError(f"URL: one service is loaded at a time, not {' '.join(words)}")
    read_arguments(args, words[0])
    if args.dry_run:
        write("\n".join(load_preview(args)))
        return EXIT_OK
    clients = args.priority_mix.clients
    if clients > 1 and args.target.identity_header is None:
        to_stderr(f"note: {clients_text(clients, args)}\n")
    check_probes(args)
    if isinstance(args.offer, Search):
        with defer_signals() as signal_guard:
            return search_peak(args, args.offer, signal_guard)
    load = build_load(args)
    arrivals = str(args.arrivals)
    if isinstance(args.offer, Users | TraceShape):
        arrivals = "closed-loop" if isinstance(args.offer, Users) else "recorded"
    with defer_signals() as signal_guard:
        return write_report(report_of(args, load, arrivals, signal_guard), args)


def build_load(args: argparse.Namespace) -> RequestSource | UserSchedule:
    """Build the load."""
    load: RequestSource | UserSchedule
    if isinstance(args.offer, Users):
        load = UserSchedule(args.offer, args.planned, args.priority_mix, args.seed)
    elif isinstance(args.offer, TraceShape):
        load = _trace_load(args, Path(args.offer.path))
    else:
        made = make_plan(args.offer, args.arrivals, args.priority_mix, args.seed)
        load = RequestSource(made, args.planned)
    args.slo.check(load.names if isinstance(load, UserSchedule) else load.plan.names)
    return load


def _trace_load(args: argparse.Namespace, path: Path) -> RequestSource:
    """Build the load of a trace. Only traces of token numbers have own requests; other files give times."""
    selection = Selection(speed=args.speed, rate_rps=args.rate)
    if is_trace(path):
        target = TRACE_TARGET if args.path == "/" else args.path
        options = ReplayOptions(mix=args.priority_mix, seed=args.seed, target=target)
        return of_trace(load_azure_llm(path), selection, options)
    made = make_replay_plan(selection.offsets(times_of(path)), args.priority_mix, seed=args.seed)
    return RequestSource(made, args.planned)


def load_preview(args: argparse.Namespace) -> list[str]:
    """Return the preview of a load; raises as `build_load`."""
    shares = args.priority_mix.kinds
    lines = preview(args, args.priority_mix.clients)
    requests = [
        f"{share / sum(shares):>7.1%} {request.method} {args.target.base}{request.target}"
        + (f" ({request.name})" if request.name else "")
        for request, share in zip(args.planned, shares, strict=True)
    ]
    if isinstance(args.offer, Search):
        search = args.offer
        bounds = f"{search.low_rps:g}/s, {search.high_rps:g}/s and rates between them"
        return [*lines, *requests, f"trials of {search.trial_s:g} s at {bounds}"]
    load = build_load(args)
    if load.requests is not args.planned:
        requests = [f"{len(load.requests)} distinct requests, from the trace"]
    if isinstance(load, UserSchedule):
        steps = (f"{users} users for {length_s:g} s" for users, length_s in load.users.steps)
        return [*lines, *requests, *steps]
    return [*lines, *requests, "", *format_plan(load.plan)]


def _compare(args: argparse.Namespace, names: Sequence[str]) -> int:
    """Print two reports side by side."""
    problems: ProblemList = args.problems
    others = sorted({name for _, name in args.given} - {"--format"})
    if len(names) != 2:
        problems.add("compare", "takes the JSON of two reports, A and B")
    if others:
        problems.add("compare", f"takes only --format, not {', '.join(others)}")
    reports = [problems.make("compare", partial(_read_report, name), None) for name in names]
    problems.raise_if_any()
    first, second = filter(None, reports)
    if args.format:
        write_json(comparison(first, second))
    else:
        write("\n".join(compare(first, second)))
    return EXIT_OK


def _read_report(name: str) -> Document:
    try:
        return loads(Path(name).read_text("utf-8"))
    except UnicodeDecodeError:
        raise TrafficError(f"{name}: not a text") from None
    except TrafficError as error:
        raise TrafficError(f"{name}: {error}") from None
