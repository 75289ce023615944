"""The live view, twice a second on a terminal and a line every few seconds elsewhere; the final table."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TextIO

from autoglm_throttle.traffic.request_log import RequestResult
from autoglm_throttle.traffic.results import Result, Tally
from autoglm_throttle.types import Policy, Priority

TURN_S = 0.5
"""Seconds per frame: faster than people read, slower than it flickers."""

PLAIN_TURNS = 10
"""Turns between two lines on output that is no terminal."""

RECENT_TURNS = 4
"""Turns in the recent window: 2 s at two turns a second, enough for a meaningful percentile."""

BAR = 60
"""Characters for 0..100 %: enough to label tier marks that are 5 % apart."""

GREEN, YELLOW, RED, RESET = "\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[0m"


class DemoCounts(NamedTuple):
    """Result counts of one priority."""

    admitted: int
    limited: int
    shed: int
    failed: int
    p95_s: float | None
    """95th percentile of the response times of served requests; None without one."""


class RecentCounts:
    """Results of the last few turns."""

    def __init__(self, priorities: bytes) -> None:
        self._priorities = priorities
        self._turns: deque[list[tuple[int, RequestResult, float]]] = deque(maxlen=RECENT_TURNS)
        self._launched: deque[int] = deque(maxlen=RECENT_TURNS)
        self.turn(0)

    @property
    def turns(self) -> int:
        """Number of turns in the window, including the running one."""
        return len(self._turns)

    def turn(self, launched: int) -> None:
        """Begin a new turn; ``launched`` requests were sent before it."""
        self._turns.append([])
        self._launched.append(launched)

    def offered(self, launched: int) -> int:
        """Requests sent within the window, given the total sent."""
        return launched - self._launched[0]

    def record(self, index: int, outcome: RequestResult, response_s: float) -> None:
        """Store one result; called by the generator."""
        self._turns[-1].append((self._priorities[index], outcome, response_s))

    def of(self, priority: Priority) -> DemoCounts:
        """Count the results of a priority in the window."""
        results = [result for turn in self._turns for result in turn if result[0] == priority]
        served_s = sorted(response_s for _, outcome, response_s in results if outcome.served)
        limited, shed = (
            sum(outcome is kind for _, outcome, _ in results)
            for kind in (RequestResult.LIMITED, RequestResult.SHED)
        )
        p95_s = served_s[math.ceil(0.95 * len(served_s)) - 1] if served_s else None
        return DemoCounts(len(served_s), limited, shed, len(results) - len(served_s) - limited - shed, p95_s)


@dataclass(frozen=True, slots=True)
class ScreenFrame:
    """Content of the live view."""

    elapsed_s: float
    length_s: float
    phase: str
    offered_rps: float
    open: int
    """Requests that have not ended for their clients."""
    state: Mapping[str, Any]
    """State of the throttle, as the service reports it."""
    recent: Mapping[Priority, DemoCounts]
    span_s: float
    """Length of the window of ``recent``."""


class DemoView:
    """Writes frames over each other on a terminal, and occasional lines to other outputs."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._terminal = out.isatty() and os.environ.get("TERM") != "dumb"
        self._color = self._terminal and "NO_COLOR" not in os.environ
        self._lines = 0
        self._turns = 0

    def show(self, frame: ScreenFrame) -> None:
        """Show a frame, if it is due."""
        if self._terminal:
            lines = draw(frame, color=self._color)
            up = f"\x1b[{self._lines}A" if self._lines else ""
            self._out.write(up + "".join(f"\x1b[2K{line}\n" for line in lines))
            self._lines = len(lines)
        elif self._turns % PLAIN_TURNS == 0:
            self._out.write(plain(frame) + "\n")
        self._turns += 1
        self._out.flush()


def draw(frame: ScreenFrame, *, color: bool) -> list[str]:
    """Format the live view: always the same number of lines, at most 80 characters each."""
    state, tiers = frame.state, frame.state["tiers"]
    gpu = "unknown" if state["utilization_pct"] is None else f"{state['utilization_pct']:5.1f} %"
    power = "" if state["power_w"] is None else f"{state['power_w']:5.0f} W"
    budget = "" if state["budget_rps"] is None else f"   at most {state['budget_rps']:.0f}/s in all"
    factor = _colored(f"{state['factor']:4.2f}", _shade(1.0 - state["factor"]), color)
    lines = [
        f"{frame.elapsed_s:5.1f} of {frame.length_s:.0f} s   phase {frame.phase:<9}"
        f" offered {frame.offered_rps:6.0f}/s   open {frame.open:5}",
        f"{state['measure']:<8}[{bar(state['utilization_pct'] or 0.0, tiers, color=color)}] {gpu}",
        f"{power:8}" + scale(tiers),
        "table   "
        + ", ".join(f"above {edge:g} % x {factor:g}" for edge, factor in tiers)
        + f"; now x {state['table_factor']:g}",
        f"        {outcome_of(state)}",
        f"factor  {factor}  ({state['cause']}){budget}",
        f"limit   {_concurrency(state['concurrency'])}",
        f"guard   {_colored(_guard(state['downstream']), _guard_color(state['downstream']), color)}",
        "         rate now   waiting  admitted   limited      shed       p95",
    ]
    for priority, one in frame.recent.items():
        concurrency = state["concurrency"]
        waiting = "-" if concurrency is None else str(concurrency["waiting"][priority.label])
        rates = "".join(f" {count / frame.span_s:7.0f}/s" for count in (one.admitted, one.limited, one.shed))
        rate_rps = state["rate_rps"][priority.label]
        lines.append(f"{priority.label:<8}{rate_rps:7.0f}/s {waiting:>9}{rates} {seconds(one.p95_s):>9}")
    return lines


