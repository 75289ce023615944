"""Decision of the throttle on a request, from the marker in the scope."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autoglm_throttle.asgi.scope import MARKER
from autoglm_throttle.traffic.record.recorded_request import DecisionFields
from autoglm_throttle.types import decision_label

DEGRADED = b"x-degraded"
"""Response field set by a fallback."""

NO_DECISION: DecisionFields = ("", "", "", "")


def decision_of(scope: Mapping[str, Any], status: int, fields: Iterable[Sequence[bytes]]) -> DecisionFields:
    """Return user, priority, decision and reason; of several throttles, one that rejected takes precedence.

    Args:
        scope: scope of the request, after it was served.
        status: status of its response.
        fields: header fields of its response.
    """
    marker = scope.get(MARKER)
    if not isinstance(marker, dict) or not marker:
        return NO_DECISION
    verdicts = [verdict for verdict in marker.values() if verdict is not None]
    degraded = status < 300 and any(name.lower() == DEGRADED for name, _ in fields)
    if not verdicts:
        return ("", "", "degraded" if degraded else "exempt", "ok")
    verdict = next((one for one in verdicts if not one.admitted), verdicts[0])
    reason = verdict.decision.reason
    decision: str = decision_label(reason)
    if degraded:
        decision = "degraded"
    return (verdict.demand.user, verdict.demand.priority.label, decision, reason.value)


def identity_header(throttle: object) -> str:
    """Return the header field by which a throttle identifies callers; empty if there is none."""
    callers = getattr(getattr(throttle, "settings", None), "callers", None)
    kind, _, name = str(getattr(callers, "identity", "")).partition(":")
    return name if kind == "header" else ""
