"""Adaptive load shedding and per-user rate limiting for ASGI services on GPUs."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from autoglm_throttle.asgi import EXPOSED_FIELDS, Caller, ThrottleMiddleware, exempt, mark
from autoglm_throttle.limiting.concurrency_limiter import ConcurrencyView, Ticket
from autoglm_throttle.permit import Permit, Rejection
from autoglm_throttle.settings import (
    BreakerSettings,
    ConfigError,
    GuardPolicy,
    PlanPolicy,
    Problem,
    RoutePolicy,
    Settings,
)
from autoglm_throttle.snapshot import Snapshot
from autoglm_throttle.throttle import Throttle
from autoglm_throttle.types import (
    BreakerCause,
    BreakerState,
    BreakerTransition,
    ControlCause,
    ControlState,
    Criticality,
    Decision,
    DegradationLevel,
    Demand,
    FallbackKind,
    GpuProvider,
    GpuSample,
    GuardPermit,
    GuardRejected,
    GuardRejection,
    LimitStatus,
    Outcome,
    Policy,
    Priority,
    ProviderMisconfigured,
    ProviderUnavailable,
    Reason,
    Rejected,
    ResourceAdvice,
    Signal,
    TelemetryState,
    ThrottleError,
    UserLimit,
    WebSocketMode,
)
from autoglm_throttle.version import __version__

if TYPE_CHECKING:
    from autoglm_throttle.resilience.feature import Fallback
    from autoglm_throttle.types.breaker_view import BreakerView
    from autoglm_throttle.types.fallback_context import FallbackContext

__all__ = [
    "EXPOSED_FIELDS",
    "BreakerCause",
    "BreakerSettings",
    "BreakerState",
    "BreakerTransition",
    "BreakerView",
    "Caller",
    "ConcurrencyView",
    "ConfigError",
    "ControlCause",
    "ControlState",
    "Criticality",
    "Decision",
    "DegradationLevel",
    "Demand",
    "Fallback",
    "FallbackContext",
    "FallbackKind",
    "GpuProvider",
    "GpuSample",
    "GuardPermit",
    "GuardPolicy",
    "GuardRejected",
    "GuardRejection",
    "LimitStatus",
    "Outcome",
    "Permit",
    "PlanPolicy",
    "Policy",
    "Priority",
    "Problem",
    "ProviderMisconfigured",
    "ProviderUnavailable",
    "Reason",
    "Rejected",
    "Rejection",
    "ResourceAdvice",
    "RoutePolicy",
    "Settings",
    "Signal",
    "Snapshot",
    "TelemetryState",
    "Throttle",
    "ThrottleError",
    "ThrottleMiddleware",
    "Ticket",
    "UserLimit",
    "WebSocketMode",
    "__version__",
    "exempt",
    "mark",
]

_LAZY: Final = {
    "BreakerView": "types.breaker_view",
    "Fallback": "resilience.feature",
    "FallbackContext": "types.fallback_context",
}
"""Names that only guards need: the import of the package does not load their modules."""


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a class
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
