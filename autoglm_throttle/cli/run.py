"""Runs a load, or the trials of a search: sends with probes and a progress display, and writes the report."""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

from autoglm_throttle.cli.options import given_words
from autoglm_throttle.cli.output import PROBLEM_FOUND, WRONG_USAGE, broken_pipe_ok, to_stderr, write
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.generator import UserSchedule, launch
from autoglm_throttle.traffic.generator.launch import on_stop_signal
from autoglm_throttle.traffic.peak import PeakResult, find_peak
from autoglm_throttle.traffic.plan import LoadLevel, LoadShape, make_plan
from autoglm_throttle.traffic.probes import MetricsProbe, Prober
from autoglm_throttle.traffic.report import Document, ProgressLine, RunInfo, dumps, lines, make
from autoglm_throttle.traffic.report.page import render
from autoglm_throttle.traffic.report.schema import Part
from autoglm_throttle.traffic.report.text_report import NO_DATA, duration, share, table
from autoglm_throttle.traffic.request_source import RequestSource
from autoglm_throttle.traffic.results import Result
from autoglm_throttle.version import __version__

# Verdict on a trial, by its exit status.
VERDICTS: Final = {0: PeakResult.HOLDS, 1: PeakResult.FAILS, 3: PeakResult.INVALID, 130: PeakResult.ABORTED}

STATUSES: Final = {verdict: status for status, verdict in VERDICTS.items()}

FIGURES: Final = ("goodput", "limited", "shed", "errors", "p99")  # Printed for each trial


class SignalGuard:
    """Records a stop request that cannot be executed at once."""

    def __init__(self) -> None:
        self.stop_requested: bool = False  # Whether a stop was requested while nothing was being sent

    def request_stop(self) -> None:
        """Record the request."""
        self.stop_requested = True

    def deliver(self) -> None:
        """Deliver a deferred signal to the sender that runs by now."""
        if self.stop_requested:
            self.stop_requested = False
            signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def defer_signals() -> Iterator[SignalGuard]:
    """Defer Ctrl-C and SIGTERM: between the last response and the end of the report they would lose it."""
    signal_guard = SignalGuard()
    with on_stop_signal(signal_guard.request_stop):
        yield signal_guard


def check_probes(args: argparse.Namespace) -> None:
    """Sample once the probes that may be misconfigured, before anything is sent."""
    for probe in args.probes:
        if isinstance(probe, MetricsProbe):
            probe.check()


def run_load(
    load: RequestSource | UserSchedule, args: argparse.Namespace, signal_guard: SignalGuard
) -> Result:
    """Send the load and wait for the end. Progress and errors of the probes are written to standard error."""
    planned, duration_s = 0, 0.0
    if isinstance(load, UserSchedule):
        duration_s = load.ends_s[-1]
    else:
        planned, duration_s = len(load.plan), load.plan.duration_s
    width = shutil.get_terminal_size().columns
    progress = ProgressLine(planned, duration_s, terminal=sys.stderr.isatty(), width=width)
    show = (lambda _: None) if args.quiet else to_stderr
    start_s: float | None = None  # Start of the run, monotonic

    def beat(elapsed_s: float, launched: int, in_flight: int) -> None:
        nonlocal start_s
        signal_guard.deliver()
        start_s = time.monotonic() - elapsed_s if start_s is None else start_s
        show(progress.line(elapsed_s, launched, in_flight))

    with Prober(args.probes) as watch:
        try:
            observer = None if args.quiet else progress.record
            result = launch(load, args.target, args.client, observer=observer, on_progress=beat)
        finally:
            show(progress.close())
        elapsed_s = result.run_cost.elapsed_s
        start_s = time.monotonic() - elapsed_s if start_s is None else start_s
    for problem in watch.faults:
        to_stderr(f"not monitored: {problem}\n")
    return replace(result, watched=watch.samples(start_s, start_s + elapsed_s))


