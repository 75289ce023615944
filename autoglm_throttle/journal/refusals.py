"""Sampling of rejections in the log."""

from __future__ import annotations

import logging

from autoglm_throttle.journal.line import Line
from autoglm_throttle.model import (
    Decision,
    Demand,
    Reason,
)


def more_refused(reason: Reason, name: str, count: int) -> Line:
    """Build the event for counted rejections that no further one has followed."""
    keys: dict[str, object] = {"decision": name, "reason": reason.value, "count": count}
    return Line("refused", logging.INFO, f"{count} {name} ({reason})", keys)


def refused(demand: Demand, decision: Decision, name: str, count: int, client: str) -> Line:
    """Build the event of a sampled rejection; ``client`` is the caller's keyed hash."""
    return Line(
        "refused",
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


def users_full(most: int) -> Line:
    """Build the event, logged once, that the user table is full: new users share their network's limit."""
    text = f"all {most} users remembered are at their limit; newcomers share one; raise MAX_USERS"
    return Line("users_full", logging.WARNING, text, {"max_users": most})


class RefusalSampler:
    """Logs the first rejection for each reason; later ones are counted into one event per interval.

    Args:
        every_s: minimum seconds between two events for one reason.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._seen: dict[Reason, list[float]] = {}

    def note(self, reason: Reason, now: float) -> int:
        """Count a rejection; above 0: log one event with this number of rejections."""
        seen = self._seen.get(reason)
        if seen is None:
            self._seen[reason] = [now + self._every_s, 0]
            return 1
        seen[1] += 1
        if now < seen[0]:
            return 0
        count = int(seen[1])
        seen[0], seen[1] = now + self._every_s, 0
        return count

    def overdue(self, now: float) -> list[tuple[Reason, int]]:
        """Return counted rejections that should have been logged by now, as after the end of an overload."""
        found = []
        for reason, seen in self._seen.items():
            if seen[1] and now >= seen[0]:
                found.append((reason, int(seen[1])))
                seen[0], seen[1] = now + self._every_s, 0
        return found
