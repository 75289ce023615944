"""Views of the GPUs and controllers to show them to."""

from __future__ import annotations

import itertools
from typing import Any

from autoglm_throttle.control.adaptive import AdaptiveController, Controller
from autoglm_throttle.control.staleness import Staleness
from autoglm_throttle.control.tiers import TierController
from autoglm_throttle.settings.groups.control import ControlSettings
from autoglm_throttle.settings.groups.gpu import GpuSettings
from autoglm_throttle.types import (
    ControlState,
    GpuView,
    LimiterReport,
    MissingTelemetryMode,
    ServiceStats,
)

T0 = 1000.0
RATES = (1000.0, 500.0, 100.0)

_INSTANTS = itertools.count(1e9)
"""Every view is younger than the last, and none is older than the time at which it is observed."""


def view(pct: float | None, capacity: float = 1.0, memory: float | None = None) -> GpuView:
    return GpuView(
        taken_at_s=next(_INSTANTS),
        utilization_pct=pct,
        utilization_max_pct=pct,
        memory_ratio=memory,
        power_ratio=None,
        capacity=capacity,
        devices=(),
    )


def staleness(**settings: Any) -> Staleness:
    return Staleness(GpuSettings(**settings))


def tiers(
    settings: ControlSettings | None = None,
    unknown: MissingTelemetryMode = MissingTelemetryMode.OPEN,
    interval_s: float = 1.0,
) -> TierController:
    gpu = GpuSettings(gpu_unknown=unknown, sample_interval_s=interval_s)
    return TierController(settings or ControlSettings(), gpu, T0)


def adaptive(
    settings: ControlSettings | None = None, unknown: MissingTelemetryMode = MissingTelemetryMode.OPEN
) -> AdaptiveController:
    return AdaptiveController(settings or ControlSettings(), GpuSettings(gpu_unknown=unknown), RATES, T0)


def waiting(service_rps: float | None = 100.0) -> LimiterReport:
    """The gate's word while requests wait: it is full."""
    return LimiterReport(confirmed=True, service_rps=service_rps, in_flight=64, limit=64.0)


def quiet(service_rps: float | None = 100.0) -> LimiterReport:
    """The gate's word while nobody waits: half full."""
    return LimiterReport(confirmed=False, service_rps=service_rps, in_flight=32, limit=64.0)


def see(controller: Controller, seen: GpuView, now: float) -> ControlState:
    """Show a view while the gate and our own requests have nothing to say."""
    return controller.observe(seen, LimiterReport(), ServiceStats(), now)


def no_source(controller: Controller, now: float) -> ControlState:
    """The state once it is known that there is no source."""
    controller.tracker.no_source()
    return controller.control_state(now)


def source_lost(controller: Controller, now: float) -> ControlState:
    """The state once the source will give no further sample."""
    controller.tracker.lost()
    return controller.control_state(now)


def feed(controller: Controller, *samples: float | None, start: float = T0) -> list[float]:
    """One sample a second from ``start`` on; the factor after each."""
    return [see(controller, view(pct), start + n).factor for n, pct in enumerate(samples)]


def held_at(factor: float, unknown: MissingTelemetryMode) -> tuple[TierController, float]:
    """A controller whose table holds ``factor``, and the instant of its last sample."""
    controller = tiers(unknown=unknown)
    pct = {1.0: 10.0, 0.7: 88.0, 0.4: 92.0, 0.0: 99.0}[factor]
    assert feed(controller, pct, pct, pct)[-1] == factor
    return controller, T0 + 2


# --- the table of the design ---

SLOW_RELEASE = ControlSettings(tier_release_samples=3, tier_release_margin_pct=5.0, tier_recovery_step=0.1)
