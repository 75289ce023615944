"""Sampling of rejections in the log."""

from __future__ import annotations

import logging

from autoglm_throttle.events.log_event import LogEvent
from autoglm_throttle.types import (
    Decision,
    Demand,
    Reason,
)


def rejections_summary(reason: Reason, name: str, count: int) -> LogEvent:
    """Build the event for counted rejections that no further one has followed."""
    keys: dict[str, object] = {"decision": name, "reason": reason.value, "count": count}
    return LogEvent("request_rejected", logging.INFO, f"{count} {name} ({reason})", keys)


def rejection_event(demand: Demand, decision: Decision, name: str, count: int, client: str) -> LogEvent:
    """Build the event of a sampled rejection; ``client`` is the caller's keyed hash."""
    return LogEvent(
        "request_rejected",
        logging.INFO,
        f"{count} {name} ({decision.detail})",
        {
            "priority": demand.priority.label,
            "decision": name,
            "reason": decision.reason.value,
            "detail": decision.detail,
            "client_hash": client,
            "retry_after_s": decision.retry_after_s,
            "count": count,
        },
    )


def user_table_full(most: int) -> LogEvent:
    """Build the event, logged once, that the user table is full: new users share their network's limit."""
    text = f"all {most} tracked users are at their limit; new users share one limit; raise MAX_USERS"
    return LogEvent("user_table_full", logging.WARNING, text, {"max_users": most})


class RejectionSampler:
    """Logs the first rejection for each reason; later ones are counted into one event per interval.

    Args:
        every_s: minimum seconds between two events for one reason.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._entries: dict[Reason, list[float]] = {}

    def record(self, reason: Reason, now: float) -> int:
        """Count a rejection; above 0: log one event with this number of rejections."""
        entry = self._entries.get(reason)
        if entry is None:
            self._entries[reason] = [now + self._every_s, 0]
            return 1
        entry[1] += 1
        if now < entry[0]:
            return 0
        count = int(entry[1])
        entry[0], entry[1] = now + self._every_s, 0
        return count

    def overdue(self, now: float) -> list[tuple[Reason, int]]:
        """Return counted rejections that should have been logged by now, as after the end of an overload."""
        due = []
        for reason, entry in self._entries.items():
            if entry[1] and now >= entry[0]:
                due.append((reason, int(entry[1])))
                entry[0], entry[1] = now + self._every_s, 0
        return due
