"""Runs ``load``: one load, or the trials of a peak search."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final, Literal

from autoglm_throttle.cli.load_tests import preview
from autoglm_throttle.cli.load_tests.load_arguments import LoadArguments, Search
from autoglm_throttle.cli.load_tests.planned_load import build_load, trial_load
from autoglm_throttle.cli.load_tests.probe_options import check_probes
from autoglm_throttle.cli.load_tests.problems import USAGE
from autoglm_throttle.cli.load_tests.report_output import run_info, write_report
from autoglm_throttle.cli.load_tests.run import run_load
from autoglm_throttle.cli.load_tests.signal_guard import SignalGuard, defer_signals
from autoglm_throttle.cli.output import PROBLEM_FOUND, to_stderr, write
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.generator import UserSchedule
from autoglm_throttle.traffic.peak import PeakResult, find_peak
from autoglm_throttle.traffic.plan import TraceShape, Users
from autoglm_throttle.traffic.report import Document, make
from autoglm_throttle.traffic.report.formatting import NO_DATA, duration, share
from autoglm_throttle.traffic.report.text_report import table
from autoglm_throttle.traffic.request_source import RequestSource

VERDICTS: Final = {0: PeakResult.HOLDS, 1: PeakResult.FAILS, 3: PeakResult.INVALID, 130: PeakResult.ABORTED}
"""Verdict on a trial, by its exit status."""

REJECTION_RATIOS: Final[tuple[Literal["limited_ratio", "shed_ratio"], ...]] = ("limited_ratio", "shed_ratio")

FIGURES: Final = ("goodput", "limited", "shed", "errors", "p99")
"""Printed for each trial."""

STATUSES: Final = {verdict: status for status, verdict in VERDICTS.items()}


def run(arguments: LoadArguments) -> int:
    """Send the load or search for the peak, and report the results.

    Returns:
        The exit status.

    Raises:
        TrafficError: it cannot start.
        KeyboardInterrupt: stopped before the first request was due.
    """
    if arguments.report_options.dry_run:
        write("\n".join(preview.load_preview(arguments)))
        return 0
    clients = arguments.load.priority_mix.clients
    if clients > 1 and arguments.send_options.target.identity_header is None:
        to_stderr(f"note: {preview.clients_text(clients, arguments.send_options)}\n")
    check_probes(arguments.probes)
    if isinstance(arguments.load.offer, Search):
        with defer_signals() as signal_guard:
            return _search(arguments, arguments.load.offer, signal_guard)
    load = build_load(arguments, arguments.load.offer)
    with defer_signals() as signal_guard:
        return write_report(_report(arguments, load, signal_guard), arguments.report_options)


def _report(
    arguments: LoadArguments, load: RequestSource | UserSchedule, signal_guard: SignalGuard
) -> Document:
    result = run_load(
        load,
        arguments.send_options,
        arguments.probes,
        quiet=arguments.report_options.quiet,
        signal_guard=signal_guard,
    )
    known = replace(
        run_info(
            arguments.report_options,
            arguments.send_options,
            arguments.load.shape_text,
            arguments.command,
            result.run_cost.loop,
        ),
        arrivals=_arrivals(arguments),
        seed=arguments.load.seed,
        mix=arguments.load.priority_mix.mix,
    )
    return make(result, known)


def _arrivals(arguments: LoadArguments) -> str:
    """Return the process that determines due times."""
    if isinstance(arguments.load.offer, Users):
        return "closed-loop"
    return "recorded" if isinstance(arguments.load.offer, TraceShape) else str(arguments.load.arrivals)


class _PeakTrials:
    """The trials of a search, one after another.

    Args:
        arguments: arguments of the search.
        trial_s: length of each.
        signal_guard: holds stop requests between two trials.
    """

    def __init__(self, arguments: LoadArguments, trial_s: float, signal_guard: SignalGuard) -> None:
        self._arguments = arguments
        self._trial_s = trial_s
        self._signal_guard = signal_guard
        self.reports: dict[float, Document] = {}
        """The last one by rate."""
        self.rows: list[tuple[str, ...]] = []
        """All of them, in their order."""
        self.error = ""
        """The error that ended the search early."""

    def make(self, rate_rps: float) -> PeakResult:
        """Run one trial.

        Raises:
            TrafficError: not even the first one could start.
        """
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
        """Return the report of one trial; None if it did not run.

        Raises:
            TrafficError: not even the first one could start.
        """
        try:
            load = trial_load(self._arguments, rate_rps, self._trial_s)
            return (
                None
                if self._signal_guard.stop_requested
                else _report(self._arguments, load, self._signal_guard)
            )
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
    write_status = write_report(report, arguments.report_options, more)
    return USAGE if write_status == USAGE else status


def _row(rate_rps: float, verdict: PeakResult, report: Document | None) -> tuple[str, ...]:
    """Format a trial's verdict and figures."""
    if report is None:
        return f"{rate_rps:g}/s", verdict, *[NO_DATA] * len(FIGURES)
    totals = report["totals"]
    shares = (totals["goodput"]["ratio"], *(totals[name] for name in REJECTION_RATIOS), totals["error_ratio"])
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
