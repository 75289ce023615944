"""Carries out what ``load`` was asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from autoglm_throttle.cli.lab.faults import USAGE
from autoglm_throttle.cli.lab.load_asked import Asked, Search
from autoglm_throttle.cli.lab.offered import offered, trial
from autoglm_throttle.cli.lab.running import carry_out
from autoglm_throttle.cli.lab.telling import facts, tell
from autoglm_throttle.cli.output import aside, write
from autoglm_throttle.traffic.arrivals import timetable
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.generator import Roster
from autoglm_throttle.traffic.load import Load
from autoglm_throttle.traffic.peak import Peak, Verdict, find_peak
from autoglm_throttle.traffic.report import Document, make

VERDICTS: Final = {0: Verdict.HOLDS, 1: Verdict.FAILS, 3: Verdict.INVALID, 130: Verdict.ABORTED}
"""What the exit status of a trial says."""

STATUSES: Final = {verdict: status for status, verdict in VERDICTS.items()}


def run(asked: Asked) -> int:
    """Send the load, or search the peak, and tell what became of it.

    Returns:
        The exit status.

    Raises:
        TrafficError: it cannot begin.
        KeyboardInterrupt: stopped before the first request was due.
    """
    if asked.judging.dry_run:
        write("\n".join(_preview(asked)))
        return 0
    if isinstance(asked.offer, Search):
        return _search(asked, asked.offer)
    return tell(_report(asked, offered(asked, asked.offer)), asked.judging)


def _report(asked: Asked, what: Load | Roster) -> Document:
    result = carry_out(what, asked.sending, asked.looks, quiet=asked.judging.quiet)
    known = replace(
        facts(asked.judging, asked.shape_text, asked.command, result.effort.loop),
        arrivals=str(asked.arrivals),
        seed=asked.seed,
        mix=asked.crowd.mix,
    )
    return make(result, known)


def _search(asked: Asked, search: Search) -> int:
    """Search the greatest rate; the report is that of the greatest that held, or of the last trial."""
    reports: dict[float, Document] = {}

    def one(rate_rps: float) -> Verdict:
        try:
            report = _report(asked, trial(asked, rate_rps, search.trial_s))
        except KeyboardInterrupt:
            return Verdict.ABORTED
        except TrafficError as error:
            raise TrafficError(f"after {len(reports)} trials, at {rate_rps:g}/s: {error}") from None
        reports[rate_rps] = report
        verdict = VERDICTS[report["verdict"]["status"]]
        aside(f"{rate_rps:g}/s: {report['verdict']['text']}\n")
        return verdict

    peak = find_peak(one, search.low_rps, search.high_rps)
    told = reports.get(peak.holds_rps or 0.0) or reports.get(peak.trials[-1].rate_rps)
    if told is None:
        return STATUSES[peak.verdict]
    told["title"] = f"{told['title']}: {peak.text}"
    kept = tell(told, asked.judging, _trials(peak))
    return USAGE if kept == USAGE else STATUSES[peak.verdict]


def _trials(peak: Peak) -> list[str]:
    rows = [f"{trial.rate_rps:>10g}/s  {trial.verdict}" for trial in peak.trials]
    return ["", "trials, in their order", *rows, "", f"peak: {peak.text}"]


def _preview(asked: Asked) -> list[str]:
    """What would be sent."""
    target = asked.sending.target
    lines = [f"nothing is sent; this would go to {target.scheme}://{target.address}{target.base}"]
    if isinstance(asked.offer, Search):
        search = asked.offer
        bounds = f"{search.low_rps:g}/s, {search.high_rps:g}/s and rates between them"
        return [*lines, f"trials of {search.trial_s:g} s at {bounds}"]
    what = offered(asked, asked.offer)
    total = sum(asked.drawn.shares)
    requests = zip(asked.drawn.requests, asked.drawn.shares, strict=True)
    if what.requests is asked.drawn.requests:
        lines += [f"{share / total:>7.1%} {request.label}" for request, share in requests]
    else:
        lines.append(f"{len(what.requests)} different requests, by the trace")
    if isinstance(what, Roster):
        return [*lines, *(f"{users} users for {length_s:g} s" for users, length_s in what.users.steps)]
    return [*lines, "", *timetable(what.plan)]
