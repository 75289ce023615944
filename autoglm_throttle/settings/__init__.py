"""Settings: combine environment, files and code into one frozen value, and report all problems together."""

from autoglm_throttle.settings.groups import settings_table
from autoglm_throttle.settings.groups.base import PREFIX, Setting
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.settings.groups.callers import (
    ErrorStyle,
    HeaderStyle,
    HeaderTrust,
    parse_user_limits,
    user_limits_text,
)
from autoglm_throttle.settings.groups.observe import MetricsExport, UnknownNames
from autoglm_throttle.settings.policies import GuardPolicy, PlanPolicy
from autoglm_throttle.settings.problems import ConfigError, Problem
from autoglm_throttle.settings.route_policy import ResourcePolicy, RoutePolicy
from autoglm_throttle.settings.settings import Settings
from autoglm_throttle.settings.sources import SettingSource

__all__ = [
    "PREFIX",
    "BreakerSettings",
    "ConfigError",
    "ErrorStyle",
    "GuardPolicy",
    "HeaderStyle",
    "HeaderTrust",
    "MetricsExport",
    "PlanPolicy",
    "Problem",
    "ResourcePolicy",
    "RoutePolicy",
    "Setting",
    "SettingSource",
    "Settings",
    "UnknownNames",
    "parse_user_limits",
    "settings_table",
    "user_limits_text",
]
