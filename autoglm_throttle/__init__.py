"""Adaptive load shedding and per-user rate limiting for ASGI services on GPUs."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from autoglm_throttle.asgi import EXPOSED_FIELDS, Caller, ThrottleMiddleware, exempt, mark
from autoglm_throttle.limiting.gate import ConcurrencyView, Ticket
from autoglm_throttle.model import (
    Cause,
    Criticality,
    Decision,
    Demand,
    GpuProvider,
    GpuSample,
    GuardRefused,
    Hint,
    Level,
    Outcome,
    Pass,
    Policy,
    Priority,
    ProviderMisconfigured,
    ProviderUnavailable,
    Reason,
    Refusal,
    Refused,
    Regime,
    Rung,
    Signal,
    State,
    Telemetry,
    ThrottleError,
    Transition,
    UserLimit,
    WebSockets,
    Why,
    WindowState,
)
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
from autoglm_throttle.version import __version__

if TYPE_CHECKING:
    from autoglm_throttle.model.breaker_view import BreakerView
    from autoglm_throttle.model.fallback_context import FallbackContext
    from autoglm_throttle.resilience.feature import Fallback

__all__ = [
    "EXPOSED_FIELDS",
    "BreakerSettings",
    "BreakerView",
    "Caller",
    "Cause",
    "ConfigError",
    "Criticality",
    "Decision",
    "Demand",
    "Fallback",
    "FallbackContext",
    "ConcurrencyView",
    "GpuProvider",
    "GpuSample",
    "GuardPolicy",
    "GuardRefused",
    "Hint",
    "Level",
    "Outcome",
    "Pass",
    "Permit",
    "PlanPolicy",
    "Policy",
    "Priority",
    "Problem",
    "ProviderMisconfigured",
    "ProviderUnavailable",
    "Reason",
    "Refusal",
    "Refused",
    "Regime",
    "Rejection",
    "RoutePolicy",
    "Rung",
    "Settings",
    "Signal",
    "Snapshot",
    "State",
    "Telemetry",
    "Throttle",
    "ThrottleError",
    "ThrottleMiddleware",
    "Ticket",
    "Transition",
    "UserLimit",
    "WebSockets",
    "Why",
    "WindowState",
    "__version__",
    "exempt",
    "mark",
]

_LATER: Final = {
    "BreakerView": "model.breaker_view",
    "Fallback": "resilience.feature",
    "FallbackContext": "model.fallback_context",
}
"""Names that only guards need: the import of the package does not load their modules."""


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a class
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
