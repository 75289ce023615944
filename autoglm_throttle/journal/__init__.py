"""Log events, and the sampling of rejections in the log."""

from autoglm_throttle.journal.devices import device_changes, verdict_changes, view_changes
from autoglm_throttle.journal.guards import breaker_changed, degradation_changed, guards_full
from autoglm_throttle.journal.line import LOGGER, Line
from autoglm_throttle.journal.refusals import RefusalSampler, more_refused, refused, users_full
from autoglm_throttle.journal.regime import changes
from autoglm_throttle.journal.settings import approximate, configured, configured_oddly
from autoglm_throttle.journal.stores import store_changed

__all__ = [
    "LOGGER",
    "Line",
    "RefusalSampler",
    "approximate",
    "breaker_changed",
    "changes",
    "configured",
    "configured_oddly",
    "degradation_changed",
    "device_changes",
    "guards_full",
    "more_refused",
    "refused",
    "store_changed",
    "users_full",
    "verdict_changes",
    "view_changes",
]
