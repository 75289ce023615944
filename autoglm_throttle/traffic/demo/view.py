"""The live view: a frame twice a second on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import os
from typing import Any, TextIO

from autoglm_throttle.model import Policy, Priority
from autoglm_throttle.traffic.demo import screen
from autoglm_throttle.traffic.demo.scenario import Scenario
from autoglm_throttle.traffic.demo.tally import Lately
from autoglm_throttle.traffic.generator import Generator

TURN_S = 0.5
"""Seconds per frame: faster than people read, slower than it flickers."""

PLAIN_TURNS = 10
"""Turns between two lines on output that is no terminal."""


class View:
    """Writes frames over each other on a terminal, and occasional lines to other outputs."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._terminal = out.isatty() and os.environ.get("TERM") != "dumb"
        self._color = self._terminal and "NO_COLOR" not in os.environ
        self._lines = 0
        self._turns = 0

    def show(self, frame: screen.Frame) -> None:
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


def frame(scenario: Scenario, generator: Generator, lately: Lately, state: dict[str, Any]) -> screen.Frame:
    """Build a frame from the generator, the recent results and the throttle's state."""
    plan, elapsed_s = scenario.plan, generator.elapsed_s
    span_s = TURN_S * lately.turns
    gate = state["gate"]
    classes = {}
    for priority in Priority:
        tally = lately.of(priority)
        classes[priority] = screen.ClassFrame(
            rate_rps=state["rate_rps"][priority.label],
            waiting=None if gate is None else gate["waiting"][priority.label],
            admitted_rps=tally.admitted / span_s,
            limited_rps=tally.limited / span_s,
            rejected_rps=tally.rejected / span_s,
            p95_s=tally.response.percentile(0.95),
        )
    return screen.Frame(
        elapsed_s=max(0.0, elapsed_s),
        length_s=scenario.length_s,
        phase=plan.names[plan.segments[generator.launched - 1]] if generator.launched else plan.names[0],
        offered_rps=lately.offered(generator.launched) / span_s,
        open=generator.in_flight,
        utilization_pct=state["utilization_pct"],
        power_w=state["power_w"],
        table=screen.TableFrame(state["tiers"], state["table_factor"], fate(state)),
        factor=state["factor"],
        why=state["why"],
        budget_rps=state["budget_rps"],
        gate=None if gate is None else _gate(gate),
        classes=classes,
        downstream=_downstream(state["downstream"]),
    )


def fate(state: dict[str, Any]) -> str:
    """Describe the use of the tier table's factor, and the reason."""
    policy = Policy(state["policy"])
    if policy is Policy.TIERS:
        return "taken literally: policy tiers"
    if policy is not Policy.ADAPTIVE:
        return f"not asked: policy {policy}"
    if state["armed"]:
        return "armed: requests wait; never below what the GPU completes"
    if any(state["gate"]["waiting"].values()):
        return "not armed yet: requests wait, but not for three samples"
    return "not applied: nobody waits"


def _downstream(state: dict[str, Any]) -> screen.DownstreamFrame | None:
    if not state:
        return None
    instead = sum(state["instead"].values())
    return screen.DownstreamFrame(
        state["name"], state["state"], state["retry_after_s"], state["level"], instead
    )


def _gate(gate: dict[str, Any]) -> screen.GateFrame:
    return screen.GateFrame(gate["in_flight"], gate["limit"], gate["service_rps"])
