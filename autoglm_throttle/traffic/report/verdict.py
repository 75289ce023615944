"""The verdict: validity of a run, its objectives, and the exit status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile

from autoglm_throttle.traffic.report.schema import Part
from autoglm_throttle.traffic.report.tally import percentile
from autoglm_throttle.traffic.request_log import UNSENT, RequestResult

# Exit statuses. Without objectives a run fails if no request succeeded, nearly all were rejected, or the
# service went down. A run is not valid if the generator or the machine was too slow to measure the service.
# 130 is Ctrl-C in shells.
PASSED, FAILED, NOT_VALID, INTERRUPTED = 0, 1, 3, 130

LAG_P99_S = 0.010  # Above this lag, the load differs from the planned one; ten times the tick

# Share of the plan by which the last launch may be late, and seconds for plans shorter than 5 s. A single
# pause of the system near the end does not change the load.
OVERRUN, OVERRUN_S = 0.01, 0.050

CPU_SHARE = 0.95  # Share of one core; above it the run measured the generator itself

# Share of requests that a run with rejections must serve, unless an objective is on them: a limiter at twenty
# times its capacity serves as many.
MIN_SERVED = 0.05
# Prefixes of objectives on rejections; ``--check`` compares them with a recording.
ON_REJECTIONS = ("limited", "shed", "goodput", "rejection", "--check")

UNANSWERED = frozenset(  # Results of requests that a service no longer accepts
    (RequestResult.CONNECTION, RequestResult.TIMEOUT, RequestResult.UNANSWERED, RequestResult.DROPPED)
)

MIN_UNANSWERED = 5  # Unanswered requests at the end of a run; fewer may be broken by chance

# Status, or label of a result without a response -> remedy where no request succeeded.
ACTIONS: Mapping[str, str] = {
    **dict.fromkeys(("401", "403"), "check the credentials"),
    **dict.fromkeys(("404", "405"), "check the URL and the method"),
    **dict.fromkeys(("413", "429"), "raise the limits of the caller, or send as more callers"),
    "503": "lower the rate, or raise the limits of the service",
    "connection": "check that the service listens at the URL",
    **dict.fromkeys(("timeout", "unanswered"), "lower the rate, or raise the timeout"),
    "malformed": "check that the URL is that of an HTTP/1.1 service",
    "dropped": "lower the rate, or allow more connections",
}

OTHER_ACTION = "see the log of the service"


def caveats(generator: Part, duration_s: float) -> list[str]:
    """List the reasons why a run with a plan of ``duration_s`` is not valid, each with a remedy."""
    lag_s, overrun_s = _lag_s(generator["lag"]), generator["overrun_s"]
    allowed_s, share = max(OVERRUN * duration_s, OVERRUN_S), generator["cpu_share"] or 0.0
    checks = {
        f"requests were sent late (lag p99 {lag_s * 1e3:.1f} ms, allowed {LAG_P99_S * 1e3:.0f} ms):"
        " free a core for the generator or lower the rate": lag_s > LAG_P99_S,
        f"sending ran over by {overrun_s:.2f} s of {duration_s:g} s (allowed {allowed_s:.2g} s):"
        " lower the rate": overrun_s > allowed_s,
        f"the generator used {share:.0%} of a core (allowed {CPU_SHARE:.0%}):"
        " lower the rate, or use plain http or smaller answers": share > CPU_SHARE,
    }
    return [reason for reason, applies in checks.items() if applies]


def _lag_s(lag: Part) -> float:
    """Return the p99 of the lag; of fewer than 100 requests the second largest lag, as one may be chance."""
    p99_s: float | None = lag["p99_s"]
    count = lag["count"]
    if p99_s is None or count < 2:
        return 0.0
    # With rank rounding up, (n - 1.5) / n selects the second largest of n values.
    second_s = percentile(lag, (count - 1.5) / count)
    return p99_s if second_s is None else min(p99_s, second_s)


def rejects_nearly_all(totals: Part) -> bool:
    """Whether less than `MIN_SERVED` of the requests were served, and more than half were rejected."""
    classes, sent = totals["classes"], totals["planned"] - totals["unsent"]
    is_rejected = classes["limited"] + classes["shed"] > sent / 2
    return bool(is_rejected and classes["ok"] + classes["degraded"] < MIN_SERVED * sent)


def describe_total_failure(totals: Part, outcomes: Sequence[int]) -> str:
    """Describe a run that failed as a whole, with a remedy; empty if it did not."""
    sent = (outcome for outcome in reversed(outcomes) if outcome != UNSENT)
    unanswered = list(takewhile(UNANSWERED.__contains__, sent))
    if len(unanswered) >= MIN_UNANSWERED and RequestResult.CONNECTION in unanswered:
        return (
            f"the service stopped accepting connections: the last {len(unanswered)} requests got no answer;"
            f" {OTHER_ACTION}"
        )
    classes = totals["classes"]
    planned, served = totals["planned"] - totals["unsent"], classes["ok"] + classes["degraded"]
    if not planned or (served and not rejects_nearly_all(totals)):
        return ""
    without_response = [one.label for one in RequestResult if one >= RequestResult.CONNECTION]
    counts = totals["statuses"] | {name: classes[name] for name in without_response if classes[name]}
    counts = counts or {name: count for name, count in classes.items() if count}
    listed = ", ".join(f"{count} x {name}" for name, count in counts.items())
    action = ACTIONS.get(max(counts, key=lambda name: counts[name]), OTHER_ACTION)
    return f"{served} of {planned} requests succeeded ({listed}): {action}"


def verdict(
    objectives: Sequence[Part],
    reasons: Sequence[str],
    *,
    aborted: bool,
    failure: str = "",
    rejected: bool = False,
) -> Part:
    """Build the verdict from objectives, reasons why the run is not valid, and the sentence of a failure.

    If nearly all requests were ``rejected``, objectives accept the failure only if one is on rejections.
    """
    failed = [one["term"] for one in objectives if not one["holds"]]
    if rejected and objectives and not any(one["term"].startswith(ON_REJECTIONS) for one in objectives):
        failed = failed or ["no objective is on limited, shed or goodput"]
    if aborted:
        status, text = INTERRUPTED, "interrupted: the report covers the requests sent until then"
    elif reasons:
        status, text = NOT_VALID, f"not valid: {'; '.join(filter(None, (failure, reasons[0])))}"
    elif failed:
        status, text = FAILED, "; ".join(filter(None, (f"failed: {', '.join(failed)}", failure)))
    elif objectives:
        text = "all objectives hold" if len(objectives) > 1 else "the objective holds"
        status, text = PASSED, "; ".join(filter(None, (text, failure)))
    elif failure:
        status, text = FAILED, f"failed: {failure}"
    else:
        status, text = PASSED, "done; no objectives were stated"
    return {
        "status": status,
        "text": text,
        "valid": not reasons,
        "caveats": list(reasons),
        "aborted": aborted,
        "objectives": list(objectives),
    }
