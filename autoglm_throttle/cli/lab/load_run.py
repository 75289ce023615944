"""Carries out what ``load`` was asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from autoglm_throttle.cli.lab.faults import USAGE
from autoglm_throttle.cli.lab.holding import Held, holding
from autoglm_throttle.cli.lab.load_asked import Asked, Search
from autoglm_throttle.cli.lab.offered import offered, trial
from autoglm_throttle.cli.lab.running import carry_out
from autoglm_throttle.cli.lab.telling import facts, tell
from autoglm_throttle.cli.output import PROBLEM_FOUND, aside, write
from autoglm_throttle.traffic.arrivals import TraceShape, Users, timetable
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
        with holding() as held:
            return _search(asked, asked.offer, held)
    what = offered(asked, asked.offer)
    with holding() as held:
        return tell(_report(asked, what, held), asked.judging)


def _report(asked: Asked, what: Load | Roster, held: Held) -> Document:
    result = carry_out(what, asked.sending, asked.looks, quiet=asked.judging.quiet, held=held)
    known = replace(
        facts(asked.judging, asked.shape_text, asked.command, result.effort.loop),
        arrivals=_arrivals(asked),
        seed=asked.seed,
        mix=asked.crowd.mix,
    )
    return make(result, known)


def _arrivals(asked: Asked) -> str:
    """What decides when a request is due."""
    if isinstance(asked.offer, Users):
        return "closed-loop"
    return "recorded" if isinstance(asked.offer, TraceShape) else str(asked.arrivals)


class _Trials:
    """The trials of a search, one after another.

    Args:
        asked: what is searched.
        trial_s: length of each.
        held: what was asked for between two.
    """

    def __init__(self, asked: Asked, trial_s: float, held: Held) -> None:
        self._asked = asked
        self._trial_s = trial_s
        self._held = held
        self.reports: dict[float, Document] = {}
        """The last one by rate."""
        self.lost = ""
        """Why the search could not go on."""

    def make(self, rate_rps: float) -> Verdict:
        """Make one.

        Raises:
            TrafficError: not even the first one could begin.
        """
        try:
            load = trial(self._asked, rate_rps, self._trial_s)
            if self._held.pressed:
                return Verdict.ABORTED
            report = _report(self._asked, load, self._held)
        except KeyboardInterrupt:
            return Verdict.ABORTED
        except TrafficError as error:
            fault = f"after {len(self.reports)} trials, at {rate_rps:g}/s: {error}"
            if not self.reports:
                raise TrafficError(fault) from None
            self.lost = fault  # nothing was sent: it says nothing of this rate, but what is known is kept
            return Verdict.ABORTED
        self.reports[rate_rps] = report
        aside(f"{rate_rps:g}/s: {report['verdict']['text']}\n")
        return VERDICTS[report["verdict"]["status"]]


def _search(asked: Asked, search: Search, held: Held) -> int:
    """Search the greatest rate; the report is that of the greatest that held, or of the last trial."""
    trials = _Trials(asked, search.trial_s, held)
    peak = find_peak(trials.make, search.low_rps, search.high_rps)
    status = PROBLEM_FOUND if trials.lost else STATUSES[peak.verdict]
    if not trials.reports:
        return status
    told = trials.reports.get(peak.holds_rps or 0.0) or list(trials.reports.values())[-1]
    text = f"{peak.text}; {trials.lost}" if trials.lost else peak.text
    told["title"] = f"{told['title']}: {text}"
    kept = tell(told, asked.judging, [*_trials(peak), f"peak: {text}"])
    return USAGE if kept == USAGE else status


def _trials(peak: Peak) -> list[str]:
    rows = [f"{trial.rate_rps:>10g}/s  {trial.verdict}" for trial in peak.trials]
    return ["", "trials, in their order", *rows, ""]


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
