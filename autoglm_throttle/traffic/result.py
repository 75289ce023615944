"""A finished run: its plan, the results of its requests, and the cost of generating them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from autoglm_throttle.traffic.request_log import RequestLog
from autoglm_throttle.traffic.request_source import RequestSource
from autoglm_throttle.traffic.summary import Summary


@dataclass(frozen=True, kw_only=True)
class RunCost:
    """Cost of a run to the generator; it shows whether the measurements are valid."""

    elapsed_s: float
    """From the first intended start to the end of the drain."""
    stopped_s: float | None = None
    """Time of the stop, counted like ``elapsed_s``; None if the run was not stopped."""
    overrun_s: float = 0.0
    """Delay of the last launch after its intended start."""
    cpu_share: float | None = None
    """Share of one core used while requests were due; None for in-process runs."""
    resent: int = 0
    """Sent twice because the server had closed the idle connection in between."""
    connections: int = 0
    """Opened before the start."""
    loop: str = "asyncio"
    """``asyncio``, ``uvloop`` or ``virtual``."""


@dataclass(frozen=True)
class Result:
    """A finished run."""

    load: RequestSource
    """In a closed loop: the requests that were sent, since they are not known before."""
    request_log: RequestLog
    run_cost: RunCost
    aborted: bool = False
    """Stopped before the end of the plan."""
    closed_loop: bool = False
    """Whether users that wait for their responses sent it: offered load falls when the service slows down."""
    watched: tuple[dict[str, float], ...] = field(default=())
    """Samples of the service, one per second: ``t_s`` and any of ``cpu_share``, ``rss_bytes``,
    ``gpu_utilization_ratio``, ``gpu_memory_ratio``, ``gpu_power_w``, ``factor_ratio``, ``inflight``,
    ``waiting``.
    """

    @property
    def balanced(self) -> bool:
        """Whether each planned request has exactly one result, or was skipped."""
        return self.request_log.balanced

    @cached_property
    def summary(self) -> Summary:
        """The sums by segment and priority."""
        return Summary(self.load.plan, self.request_log)
