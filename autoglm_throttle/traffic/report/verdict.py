"""The verdict: whether a run may be believed, whether it reached its objectives, and the exit status."""

from __future__ import annotations

from collections.abc import Sequence

from autoglm_throttle.traffic.report.schema import GeneratorPart, Judged, VerdictPart

HELD = 0
"""All objectives hold, or there were none."""
FAILED = 1
"""An objective failed."""
NOT_VALID = 3
"""The generator or the machine was too slow to judge the service."""
INTERRUPTED = 130
"""Stopped by Ctrl-C, as shells say it."""

LAG_P99_S = 0.010
"""Later launches than this are another load than the one that was planned; ten times the tick."""

OVERRUN = 0.01
"""Share of the plan by which the last launch may be late; of a short plan, as much as any other launch."""

CPU_SHARE = 0.95
"""Of one core: above it the generator itself is what was measured."""


def doubts(generator: GeneratorPart, duration_s: float) -> list[str]:
    """Why a run is not valid, each with what to do about it; none if it is.

    Args:
        generator: what the generator needed.
        duration_s: length of the plan.
    """
    found: list[str] = []
    lag_s = generator["lag"]["p99_s"]
    if lag_s is not None and lag_s > LAG_P99_S:
        found.append(
            f"requests left late (lag p99 {lag_s * 1e3:.1f} ms, allowed {LAG_P99_S * 1e3:.0f} ms):"
            " free a core for the generator, use more processes or lower the rate"
        )
    allowed_s = max(OVERRUN * duration_s, LAG_P99_S)
    if generator["overrun_s"] > allowed_s:
        found.append(
            f"sending ran over by {generator['overrun_s']:.2f} s of {duration_s:g} s (allowed"
            f" {allowed_s:.2g} s): use more processes or lower the rate"
        )
    share = generator["cpu_share"]
    if share is not None and share > CPU_SHARE:
        found.append(
            f"the generator used {share:.0%} of a core (allowed {CPU_SHARE:.0%}):"
            " use more processes, plain http or smaller answers"
        )
    return found


def verdict(judged: Sequence[Judged], doubted: Sequence[str], *, aborted: bool) -> VerdictPart:
    """The judgement on a run.

    An interrupted run says so whatever else it shows; one that is not valid is neither good nor bad.
    """
    failed = [one["term"] for one in judged if not one["holds"]]
    if aborted:
        status, text = INTERRUPTED, "interrupted: what was sent until then is reported"
    elif doubted:
        status, text = NOT_VALID, f"not valid: {doubted[0]}"
    elif failed:
        status, text = FAILED, f"failed: {', '.join(failed)}"
    elif judged:
        status, text = HELD, "all objectives hold" if len(judged) > 1 else "the objective holds"
    else:
        status, text = HELD, "done; no objectives were stated"
    return {
        "status": status,
        "text": text,
        "valid": not doubted,
        "doubts": list(doubted),
        "aborted": aborted,
        "objectives": list(judged),
    }
