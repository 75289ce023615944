"""Log events of a shared store."""

from __future__ import annotations

import logging

from autoglm_throttle.events.log_event import LogEvent
from autoglm_throttle.store.health import HealthChange
from autoglm_throttle.store.health import HealthState as StoreState
from autoglm_throttle.store.shared_limits import StoreView
from autoglm_throttle.types import (
    StoreFailureMode,
)

_MEANWHILE = {
    StoreFailureMode.LOCAL: "each process enforces {share} of the user limits until it recovers",
    StoreFailureMode.ALLOW: "user limits are not enforced until it recovers",
    StoreFailureMode.DENY: "requests under a user limit are rejected until it recovers",
}


def store_changed(view: StoreView, change: HealthChange, error: str) -> LogEvent:
    """Build the event of a shared store of user limits that was lost or has recovered."""
    if change.state is StoreState.REMOTE:
        text = f"{view.kind} answers again after {change.lasted_s:.1f} s; user limits are shared again"
        return LogEvent(
            "store_recovered", logging.INFO, text, {"store": view.kind, "down_s": change.lasted_s}
        )
    error_kind = str(change.error_kind)
    because = f" ({error})" if error else ""
    meanwhile = _MEANWHILE[view.on_error].format(share=f"1/{view.processes}")
    keys: dict[str, object] = {"store": view.kind, "reason": error_kind, "on_error": view.on_error.value}
    text = f"{view.kind} is unavailable: {error_kind}{because}; {meanwhile}"
    return LogEvent("store_lost", logging.WARNING, text, keys)
