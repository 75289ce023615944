"""Adaptive load shedding and per-user rate limiting for ASGI services on GPUs."""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from autoglm_throttle.version import __version__

if TYPE_CHECKING:
    from autoglm_throttle.admission.permit import Permit, Rejection
    from autoglm_throttle.admission.snapshot import Snapshot
    from autoglm_throttle.asgi import Caller, ThrottleMiddleware, exempt, mark
    from autoglm_throttle.limiting.ticket import Ticket
    from autoglm_throttle.resilience.fallback import Fallback
    from autoglm_throttle.settings import (
        BreakerSettings,
        ConfigError,
        GuardPolicy,
        PlanPolicy,
        RoutePolicy,
        Settings,
    )
    from autoglm_throttle.throttle import Throttle
    from autoglm_throttle.types import (
        BreakerState,
        BreakerTransition,
        ControlState,
        Criticality,
        Decision,
        Demand,
        FallbackContext,
        GpuProvider,
        GpuSample,
        GuardPermit,
        GuardRejected,
        GuardRejection,
        LimitStatus,
        Outcome,
        Priority,
        ProviderMisconfigured,
        ProviderUnavailable,
        Reason,
        Rejected,
        TelemetryState,
        ThrottleError,
        UserLimit,
    )

__all__ = [
    "BreakerSettings",
    "BreakerState",
    "BreakerTransition",
    "Caller",
    "ConfigError",
    "ControlState",
    "Criticality",
    "Decision",
    "Demand",
    "Fallback",
    "FallbackContext",
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
    "Priority",
    "ProviderMisconfigured",
    "ProviderUnavailable",
    "Reason",
    "Rejected",
    "Rejection",
    "RoutePolicy",
    "Settings",
    "Snapshot",
    "TelemetryState",
    "Throttle",
    "ThrottleError",
    "ThrottleMiddleware",
    "Ticket",
    "UserLimit",
    "__version__",
    "exempt",
    "mark",
]

# The public names by module. A module is imported when one of its names is first used (PEP 562): the pytest
# plugin of this package is registered in every environment, and importing everything took 0.5 s of CPU.
_MODULES: Final = {
    "admission.permit": "Permit Rejection",
    "admission.snapshot": "Snapshot",
    "asgi": "Caller ThrottleMiddleware exempt mark",
    "limiting.ticket": "Ticket",
    "resilience.fallback": "Fallback",
    "settings": "BreakerSettings ConfigError GuardPolicy PlanPolicy RoutePolicy Settings",
    "throttle": "Throttle",
    "types": (
        "BreakerState BreakerTransition ControlState Criticality Decision Demand FallbackContext "
        "GpuProvider GpuSample GuardPermit GuardRejected GuardRejection LimitStatus Outcome Priority "
        "ProviderMisconfigured ProviderUnavailable Reason Rejected TelemetryState ThrottleError UserLimit"
    ),
}


if not TYPE_CHECKING:  # a type checker reports an unknown name

    def __getattr__(name: str) -> object:
        for module, names in _MODULES.items():
            if name in names.split():
                value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
