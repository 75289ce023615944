"""Summarizes the demonstration in sentences and lists its problems."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from autoglm_throttle.traffic.request_log import RequestResult
from autoglm_throttle.traffic.results import Result, Tally
from autoglm_throttle.types import Priority
from examples.demo import screen
from examples.demo.scenario import OVERLOADED

REASON_MEANINGS = (
    "rate: the whole class was above its own nominal rate (429)",
    "user: one caller was above the user limit (429)",
    "gpu: the GPU was overloaded: the rates were reduced, or all requests were rejected (503)",
    "queue: the request would have waited too long, or the queue was full (503)",
)


@dataclass(slots=True)
class DemoObserver:
    """Extremes and newest values of the throttle's state during the run."""

    measure: str = "GPU"
    """Name of the load that was measured."""
    peak_pct: float = 0.0
    lowest_factor: float = 1.0
    reductions: int = 0
    """Reductions of the factor by more than a tenth; the service rate that bounds it varies by less."""
    steps: set[float] = field(default_factory=set)
    """Factors below 1 from the tier table, applied or not."""
    longest_queue: int = 0
    """Most queued requests at once."""
    has_exited: bool = False
    """Whether the service's process ended before the load did."""
    store: dict[str, Any] | None = None
    """Newest counts of the shared store; None where the user limits are kept in memory."""
    downstream: dict[str, Any] | None = None
    """Newest state of the downstream and its breaker."""
    _factor: float = 1.0

    def observe(self, state: dict[str, Any]) -> None:
        """Record one state of the throttle."""
        self.measure = state["measure"]
        self.peak_pct = max(self.peak_pct, state["utilization_pct"] or 0.0)
        factor = float(state["factor"])
        self.reductions += factor < 0.9 * self._factor
        self.lowest_factor = min(self.lowest_factor, factor)
        self._factor = factor
        if state["table_factor"] < 1.0:
            self.steps.add(state["table_factor"])
        if state["concurrency"] is not None:
            self.longest_queue = max(self.longest_queue, sum(state["concurrency"]["waiting"].values()))
        self.store = state["store"] or self.store
        self.downstream = state["downstream"] or self.downstream


def sentences(result: Result, observer: DemoObserver, store_name: str) -> list[str]:
    """Return the sentences on the run, the store and the downstream."""
    found = [sentence(result, observer)]
    if observer.store is not None:
        found.append(store_sentence(store_name, observer.store))
    if observer.downstream is not None:
        found.append(downstream_sentence(observer.downstream))
    return found


def sentence(result: Result, observer: DemoObserver) -> str:
    """Summarize the run in one sentence."""
    total = result.total()
    rejected = total.limited + total.shed
    high = Tally.of(row for (_, priority), row in result.tallies.items() if priority is Priority.HIGH)
    low = Tally.of(row for (_, priority), row in result.tallies.items() if priority is Priority.LOW)
    reductions = "never reduced the rates"
    if observer.reductions:
        times = _times(observer.reductions)
        reductions = f"reduced the rates {times}, down to {observer.lowest_factor:.2g} of nominal"
    factors = ", ".join(f"x {step:g}" for step in sorted(observer.steps, reverse=True))
    tiers = f" (tier table {factors})" if factors else ""
    queue = f", and queued up to {observer.longest_queue} requests" if observer.longest_queue else ""
    p95 = screen.seconds(total.response.percentile(0.95))
    return (
        f"{observer.measure} utilization rose to {observer.peak_pct:.0f} %{tiers}"
        f" and the throttle {reductions}{queue}:"
        f" of {total.sent} requests {total.admitted} were served, {rejected} were rejected,"
        f" {total.failed} failed;"
        f" {_share(high)} of the high and {_share(low)} of the low priority were admitted,"
        f" 95 % of all within {p95}."
    )


def store_sentence(name: str, counts: dict[str, Any]) -> str:
    """Summarize the calls of the user-limit store."""
    decisions, calls, denied_locally = counts["decisions"], counts["round_trips"], counts["deny_cache_hits"]
    text = f"{name} made {decisions} decisions on user limits in {calls} round trips"
    if denied_locally:
        text += f"; {denied_locally} repeated denials came from the local cache"
    if counts["fallbacks"]:
        text += f"; {counts['fallbacks']} were made without it"
    return text + "."


def downstream_sentence(state: dict[str, Any]) -> str:
    """Summarize the calls of the downstream."""
    opened, fallbacks = _times(state["openings"]), state["fallbacks"]
    return (
        f"The downstream {state['name']!r} failed {_times(state['failed'])} and its breaker opened {opened}:"
        f" {fallbacks.get('outage', 0)} calls were answered by a fallback during its outage and"
        f" {fallbacks.get('load', 0)} under load, {state['calls']} were made. It is {state['state']} now."
    )


def problems(result: Result, observer: DemoObserver, *, phased: bool) -> list[str]:
    """List the problems of the run; empty if there are none."""
    total = result.total()
    found = ["the process of the service ended"] if observer.has_exited else []
    if not result.balanced:
        found.append("the counts do not add up: a request was lost or counted twice")
    if total.failed:
        failures = [outcome for outcome in RequestResult if outcome.failed and total.results[outcome]]
        outcomes = ", ".join(f"{outcome.label} {total.results[outcome]}" for outcome in failures)
        found.append(f"{total.failed} requests failed: {outcomes}")
    if phased and not result.aborted:
        found += [f"no request was rejected at {name}" for name in OVERLOADED if not _rejected(result, name)]
        found += _downstream_problems(observer.downstream)
    return found


def _downstream_problems(state: dict[str, Any] | None) -> list[str]:
    """List the problems of the downstream's guard."""
    if state is None:
        return ["the downstream was never called"]
    found = []
    if not state["openings"]:
        found.append("the breaker of the downstream never opened")
    if not state["fallbacks"].get("outage"):
        found.append("no call was answered by a fallback while the downstream was unavailable")
    if state["state"] != "closed":
        found.append(f"the breaker of the downstream is {state['state']} at the end")
    return found


def _rejected(result: Result, name: str) -> int:
    segment = result.load.plan.names.index(name)
    row = Tally.of(result.tallies[segment, priority] for priority in Priority)
    return row.limited + row.shed


def _share(row: Tally) -> str:
    return f"{100.0 * row.admitted / row.sent:.0f} %" if row.sent else "none"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
