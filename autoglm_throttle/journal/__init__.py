"""Log events, and the sampling of rejections in the log."""

from autoglm_throttle.journal.devices import device_events, gpu_view_events, verdict_events
from autoglm_throttle.journal.guards import breaker_changed, degradation_changed, guard_table_full
from autoglm_throttle.journal.line import LOGGER, LogEvent
from autoglm_throttle.journal.refusals import (
    RejectionSampler,
    rejection_event,
    rejections_summary,
    user_table_full,
)
from autoglm_throttle.journal.regime import control_events
from autoglm_throttle.journal.settings import approximate, configuration_advice, configured
from autoglm_throttle.journal.stores import store_changed

__all__ = [
    "LOGGER",
    "LogEvent",
    "RejectionSampler",
    "approximate",
    "breaker_changed",
    "control_events",
    "configured",
    "configuration_advice",
    "degradation_changed",
    "device_events",
    "guard_table_full",
    "rejections_summary",
    "rejection_event",
    "store_changed",
    "user_table_full",
    "verdict_events",
    "gpu_view_events",
]
