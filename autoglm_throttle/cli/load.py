"""``load``: sends load to a service and reports the results."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from autoglm_throttle.cli.compare import compare_files
from autoglm_throttle.cli.load_arguments import LoadArguments, Search, add_arguments, read_arguments
from autoglm_throttle.cli.load_options import UsageError, run_command
from autoglm_throttle.cli.output import EXIT_OK, PROBLEM_FOUND, WRONG_USAGE, to_stderr, write
from autoglm_throttle.cli.run import (
    SignalGuard,
    check_probes,
    clients_text,
    defer_signals,
    preview,
    run_info,
    run_load,
    write_report,
)
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.generator import UserSchedule
from autoglm_throttle.traffic.peak import PeakResult, find_peak
from autoglm_throttle.traffic.plan import (
    LoadLevel,
    LoadShape,
    TraceShape,
    Users,
    format_plan,
    make_plan,
    make_replay_plan,
)
from autoglm_throttle.traffic.replay import ReplayOptions, Selection, is_trace, of_trace, times_of
from autoglm_throttle.traffic.report import Document, make
from autoglm_throttle.traffic.report.text_report import NO_DATA, duration, share, table
from autoglm_throttle.traffic.request_source import RequestSource
from autoglm_throttle.traffic.trace import load_azure_llm

__all__ = ["add_arguments", "run"]

# Target of a trace of token numbers if the URL names no path; the simulated service reads them there.
TRACE_TARGET: Final = "/v1/predict"

# Verdict on a trial, by its exit status.
VERDICTS: Final = {0: PeakResult.HOLDS, 1: PeakResult.FAILS, 3: PeakResult.INVALID, 130: PeakResult.ABORTED}

STATUSES: Final = {verdict: status for status, verdict in VERDICTS.items()}

FIGURES: Final = ("goodput", "limited", "shed", "errors", "p99")  # Printed for each trial


def run(args: argparse.Namespace) -> int:
    """Send a load or search for a peak; return the exit status, as listed at the end of the help."""
    return run_command("load", lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    words: Sequence[str] = args.words
    if words[0] == "compare":  # after an option
        return compare_files(words[1:], args.format)
    if len(words) != 1:
        raise UsageError([f"URL: one service is loaded at a time, not {' '.join(words)}"])
    arguments = read_arguments(args, words[0])
    if arguments.run.dry_run:
        write("\n".join(load_preview(arguments)))
        return EXIT_OK
    clients = arguments.priority_mix.clients
    if clients > 1 and arguments.run.target.identity_header is None:
        to_stderr(f"note: {clients_text(clients, arguments.run)}\n")
    check_probes(arguments.run)
    if isinstance(arguments.offer, Search):
        with defer_signals() as signal_guard:
            return _search(arguments, arguments.offer, signal_guard)
    load = build_load(arguments, arguments.offer)
    with defer_signals() as signal_guard:
        return write_report(_report(arguments, load, signal_guard), arguments.run)


def build_load(
    arguments: LoadArguments, offer: LoadShape | Users | TraceShape
) -> RequestSource | UserSchedule:
    """Build the load."""
    load: RequestSource | UserSchedule
    requests, mix, seed = arguments.weighted_requests.requests, arguments.priority_mix, arguments.seed
    if isinstance(offer, Users):
        load = UserSchedule(offer, requests, mix, seed)
    elif isinstance(offer, TraceShape):
        load = _trace_load(arguments, Path(offer.path))
    else:
        load = RequestSource(make_plan(offer, arguments.arrivals, mix, seed), requests)
    names = load.names if isinstance(load, UserSchedule) else load.plan.names
    arguments.run.objectives.check(names)
    return load


def _trace_load(arguments: LoadArguments, path: Path) -> RequestSource:
    """Build the load of a trace. Only traces of token numbers have own requests; other files give times."""
    mix, seed = arguments.priority_mix, arguments.seed
    selection = Selection(speed=arguments.speed, rate_rps=arguments.rate_rps)
    if is_trace(path):
        target = TRACE_TARGET if arguments.path == "/" else arguments.path
        options = ReplayOptions(mix=mix, seed=seed, target=target)
        return of_trace(load_azure_llm(path), selection, options)
    made = make_replay_plan(selection.offsets(times_of(path)), mix, seed=seed)
    return RequestSource(made, arguments.weighted_requests.requests)


def load_preview(arguments: LoadArguments) -> list[str]:
    """Return the preview of a load; raises as `build_load`."""
    weighted, base = arguments.weighted_requests, arguments.run.target.base
    lines = preview(arguments.run, arguments.priority_mix.clients)
    requests = [
        f"{share / sum(weighted.shares):>7.1%} {request.method} {base}{request.target}"
        + (f" ({request.name})" if request.name else "")
        for request, share in zip(weighted.requests, weighted.shares, strict=True)
    ]
    if isinstance(arguments.offer, Search):
        search = arguments.offer
        bounds = f"{search.low_rps:g}/s, {search.high_rps:g}/s and rates between them"
        return [*lines, *requests, f"trials of {search.trial_s:g} s at {bounds}"]
    load = build_load(arguments, arguments.offer)
    if load.requests is not weighted.requests:
        requests = [f"{len(load.requests)} distinct requests, from the trace"]
    if isinstance(load, UserSchedule):
        steps = (f"{users} users for {length_s:g} s" for users, length_s in load.users.steps)
        return [*lines, *requests, *steps]
    return [*lines, *requests, "", *format_plan(load.plan)]


def _report(
    arguments: LoadArguments, load: RequestSource | UserSchedule, signal_guard: SignalGuard
) -> Document:
    result = run_load(load, arguments.run, signal_guard)
    arrivals = str(arguments.arrivals)
    if isinstance(arguments.offer, Users | TraceShape):
        arrivals = "closed-loop" if isinstance(arguments.offer, Users) else "recorded"
    known = replace(
        run_info(arguments.run, arguments.shape_text, result.run_cost.loop),
        arrivals=arrivals,
        seed=arguments.seed,
        mix=arguments.priority_mix.mix,
    )
    return make(result, known)


class _PeakTrials:
    """The trials of a search, one after another."""

    def __init__(self, arguments: LoadArguments, trial_s: float, signal_guard: SignalGuard) -> None:
        self._arguments = arguments
        self._trial_s = trial_s
        self._signal_guard = signal_guard
        self.reports: dict[float, Document] = {}  # The last one by rate
        self.rows: list[tuple[str, ...]] = []  # All of them, in their order
        self.error = ""  # The error that ended the search early

    def make(self, rate_rps: float) -> PeakResult:
        """Run one trial."""
        report = self._report(rate_rps)
        verdict = PeakResult.ABORTED if report is None else VERDICTS[report["verdict"]["status"]]
        self.rows.append(_row(rate_rps, verdict, report))
        if report is not None:
            self.reports[rate_rps] = report
            figures = ", ".join(
                f"{name} {cell}" for name, cell in zip(FIGURES, self.rows[-1][2:], strict=True)
            )
            to_stderr(f"{rate_rps:g}/s: {report['verdict']['text']} ({figures})\n")
        return verdict

    def _report(self, rate_rps: float) -> Document | None:
        """Return the report of one trial; None if it did not run."""
        try:
            arguments, shape = self._arguments, LoadShape([LoadLevel(rate_rps, self._trial_s)])
            made = make_plan(shape, arguments.arrivals, arguments.priority_mix, arguments.seed)
            load = RequestSource(made, arguments.weighted_requests.requests)
            return None if self._signal_guard.stop_requested else _report(arguments, load, self._signal_guard)
        except KeyboardInterrupt:
            return None
        except TrafficError as error:
            problem = f"after {len(self.reports)} trials, at {rate_rps:g}/s: {error}"
            if not self.reports:
                raise TrafficError(problem) from None
            self.error = problem  # nothing was sent: no result at this rate, earlier results stay
            return None


def _search(arguments: LoadArguments, search: Search, signal_guard: SignalGuard) -> int:
    """Search for the highest rate. The report is of the highest rate that held, or of the last trial."""
    trials = _PeakTrials(arguments, search.trial_s, signal_guard)
    peak = find_peak(trials.make, search.low_rps, search.high_rps)
    status = PROBLEM_FOUND if trials.error else STATUSES[peak.result]
    if not trials.reports:
        return status
    report = trials.reports.get(peak.holds_rps or 0.0) or list(trials.reports.values())[-1]
    text = f"{peak.text}; {trials.error}" if trials.error else peak.text
    report["title"] = f"{report['title']}: {text}"
    rows = [("trial", "verdict", *FIGURES), *trials.rows]
    more = ["", *table(rows), "", *_limit_note(trials.reports.values()), f"peak: {text}"]
    write_status = write_report(report, arguments.run, more)
    return WRONG_USAGE if write_status == WRONG_USAGE else status


def _row(rate_rps: float, verdict: PeakResult, report: Document | None) -> tuple[str, ...]:
    """Format a trial's verdict and figures."""
    if report is None:
        return f"{rate_rps:g}/s", verdict, *[NO_DATA] * len(FIGURES)
    totals = report["totals"]
    shares = (
        totals["goodput"]["ratio"],
        totals["limited_ratio"],
        totals["shed_ratio"],
        totals["error_ratio"],
    )
    return f"{rate_rps:g}/s", verdict, *map(share, shares), duration(totals["response"]["p99_s"])


def _limit_note(reports: Iterable[Document]) -> list[str]:
    """Return a note on trials that failed by a limit instead of the service's own capacity."""
    failed = [report["totals"] for report in reports if report["verdict"]["status"] == PROBLEM_FOUND]
    limited = [
        totals
        for totals in failed
        if (totals["limited_ratio"] or 0.0) > 0.5 * (1.0 - (totals["goodput"]["ratio"] or 0.0))
    ]
    if not limited:
        return []
    return [
        "most failed requests were rejected by a limit of the caller (429): this is the peak of the limits,"
        " not of the service; raise them, or send more --clients with --identity-header"
    ]
