"""The plan of a load: time, priority, client and kind of each request, fixed before the run starts."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from autoglm_throttle.types import Priority


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """Intended requests, in order of time. Requests are identified by their index."""

    offsets: array[float]
    """Seconds from the start of the run (typecode ``d``)."""
    priorities: bytes
    """One ``Priority`` value per request."""
    segments: array[int]
    """Index of the segment each request belongs to (``H``)."""
    clients: array[int]
    """Number of the client: 0 .. number of clients - 1 (``I``)."""
    kinds: array[int]
    """Kind of the request: an index into the requests of its `RequestSource` (``I``)."""
    names: tuple[str, ...]
    """Display name of each segment."""
    ends_s: tuple[float, ...]
    """End of each segment, in seconds from the start; the last one is the length of the plan."""

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def duration_s(self) -> float:
        """Length of the plan, from its start to the end of the last segment."""
        return self.ends_s[-1]

    def planned(self) -> dict[tuple[int, Priority], int]:
        """Count requests by (segment, priority); zeros included."""
        counts = {(segment, priority): 0 for segment in range(len(self.names)) for priority in Priority}
        for segment, priority in zip(self.segments, self.priorities, strict=True):
            counts[segment, Priority(priority)] += 1
        return counts
