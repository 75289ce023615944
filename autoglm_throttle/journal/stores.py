"""Log events of a shared store."""

from __future__ import annotations

import logging

from autoglm_throttle.journal.line import Line
from autoglm_throttle.limiting.shared.outage import HealthChange
from autoglm_throttle.limiting.shared.outage import HealthState as StoreState
from autoglm_throttle.limiting.shared.windows import StoreView
from autoglm_throttle.model import (
    OnError,
)

_MEANWHILE = {
    OnError.LOCAL: "each process goes by {share} of the user limits until it answers",
    OnError.ALLOW: "no user limit holds until it answers",
    OnError.DENY: "all whom a user limit applies to are refused until it answers",
}


def store_changed(view: StoreView, change: HealthChange, error: str) -> Line:
    """Build the event of a shared store of user limits that was lost or has recovered."""
    if change.state is StoreState.REMOTE:
        text = f"{view.kind} answers again after {change.lasted_s:.1f} s; user limits are shared again"
        return Line("store_back", logging.INFO, text, {"store": view.kind, "down_s": change.lasted_s})
    trouble = str(change.error_kind)
    because = f" ({error})" if error else ""
    meanwhile = _MEANWHILE[view.on_error].format(share=f"1/{view.processes}")
    keys: dict[str, object] = {"store": view.kind, "reason": trouble, "on_error": view.on_error.value}
    text = f"{view.kind} cannot be asked: {trouble}{because}; {meanwhile}"
    return Line("store_lost", logging.WARNING, text, keys)
