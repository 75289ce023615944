"""Summarizes the demonstration in sentences and lists its problems."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from autoglm_throttle.model import Priority
from autoglm_throttle.traffic.books import Row
from autoglm_throttle.traffic.demo import screen
from autoglm_throttle.traffic.demo.scenario import OVERLOADED
from autoglm_throttle.traffic.ending import Ending
from autoglm_throttle.traffic.result import Result

MEANINGS = (
    "rate: the whole class was above its own nominal rate (429)",
    "user: one caller was above the user limit (429)",
    "gpu: the card was too busy: the rates were cut, or the door was shut (503)",
    "queue: the answer would have come too late to be of use, or the line was full (503)",
)


@dataclass(slots=True)
class Watched:
    """Extremes and newest values of the throttle's state during the run."""

    peak_pct: float = 0.0
    lowest_factor: float = 1.0
    cuts: int = 0
    """Reductions of the factor by more than a tenth; the service rate that bounds it varies by less."""
    steps: set[float] = field(default_factory=set)
    """Factors below 1 from the tier table, applied or not."""
    longest: int = 0
    """Most queued requests at once."""
    died: bool = False
    """Whether the service's process ended before the load did."""
    store: dict[str, Any] | None = None
    """Newest counts of the shared store; None where the user limits are kept in memory."""
    downstream: dict[str, Any] | None = None
    """Newest state of the downstream and its breaker."""
    _factor: float = 1.0

    def see(self, state: dict[str, Any]) -> None:
        """Record one state of the throttle."""
        self.peak_pct = max(self.peak_pct, state["utilization_pct"] or 0.0)
        factor = float(state["factor"])
        self.cuts += factor < 0.9 * self._factor
        self.lowest_factor = min(self.lowest_factor, factor)
        self._factor = factor
        if state["table_factor"] < 1.0:
            self.steps.add(state["table_factor"])
        if state["gate"] is not None:
            self.longest = max(self.longest, sum(state["gate"]["waiting"].values()))
        self.store = state["store"] or self.store
        self.downstream = state["downstream"] or self.downstream


def sentence(result: Result, watched: Watched) -> str:
    """Summarize the run in one sentence."""
    total = result.books.total()
    refused = total.limited + total.rejected
    high = Row.of(row for (_, priority), row in result.books.rows.items() if priority is Priority.HIGH)
    low = Row.of(row for (_, priority), row in result.books.rows.items() if priority is Priority.LOW)
    cut = "never cut the rates"
    if watched.cuts:
        cut = f"cut the rates {_times(watched.cuts)}, down to {watched.lowest_factor:.2g} of nominal"
    patience = screen.seconds(total.response.percentile(0.95))
    return (
        f"The card rose to {watched.peak_pct:.0f} %{_table(watched)} and the throttle {cut}{_line(watched)}:"
        f" of {total.sent} requests {total.admitted} were served, {refused} were told when to come back,"
        f" {total.failed} failed; {_share(high)} of the high and {_share(low)} of the low priority got in,"
        f" 95 % of all within {patience}."
    )


def of_the_store(name: str, counts: dict[str, Any]) -> str:
    """Summarize the calls of the user-limit store."""
    decisions, calls, spared = counts["decisions"], counts["round_trips"], counts["spared"]
    text = f"{name} took {decisions} decisions on user limits in {calls} round trips"
    if spared:
        text += f", and was spared {spared} about callers whom it had just refused"
    if counts["without"]:
        text += f"; {counts['without']} were taken without it"
    return text + "."


def of_the_downstream(state: dict[str, Any]) -> str:
    """Summarize the calls of the downstream."""
    opened, instead = _times(state["openings"]), state["instead"]
    return (
        f"The downstream {state['name']!r} failed {_times(state['failed'])} and its breaker opened {opened}:"
        f" {instead.get('trouble', 0)} calls were answered from memory in its trouble and"
        f" {instead.get('load', 0)} under load, {state['calls']} were made. It is {state['state']} now."
    )


def problems(result: Result, watched: Watched, *, phased: bool) -> list[str]:
    """List the problems of the run; empty if there are none."""
    total = result.books.total()
    found = ["the process of the service ended"] if watched.died else []
    if not result.balanced:
        found.append("the books do not balance: a request was lost or counted twice")
    if total.failed:
        failures = [ending for ending in Ending if ending.failed and total.endings[ending]]
        endings = ", ".join(f"{ending.label} {total.endings[ending]}" for ending in failures)
        found.append(f"{total.failed} requests failed: {endings}")
    if phased and not result.aborted:
        found += [f"nobody was refused at {name}" for name in OVERLOADED if not _refused(result, name)]
        found += _unguarded(watched.downstream)
    return found


def _unguarded(state: dict[str, Any] | None) -> list[str]:
    """List the problems of the downstream's guard."""
    if state is None:
        return ["nobody asked the downstream"]
    found = []
    if not state["openings"]:
        found.append("the breaker of the downstream never opened")
    if not state["instead"].get("trouble"):
        found.append("nothing was answered from memory while the downstream was in trouble")
    if state["state"] != "closed":
        found.append(f"the breaker of the downstream is {state['state']} at the end")
    return found


def _refused(result: Result, name: str) -> int:
    segment = result.books.segments.index(name)
    row = Row.of(result.books.rows[segment, priority] for priority in Priority)
    return row.limited + row.rejected


def _table(watched: Watched) -> str:
    said = ", ".join(f"x {step:g}" for step in sorted(watched.steps, reverse=True))
    return f" (by the table {said})" if said else ""


def _line(watched: Watched) -> str:
    return f", and let up to {watched.longest} wait in line" if watched.longest else ""


def _share(row: Row) -> str:
    return f"{100.0 * row.admitted / row.sent:.0f} %" if row.sent else "none"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
