"""Log events, and the sampling of rejections in the log."""

from autoglm_throttle.events.control_state import control_events
from autoglm_throttle.events.devices import device_events, gpu_view_events, verdict_events
from autoglm_throttle.events.event_queue import EventQueue
from autoglm_throttle.events.guards import breaker_changed, degradation_changed, guard_table_full
from autoglm_throttle.events.log_event import LOGGER, LogEvent
from autoglm_throttle.events.objective import objective_learned
from autoglm_throttle.events.rate_limited_logger import LOG_INTERVAL_S, RateLimitedLogger
from autoglm_throttle.events.rejections import (
    RejectionSampler,
    rejection_event,
    rejections_summary,
    user_table_full,
)
from autoglm_throttle.events.settings import configuration_advice, configured

__all__ = [
    "LOGGER",
    "LOG_INTERVAL_S",
    "EventQueue",
    "LogEvent",
    "RateLimitedLogger",
    "RejectionSampler",
    "breaker_changed",
    "configuration_advice",
    "configured",
    "control_events",
    "degradation_changed",
    "device_events",
    "gpu_view_events",
    "guard_table_full",
    "objective_learned",
    "rejection_event",
    "rejections_summary",
    "user_table_full",
    "verdict_events",
]
