"""Log event of the learned objective."""

from __future__ import annotations

import logging

from autoglm_throttle.events.log_event import LogEvent


def objective_learned(slo_s: float, slo_before_s: float) -> LogEvent:
    """Build the event, logged once, that the learned objective is far from the one at the start.

    Args:
        slo_s: the objective in force, in seconds.
        slo_before_s: the objective until it was learned.
    """
    text = (
        f"SLO_S is not set: the objective is {slo_s:.1f} s now, learned from responses under light load, "
        f"no longer {slo_before_s:g} s; set SLO_S to the time that your callers accept"
    )
    return LogEvent(
        "objective_learned", logging.WARNING, text, {"slo_s": slo_s, "slo_before_s": slo_before_s}
    )
