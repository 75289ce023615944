"""Runs ``load``: one load, or the trials of a peak search."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final, Literal

from autoglm_throttle.cli.lab import preview
from autoglm_throttle.cli.lab.faults import USAGE
from autoglm_throttle.cli.lab.holding import Held, holding
from autoglm_throttle.cli.lab.load_asked import Asked, Search
from autoglm_throttle.cli.lab.offered import offered, trial
from autoglm_throttle.cli.lab.running import carry_out
from autoglm_throttle.cli.lab.telling import facts, tell
from autoglm_throttle.cli.lab.watching import ready
from autoglm_throttle.cli.output import PROBLEM_FOUND, aside, write
from autoglm_throttle.traffic.arrivals import TraceShape, Users
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.generator import Roster
from autoglm_throttle.traffic.load import Load
from autoglm_throttle.traffic.peak import Verdict, find_peak
from autoglm_throttle.traffic.report import Document, make
from autoglm_throttle.traffic.report.figures import NOTHING, duration, share
from autoglm_throttle.traffic.report.lines import table

VERDICTS: Final = {0: Verdict.HOLDS, 1: Verdict.FAILS, 3: Verdict.INVALID, 130: Verdict.ABORTED}
"""Verdict on a trial, by its exit status."""

REFUSED: Final[tuple[Literal["limited_ratio", "rejected_ratio"], ...]] = ("limited_ratio", "rejected_ratio")

FIGURES: Final = ("goodput", "limited", "rejected", "errors", "p99")
"""Printed for each trial."""

STATUSES: Final = {verdict: status for status, verdict in VERDICTS.items()}


def run(asked: Asked) -> int:
    """Send the load or search for the peak, and report the results.

    Returns:
        The exit status.

    Raises:
        TrafficError: it cannot start.
        KeyboardInterrupt: stopped before the first request was due.
    """
    if asked.judging.dry_run:
        write("\n".join(preview.of_load(asked)))
        return 0
    if asked.crowd.clients > 1 and asked.sending.target.identity_header is None:
        aside(f"note: {preview.clients(asked.crowd.clients, asked.sending)}\n")
    ready(asked.looks)
    if isinstance(asked.offer, Search):
        with holding() as held:
            return _search(asked, asked.offer, held)
    what = offered(asked, asked.offer)
    with holding() as held:
        return tell(_report(asked, what, held), asked.judging)


def _report(asked: Asked, what: Load | Roster, held: Held) -> Document:
    result = carry_out(what, asked.sending, asked.looks, quiet=asked.judging.quiet, held=held)
    known = replace(
        facts(asked.judging, asked.sending, asked.shape_text, asked.command, result.effort.loop),
        arrivals=_arrivals(asked),
        seed=asked.seed,
        mix=asked.crowd.mix,
    )
    return make(result, known)


def _arrivals(asked: Asked) -> str:
    """Return the process that determines due times."""
    if isinstance(asked.offer, Users):
        return "closed-loop"
    return "recorded" if isinstance(asked.offer, TraceShape) else str(asked.arrivals)


class _Trials:
    """The trials of a search, one after another.

    Args:
        asked: arguments of the search.
        trial_s: length of each.
        held: stop requests between two trials.
    """

    def __init__(self, asked: Asked, trial_s: float, held: Held) -> None:
        self._asked = asked
        self._trial_s = trial_s
        self._held = held
        self.reports: dict[float, Document] = {}
        """The last one by rate."""
        self.rows: list[tuple[str, ...]] = []
        """All of them, in their order."""
        self.lost = ""
        """The error that ended the search early."""

    def make(self, rate_rps: float) -> Verdict:
        """Run one trial.

        Raises:
            TrafficError: not even the first one could start.
        """
        report = self._report(rate_rps)
        verdict = Verdict.ABORTED if report is None else VERDICTS[report["verdict"]["status"]]
        self.rows.append(_row(rate_rps, verdict, report))
        if report is not None:
            self.reports[rate_rps] = report
            figures = ", ".join(
                f"{name} {cell}" for name, cell in zip(FIGURES, self.rows[-1][2:], strict=True)
            )
            aside(f"{rate_rps:g}/s: {report['verdict']['text']} ({figures})\n")
        return verdict

    def _report(self, rate_rps: float) -> Document | None:
        """Return the report of one trial; None if it did not run.

        Raises:
            TrafficError: not even the first one could start.
        """
        try:
            load = trial(self._asked, rate_rps, self._trial_s)
            return None if self._held.pressed else _report(self._asked, load, self._held)
        except KeyboardInterrupt:
            return None
        except TrafficError as error:
            fault = f"after {len(self.reports)} trials, at {rate_rps:g}/s: {error}"
            if not self.reports:
                raise TrafficError(fault) from None
            self.lost = fault  # nothing was sent: no result at this rate, earlier results stay
            return None


def _search(asked: Asked, search: Search, held: Held) -> int:
    """Search for the highest rate. The report is of the highest rate that held, or of the last trial."""
    trials = _Trials(asked, search.trial_s, held)
    peak = find_peak(trials.make, search.low_rps, search.high_rps)
    status = PROBLEM_FOUND if trials.lost else STATUSES[peak.verdict]
    if not trials.reports:
        return status
    told = trials.reports.get(peak.holds_rps or 0.0) or list(trials.reports.values())[-1]
    text = f"{peak.text}; {trials.lost}" if trials.lost else peak.text
    told["title"] = f"{told['title']}: {text}"
    rows = [("trial", "verdict", *FIGURES), *trials.rows]
    more = ["", *table(rows), "", *_hint(trials.reports.values()), f"peak: {text}"]
    kept = tell(told, asked.judging, more)
    return USAGE if kept == USAGE else status


def _row(rate_rps: float, verdict: Verdict, report: Document | None) -> tuple[str, ...]:
    """Format a trial's verdict and figures."""
    if report is None:
        return f"{rate_rps:g}/s", verdict, *[NOTHING] * len(FIGURES)
    totals = report["totals"]
    shares = (totals["goodput"]["ratio"], *(totals[name] for name in REFUSED), totals["error_ratio"])
    return f"{rate_rps:g}/s", verdict, *map(share, shares), duration(totals["response"]["p99_s"])


def _hint(reports: Iterable[Document]) -> list[str]:
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
        "most of what failed was refused by a limit of the caller (429): this is the peak of the limits, not"
        " of the service; see --clients with --identity-header, or raise them"
    ]
