"""The protocol of a controller: it decides the share of the nominal rates that may be refilled."""

from __future__ import annotations

from typing import Protocol

from autoglm_throttle.control.pressure import Pressure
from autoglm_throttle.types import ControlState, GpuView, LimiterReport, ServiceStats


class Controller(Protocol):
    """Decides the ControlState under one policy. All times are monotonic seconds."""

    @property
    def pressure(self) -> Pressure:
        """The pressure at the newest view, whether or not it is the signal in force."""
        ...

    def is_ready(self, now: float, /) -> bool:
        """Whether at least one device is not stalled, by telemetry that is not too old.

        The same under every policy, whether or not it changes the rates; True where no device is monitored.
        """
        ...

    def started(self, now: float, /) -> None:
        """Begin to expect samples: the first one is due from now on."""
        ...

    def observe(
        self, view: GpuView, report: LimiterReport, stats: ServiceStats, now: float, /
    ) -> ControlState:
        """Process a new view of the GPUs with the limiter's report and the service's own statistics."""
        ...

    def control_state(self, now: float, report: LimiterReport | None = None, /) -> ControlState:
        """Return the ControlState in force, with its age considered; valid until its ``valid_until_s``.

        With a ``report`` the load is that of now; only ``in_flight`` and ``limit`` are read.
        """
        ...

    def no_source(self, now: float, /) -> ControlState:
        """Stop expecting samples: no source exists."""
        ...

    def source_lost(self, now: float, /) -> ControlState:
        """Count telemetry as blind from now on: the source will not deliver another sample."""
        ...
