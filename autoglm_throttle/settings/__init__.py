"""Settings: environment, files and code become one frozen value, and every fault is said at once."""

from autoglm_throttle.settings.breaker_settings import BreakerSettings
from autoglm_throttle.settings.caller_fields import HeaderStyle, HeaderTrust
from autoglm_throttle.settings.field import PREFIX, Setting, Source
from autoglm_throttle.settings.fields import (
    SETTINGS,
    MetricsExport,
    UnknownNames,
)
from autoglm_throttle.settings.guard_policy import GuardPolicies, GuardPolicy
from autoglm_throttle.settings.plan import Plan, Plans
from autoglm_throttle.settings.problem import ConfigError, Problem
from autoglm_throttle.settings.route_policy import RoutePolicy, unreachable
from autoglm_throttle.settings.settings import Settings
from autoglm_throttle.settings.user_limits import parse_user_limits, user_limits_text

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
    "Plan",
    "Plans",
    "Problem",
    "RoutePolicy",
    "Setting",
    "Settings",
    "Source",
    "UnknownNames",
    "parse_user_limits",
    "unreachable",
    "user_limits_text",
]
