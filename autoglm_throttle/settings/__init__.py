"""Settings: combine environment, files and code into one frozen value, and report all problems together."""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from autoglm_throttle.settings.groups import settings_table
from autoglm_throttle.settings.groups.base import PREFIX, Setting
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.settings.groups.callers import HeaderStyle, HeaderTrust
from autoglm_throttle.settings.groups.observe import MetricsExport, UnknownNames
from autoglm_throttle.settings.groups.users import parse_user_limits, user_limits_text
from autoglm_throttle.settings.policies import GuardPolicy, PlanPolicy
from autoglm_throttle.settings.problems import ConfigError, Problem
from autoglm_throttle.settings.route_policy import ResourcePolicy, RoutePolicy
from autoglm_throttle.settings.settings import Settings
from autoglm_throttle.settings.sources import SettingSource

if TYPE_CHECKING:
    from autoglm_throttle.settings.advice import collect_advice
    from autoglm_throttle.settings.checks import breaker_of

__all__ = [
    "PREFIX",
    "BreakerSettings",
    "ConfigError",
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
    "breaker_of",
    "collect_advice",
    "parse_user_limits",
    "settings_table",
    "user_limits_text",
]

_LAZY_EXPORTS: Final = {"collect_advice": "advice", "breaker_of": "checks"}
"""Names that an import of the package does without."""


if not TYPE_CHECKING:  # a type checker reports an unknown name

    def __getattr__(name: str) -> object:
        if name not in _LAZY_EXPORTS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_LAZY_EXPORTS[name]}"), name)
