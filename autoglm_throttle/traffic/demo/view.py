"""The live view: a frame twice a second on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import os
from typing import Any, TextIO

from autoglm_throttle.traffic.demo import screen
from autoglm_throttle.traffic.demo.counts import RecentCounts
from autoglm_throttle.traffic.demo.scenario import Scenario
from autoglm_throttle.traffic.generator import OpenLoopSender
from autoglm_throttle.types import Policy, Priority

TURN_S = 0.5
"""Seconds per frame: faster than people read, slower than it flickers."""

PLAIN_TURNS = 10
"""Turns between two lines on output that is no terminal."""


class DemoView:
    """Writes frames over each other on a terminal, and occasional lines to other outputs."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._terminal = out.isatty() and os.environ.get("TERM") != "dumb"
        self._color = self._terminal and "NO_COLOR" not in os.environ
        self._lines = 0
        self._turns = 0

    def show(self, frame: screen.ScreenFrame) -> None:
        """Show a frame, if it is due."""
        if self._terminal:
            lines = screen.draw(frame, color=self._color)
            up = f"\x1b[{self._lines}A" if self._lines else ""
            self._out.write(up + "".join(f"\x1b[2K{line}\n" for line in lines))
            self._lines = len(lines)
        elif self._turns % PLAIN_TURNS == 0:
            self._out.write(screen.plain(frame) + "\n")
        self._turns += 1
        self._out.flush()


def build_frame(
    scenario: Scenario, generator: OpenLoopSender, recent: RecentCounts, state: dict[str, Any]
) -> screen.ScreenFrame:
    """Build a frame from the generator, the recent results and the throttle's state."""
    span_s = TURN_S * recent.turns
    concurrency = state["concurrency"]
    classes = {}
    for priority in Priority:
        tally = recent.of(priority)
        classes[priority] = screen.ClassFrame(
            rate_rps=state["rate_rps"][priority.label],
            waiting=None if concurrency is None else concurrency["waiting"][priority.label],
            admitted_rps=tally.admitted / span_s,
            limited_rps=tally.limited / span_s,
            shed_rps=tally.shed / span_s,
            p95_s=tally.response.percentile(0.95),
        )
    return screen.ScreenFrame(
        progress=_progress(scenario, generator, recent.offered(generator.launched) / span_s),
        gpu=screen.GpuFrame(state["utilization_pct"], state["power_w"]),
        control=screen.ControlFrame(
            screen.TierTableFrame(state["tiers"], state["table_factor"], outcome_of(state)),
            state["factor"],
            state["cause"],
            state["budget_rps"],
        ),
        concurrency=None if concurrency is None else _concurrency(concurrency),
        classes=classes,
        downstream=_downstream(state["downstream"]),
    )


def _progress(scenario: Scenario, generator: OpenLoopSender, offered_rps: float) -> screen.ProgressFrame:
    plan = scenario.plan
    return screen.ProgressFrame(
        elapsed_s=max(0.0, generator.elapsed_s),
        length_s=scenario.length_s,
        phase=plan.names[plan.segments[generator.launched - 1]] if generator.launched else plan.names[0],
        offered_rps=offered_rps,
        open=generator.in_flight,
    )


def outcome_of(state: dict[str, Any]) -> str:
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


def _downstream(state: dict[str, Any]) -> screen.DownstreamFrame | None:
    if not state:
        return None
    fallback_count = sum(state["fallbacks"].values())
    return screen.DownstreamFrame(
        state["name"], state["state"], state["retry_after_s"], state["level"], fallback_count
    )


def _concurrency(concurrency: dict[str, Any]) -> screen.ConcurrencyFrame:
    return screen.ConcurrencyFrame(concurrency["in_flight"], concurrency["limit"], concurrency["service_rps"])
