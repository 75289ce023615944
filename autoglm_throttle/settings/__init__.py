"""Settings: combine environment, files and code into one frozen value, and report all problems together."""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from autoglm_throttle.settings.breaker_settings import BreakerSettings
from autoglm_throttle.settings.caller_fields import HeaderStyle, HeaderTrust
from autoglm_throttle.settings.field import PREFIX, Setting, SettingSource
from autoglm_throttle.settings.fields import (
    SETTINGS,
    MetricsExport,
    UnknownNames,
)
from autoglm_throttle.settings.guard_policy import GuardPolicies, GuardPolicy
from autoglm_throttle.settings.plan_policy import PlanPolicies, PlanPolicy
from autoglm_throttle.settings.problems import ConfigError, Problem
from autoglm_throttle.settings.route_policy import RoutePolicy, unreachable
from autoglm_throttle.settings.settings import Settings
from autoglm_throttle.settings.user_limits import parse_user_limits, user_limits_text

if TYPE_CHECKING:
    from autoglm_throttle.settings.advice import collect_advice
    from autoglm_throttle.settings.guard_checks import breaker_of

__all__ = [
    "PREFIX",
    "SETTINGS",
    "BreakerSettings",
    "ConfigError",
    "GuardPolicies",
    "GuardPolicy",
    "HeaderStyle",
    "HeaderTrust",
    "MetricsExport",
    "PlanPolicies",
    "PlanPolicy",
    "Problem",
    "RoutePolicy",
    "Setting",
    "SettingSource",
    "Settings",
    "UnknownNames",
    "breaker_of",
    "collect_advice",
    "parse_user_limits",
    "unreachable",
    "user_limits_text",
]

_LAZY_EXPORTS: Final = {"collect_advice": "advice", "breaker_of": "guard_checks"}
"""Names that an import of the package does without."""


if not TYPE_CHECKING:  # a type checker reports an unknown name

    def __getattr__(name: str) -> object:
        if name not in _LAZY_EXPORTS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_LAZY_EXPORTS[name]}"), name)
