"""The periods over which the limiter measures the service."""

from __future__ import annotations

from dataclasses import dataclass

from autoglm_throttle.limiting.work_class import WorkClass


@dataclass(slots=True)
class MeasurementPeriod:
    """Measurements between two changes of the limit. The counts of its work classes stand in these."""

    lasted_s: float
    arrived: tuple[int, int, int]
    """High, mid, low."""
    done: int
    """Requests that ended with a measured outcome."""
    mean_in_flight: float
    peak: int
    """Most slots in use."""
    limited: bool
    """Whether a request found the limit reached."""
    ended: list[WorkClass]
    """The classes with measured ends."""


class RunningPeriod:
    """The present period: counts and sums, read and changed by the limiter.

    Args:
        now: monotonic seconds at which it begins.
    """

    __slots__ = (
        *("arrived", "busy_s", "done", "due_s", "ended", "latest_s"),
        *("limited", "opened_s", "peak", "starts_s", "was_limited"),
    )

    def __init__(self, now: float) -> None:
        self.opened_s: float = now
        self.latest_s: float = now
        """Newest instant that the limiter was given."""
        self.due_s: float = 0.0
        """Earliest end of the period."""
        self.arrived: list[int] = [0, 0, 0]
        """Arrivals of high, mid, low."""
        self.done: int = 0
        self.ended: list[WorkClass] = []
        self.starts_s: float = 0.0
        """Sum of the start instants of the requests in flight: their area is ``in_flight * now`` minus it."""
        self.busy_s: float = now
        """When a request last started beside more than a few others."""
        self.peak: int = 0
        self.limited: bool = False
        self.was_limited: bool = False
        """Whether a request found the limit reached in the period before."""

    def close(self, now: float, in_flight: int) -> MeasurementPeriod:
        """Return the measurements until ``now``, and begin the next one; ``in_flight`` slots are in use."""
        lasted_s = now - self.opened_s
        high, mid, low = self.arrived
        closed = MeasurementPeriod(
            lasted_s=lasted_s,
            arrived=(high, mid, low),
            done=self.done,
            mean_in_flight=(in_flight * now - self.starts_s) / lasted_s,
            peak=self.peak,
            limited=self.limited,
            ended=self.ended,
        )
        self.opened_s = now
        self.arrived = [0, 0, 0]
        self.done, self.ended, self.starts_s = 0, [], in_flight * now
        self.peak = in_flight
        self.limited, self.was_limited = False, self.limited
        return closed
