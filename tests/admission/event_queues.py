"""A queue of log events, and the counts in the events of rejections."""

from __future__ import annotations

import contextlib

from autoglm_throttle.events import EventQueue
from autoglm_throttle.types import Decision, Demand, Priority, Reason


def event_queue(every_s: float) -> EventQueue:
    return EventQueue(contextlib.nullcontext(), every_s, str, max_users=10)


def record(tested: EventQueue, reason: Reason, now: float) -> int:
    """Record a rejection; return the number of rejections in its event, 0 without one."""
    tested.waiting.clear()
    is_logged = tested.record_rejection(Demand(Priority.MID, "u"), Decision(False, reason), now)
    counts = [event.keys["count"] for event in tested.waiting]
    assert is_logged is bool(counts)
    return int(str(counts[0])) if counts else 0


def overdue(tested: EventQueue, now: float) -> list[tuple[str, int]]:
    """Queue the events of counted rejections; return their reasons and counts."""
    tested.waiting.clear()
    tested.summarize(now)
    return [(str(event.keys["reason"]), int(str(event.keys["count"]))) for event in tested.waiting]
