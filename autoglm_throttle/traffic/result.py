"""A finished run: what was to be sent, what became of it, and what the generator did meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from autoglm_throttle.traffic.books import Books
from autoglm_throttle.traffic.load import Load
from autoglm_throttle.traffic.sheet import Sheet


@dataclass(frozen=True, kw_only=True)
class Effort:
    """What the generator needed; it tells whether a run may be believed."""

    elapsed_s: float
    """From the first intended start to the end of the drain."""
    stopped_s: float | None = None
    """When the sending was stopped, counted like ``elapsed_s``; None if it went to its end."""
    overrun_s: float = 0.0
    """By how much the last launch came after its intended start."""
    cpu_share: float | None = None
    """Of one core while there was something to send, the busiest process; None in process, where it means
    nothing."""
    resent: int = 0
    """Sent twice because the server had closed the idle connection meanwhile."""
    connections: int = 0
    """Opened before the start."""
    processes: int = 1
    lost: int = 0
    """Processes that ended early; what they sent is not known, and all of their share counts as left out."""
    loop: str = "asyncio"
    """``asyncio``, ``uvloop`` or ``virtual``."""


@dataclass(frozen=True)
class Result:
    """A finished run."""

    load: Load
    """In a closed loop: what was sent, since it is not known before."""
    sheet: Sheet
    effort: Effort
    aborted: bool = False
    """Stopped before the end of the plan."""
    closed_loop: bool = False
    """Users who wait for their answers sent it: offered load falls when the service slows down."""
    watched: tuple[dict[str, float], ...] = field(default=())
    """What was seen of the service, once a second: ``t_s`` and any of ``cpu_share``, ``rss_bytes``,
    ``gpu_utilization_ratio``, ``gpu_memory_ratio``, ``gpu_power_w``, ``factor_ratio``, ``inflight``,
    ``waiting``."""

    @property
    def balanced(self) -> bool:
        """Whether every planned request is in exactly one place."""
        return self.sheet.balanced

    @cached_property
    def books(self) -> Books:
        """The sums by segment and priority."""
        return Books(self.load.plan, self.sheet)