def run_info(args: argparse.Namespace, shape: str, loop: str) -> RunInfo:
    """Return what a report holds beside the run itself; ``loop`` is the event loop that sent."""
    # This machine and these versions; they are never compared.
    about: Part = {
        "library": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": processor(),
        "cores": os.cpu_count() or 1,
        "loop": loop,
        "httptools": metadata.version("httptools"),
        "command": args.command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    title = args.title or f"{args.target.address}, {shape}"
    return RunInfo(title=title, shape=shape, limits_s=args.within, objectives=args.slo, about=about)


def processor() -> str:
    """Return the processor's name, or its architecture if the name is unknown."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.machine()


def write_report(report: Document, args: argparse.Namespace, more: Sequence[str] = ()) -> int:
    """Write a report to its files, then print it; a reader of the output may close it early."""
    status: int = report["verdict"]["status"]
    text = dumps(report)
    for path, content in ((args.json, text), (args.html, render(report) if args.html else "")):
        if path is not None:
            try:
                path.write_text(content, "utf-8")
                if not args.quiet:
                    to_stderr(f"{path} is written\n")
            except OSError as error:
                to_stderr(f"{path} cannot be written: {error.strerror}\n")
                status = WRONG_USAGE
    # Files first: a closed pipe must not lose them.
    with broken_pipe_ok():
        write(text if args.format else "\n".join([*lines(report), *more]))
    return status


def preview(args: argparse.Namespace, clients: int) -> list[str]:
    """Return the lines of ``--dry-run`` on target, objectives and callers."""
    target = args.target
    terms = ", ".join(term.text for term in args.slo.terms)
    return [
        f"nothing is sent; the target would be {target.scheme}://{target.address}{target.base}",
        f"objectives: {terms}" if terms else "no objectives: set them with --slo",
        clients_text(clients, args),
    ]


def clients_text(count: int, args: argparse.Namespace) -> str:
    """Return the number of callers, and whether the service can distinguish them."""
    name = args.target.identity_header
    distinction = (
        f"distinguished by {name}"
        if name
        else "which the service cannot distinguish without --identity-header"
    )
    return "1 client" if count == 1 else f"{count} clients, {distinction}"


def report_of(
    args: argparse.Namespace, load: RequestSource | UserSchedule, arrivals: str, signal_guard: SignalGuard
) -> Document:
    """Run a load of ``load`` and report it."""
    result = run_load(load, args, signal_guard)
    shape = given_words(args, "--shape", "--find-peak")[-1]
    known = run_info(args, shape, result.run_cost.loop)
    return make(result, replace(known, arrivals=arrivals, seed=args.seed, mix=args.priority_mix.mix))


class Search(NamedTuple):
    """A search for the highest rate."""

    low_rps: float
    high_rps: float
    trial_s: float


class _PeakTrials:
    """The trials of a search, one after another."""

    def __init__(self, args: argparse.Namespace, trial_s: float, signal_guard: SignalGuard) -> None:
        self._args = args
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
            figures = ", ".join(map(" ".join, zip(FIGURES, self.rows[-1][2:], strict=True)))
            to_stderr(f"{rate_rps:g}/s: {report['verdict']['text']} ({figures})\n")
        return verdict

    def _report(self, rate_rps: float) -> Document | None:
        """Return the report of one trial; None if it did not run."""
        args, shape = self._args, LoadShape([LoadLevel(rate_rps, self._trial_s)])
        try:
            made = make_plan(shape, args.arrivals, args.priority_mix, args.seed)
            if self._signal_guard.stop_requested:
                return None
            load = RequestSource(made, args.planned)
            return report_of(args, load, str(args.arrivals), self._signal_guard)
        except KeyboardInterrupt:
            return None
        except TrafficError as error:
            problem = f"after {len(self.reports)} trials, at {rate_rps:g}/s: {error}"
            if not self.reports:
                raise TrafficError(problem) from None
            self.error = problem  # nothing was sent: no result at this rate, earlier results stay
            return None


def search_peak(args: argparse.Namespace, search: Search, signal_guard: SignalGuard) -> int:
    """Search for the highest rate. The report is of the highest rate that held, or of the last trial."""
    trials = _PeakTrials(args, search.trial_s, signal_guard)
    peak = find_peak(trials.make, search.low_rps, search.high_rps)
    status = PROBLEM_FOUND if trials.error else STATUSES[peak.result]
    if not trials.reports:
        return status
    report = trials.reports.get(peak.holds_rps or 0.0) or list(trials.reports.values())[-1]
    text = f"{peak.text}; {trials.error}" if trials.error else peak.text
    report["title"] = f"{report['title']}: {text}"
    rows = [("trial", "verdict", *FIGURES), *trials.rows]
    more = ["", *table(rows), "", *_limit_note(trials.reports.values()), f"peak: {text}"]
    write_status = write_report(report, args, more)
    return WRONG_USAGE if write_status == WRONG_USAGE else status


def _row(rate_rps: float, verdict: PeakResult, report: Document | None) -> tuple[str, ...]:
    """Format a trial's verdict and figures."""
    if report is None:
        return f"{rate_rps:g}/s", verdict, *[NO_DATA] * len(FIGURES)
    totals = report["totals"]
    shares = totals["goodput"]["ratio"], totals["limited_ratio"], totals["shed_ratio"], totals["error_ratio"]
    return f"{rate_rps:g}/s", verdict, *map(share, shares), duration(totals["response"]["p99_s"])


def _limit_note(reports: Iterable[Document]) -> list[str]:
    """Return a note on trials that failed by a limit instead of the service's own capacity."""
    failed = [report["totals"] for report in reports if report["verdict"]["status"] == PROBLEM_FOUND]
    lost = [(totals["limited_ratio"] or 0.0, 1.0 - (totals["goodput"]["ratio"] or 0.0)) for totals in failed]
    if not any(limited > 0.5 * missed for limited, missed in lost):
        return []
    return [
        "most failed requests were rejected by a limit of the caller (429): this is the peak of the limits,"
        " not of the service; raise them, or send more --clients with --identity-header"
    ]
