"""ASGI middleware that keeps a GPU service answering when demand is more than it can do."""

from autoglm_throttle.asgi import EXPOSED_FIELDS, Caller, ThrottleMiddleware, exempt, mark
from autoglm_throttle.limiting.gate import GateView, Ticket
from autoglm_throttle.model import (
    Decision,
    Demand,
    GpuProvider,
    GpuSample,
    Hint,
    Outcome,
    Policy,
    Priority,
    ProviderMisconfigured,
    ProviderUnavailable,
    Reason,
    Refused,
    Regime,
    Signal,
    Telemetry,
    ThrottleError,
    UserLimit,
    WebSockets,
    Why,
    WindowState,
)
from autoglm_throttle.permit import Permit, Rejection
from autoglm_throttle.settings import ConfigError, Plan, Problem, RoutePolicy, Settings
from autoglm_throttle.snapshot import Snapshot
from autoglm_throttle.throttle import Throttle
from autoglm_throttle.version import __version__

__all__ = [
    "EXPOSED_FIELDS",
    "Caller",
    "ConfigError",
    "Decision",
    "Demand",
    "GateView",
    "GpuProvider",
    "GpuSample",
    "Hint",
    "Outcome",
    "Permit",
    "Plan",
    "Policy",
    "Priority",
    "Problem",
    "ProviderMisconfigured",
    "ProviderUnavailable",
    "Reason",
    "Refused",
    "Regime",
    "Rejection",
    "RoutePolicy",
    "Settings",
    "Signal",
    "Snapshot",
    "Telemetry",
    "Throttle",
    "ThrottleError",
    "ThrottleMiddleware",
    "Ticket",
    "UserLimit",
    "WebSockets",
    "Why",
    "WindowState",
    "__version__",
    "exempt",
    "mark",
]