def plain(frame: ScreenFrame) -> str:
    """Format the live view as one line, for output that is no terminal."""
    state = frame.state
    gpu = "unknown" if state["utilization_pct"] is None else f"{state['utilization_pct']:.0f} %"
    classes = "  ".join(
        f"{priority.label} "
        + "/".join(f"{count / frame.span_s:.0f}" for count in (one.admitted, one.limited, one.shed))
        + f" p95 {seconds(one.p95_s)}"
        for priority, one in frame.recent.items()
    )
    return (
        f"{frame.elapsed_s:5.1f} s  {frame.phase:<8}  {state['measure']} {gpu:>5}"
        f"  factor {state['factor']:4.2f}"
        f"  table {state['table_factor']:g}, {outcome_of(state)}  limit {_concurrency(state['concurrency'])}"
        f"  guard {_guard(state['downstream'])}  admitted/limited/shed per s: {classes}"
    )


def outcome_of(state: Mapping[str, Any]) -> str:
    """Describe the use of the tier table's factor, and the reason."""
    policy = Policy(state["policy"])
    if policy is Policy.TIERS:
        return "applied as it is: policy tiers"
    if policy is not Policy.ADAPTIVE:
        return f"not used: policy {policy}"
    if state["armed"]:
        return "armed: requests are queued; never below the completion rate"
    if any(state["concurrency"]["waiting"].values()):
        return "not armed yet: requests were queued for fewer than three samples"
    return "not applied: no request is queued"


def _concurrency(limiter: Mapping[str, Any] | None) -> str:
    if limiter is None:
        return "none under this policy"
    service = "not known yet" if limiter["service_rps"] is None else f"{limiter['service_rps']:.0f}/s"
    queued = sum(limiter["waiting"].values())
    return f"{limiter['in_flight']} of {limiter['limit']:.0f} in flight, {queued} queued, service {service}"


def _guard(downstream: Mapping[str, Any]) -> str:
    if not downstream:
        return "no call to the downstream yet"
    probe = f", probe in {downstream['retry_after_s']:.1f} s" if downstream["retry_after_s"] else ""
    fallbacks = f"{sum(downstream['fallbacks'].values())} by fallback"
    return (
        f"{downstream['name']} {downstream['state']}{probe}; {fallbacks}; degradation {downstream['level']}"
    )


def _guard_color(downstream: Mapping[str, Any]) -> str:
    return {"closed": GREEN, "open": RED}.get(downstream.get("state", "closed"), YELLOW)


def bar(utilization_pct: float, tiers: Sequence[Sequence[float]], *, color: bool) -> str:
    """Draw a bar of 0..100 % with a mark where each tier begins."""
    filled = round(BAR * min(100.0, utilization_pct) / 100.0)
    marks = {min(BAR - 1, int(BAR * edge / 100.0)) for edge, _ in tiers}
    cells = [("|" if cell in marks else "#" if cell < filled else " ") for cell in range(BAR)]
    passed = sum(utilization_pct > edge for edge, _ in tiers)
    return _colored("".join(cells), _shade(passed / max(1, len(tiers))), color)


def scale(tiers: Sequence[Sequence[float]]) -> str:
    """Format the numbers below the tier marks, shifted to the right where two would overlap."""
    text = ""
    for edge, _ in tiers:
        text = text.ljust(1 + min(BAR - 1, int(BAR * edge / 100.0)))
        text += f"{' ' if text[-1:].strip() else ''}{edge:g}"
    return text


def _shade(badness: float) -> str:
    return GREEN if badness <= 0.0 else RED if badness >= 1.0 else YELLOW


def _colored(text: str, shade: str, color: bool) -> str:
    return f"{shade}{text}{RESET}" if color else text


def seconds(duration_s: float | None) -> str:
    """Format a duration in ms or s; a dash for None."""
    if duration_s is None:
        return "-"
    return f"{1e3 * duration_s:.0f} ms" if duration_s < 1.0 else f"{duration_s:.1f} s"


HEADINGS = ("phase", "priority", "sent", "admitted", "limited", "shed", "failed", "p95", "reasons")


def table(result: Result) -> list[str]:
    """Format the results by phase and priority, and their sum."""
    rows: list[tuple[str, ...]] = [HEADINGS]
    for segment, name in enumerate(result.load.plan.names):
        rows += [
            _cells(name, priority.label, result.tallies[segment, priority])
            for priority in Priority
            if result.tallies[segment, priority].sent
        ]
    rows.append(_cells("all", "", result.total()))
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    return [_line(row, widths) for row in rows]


def _cells(name: str, label: str, row: Tally) -> tuple[str, ...]:
    numbers = (row.sent, row.admitted, row.limited, row.shed, row.failed)
    reasons = ", ".join(f"{reason or 'not given'} {count}" for reason, count in row.reasons.most_common())
    return (name, label, *map(str, numbers), seconds(row.response.percentile(0.95)), reasons or "-")


def _line(cells: Iterable[str], widths: Sequence[int]) -> str:
    padded = [
        cell.rjust(width) if 2 <= column <= 7 else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(padded).rstrip()
