"""Cross-field checks of breaker settings: global defaults, ``[guards.<name>]``, and code."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, Protocol

from autoglm_throttle.settings.breaker_checks import GUARD_ONLY_KEYS, cross_field_problems
from autoglm_throttle.settings.breaker_settings import BREAKER_FIELD_TYPES, BREAKER_PREFIX, BreakerSettings
from autoglm_throttle.settings.field_types import read_all
from autoglm_throttle.settings.guard_policy import (
    GUARD_FIELD_TYPES,
    GUARD_KEYS,
    GuardPolicies,
    GuardPolicy,
)
from autoglm_throttle.settings.problems import ConfigError, Problem, quoted_key
from autoglm_throttle.settings.tables import named_tables

MARGIN: Final = "degrade_margin"


class BreakerDefaults(Protocol):
    """The part of `Settings` that a guard's breaker needs: ``BREAKER_*`` and the tables of the guards."""

    @property
    def guards(self) -> GuardPolicies:
        """Policies by the name of their guard."""
        ...


def breaker_of(settings: BreakerDefaults, name: str, own: BreakerSettings | None = None) -> dict[str, Any]:
    """Return every setting of one guard's breaker: from code, else ``[guards.<name>]``, else ``BREAKER_*``.

    Args:
        settings: the defaults of all guards, and the table of this one.
        name: the guard.
        own: the settings made in code.

    Raises:
        ConfigError: the settings made in code contradict the others.
    """
    policy = settings.guards.get(name)
    of_code = {} if own is None else own.explicit_fields()
    of_guard = {} if policy is None else policy.explicit_fields()
    defaults = {key: getattr(settings, BREAKER_PREFIX + key) for key in BREAKER_FIELD_TYPES}
    table = f"guards.{quoted_key(name)}"

    def display_name(key: str) -> str:
        if key in of_code:
            return key
        return f"{table}.{key}" if key in of_guard else _variable(key)

    values = defaults | of_guard | of_code
    problems = cross_field_problems(values, of_code, display_name)
    if problems:
        raise ConfigError(Problem(f"{table}.{p.variable}", p.message, p.hint) for p in problems)
    return values


def check_guard_defaults(
    values: Mapping[str, Any], given: Collection[str], wrong: Collection[str]
) -> list[Problem]:
    """Find contradictions among ``BREAKER_*``; the arguments are those of ``failed_checks``."""
    written = {key for key in BREAKER_FIELD_TYPES if BREAKER_PREFIX + key in given}
    problems = cross_field_problems(_default_values(values, wrong), written, _variable)
    return [Problem(BREAKER_PREFIX + p.variable, p.message, p.hint) for p in problems]


def check_guards(raw: object, values: Mapping[str, Any], wrong: Collection[str]) -> list[Problem]:
    """Find contradictions between the table of a guard and the defaults of all guards.

    Values that are invalid by themselves are left out of the checks.

    Args:
        raw: the guards as they were given.
        values: all settings.
        wrong: names of settings that are invalid by themselves.
    """
    try:
        pairs = named_tables(raw, GuardPolicy)
    except ValueError:
        return []
    defaults = _default_values(values, wrong)
    if MARGIN not in wrong:
        defaults["margin"] = values[MARGIN]
    problems = []
    for name, part in pairs:
        own, faulty = _own_values(part)
        own_problems = cross_field_problems(own, own)
        for problem in cross_field_problems(
            {key: value for key, value in (defaults | own).items() if key not in faulty},
            own,
            lambda key, own=own: key if key in own else _variable(key),  # type: ignore[misc]
        ):
            if problem not in own_problems:
                place = f"guards.{quoted_key(name)}.{problem.variable}"
                problems.append(Problem(place, problem.message, problem.hint))
    return problems


def _own_values(part: object) -> tuple[dict[str, Any], set[str]]:
    """Return the valid values of a guard's table, and the keys of the invalid ones."""
    if isinstance(part, BreakerSettings):
        part = {key: getattr(part, key) for key in part.field_types}
    table = part if isinstance(part, Mapping) else {}
    left_out = dict.fromkeys(GUARD_ONLY_KEYS)
    values, _ = read_all({key: GUARD_FIELD_TYPES[key] for key in GUARD_KEYS}, {**left_out, **table})
    own = {key: value for key, value in values.items() if value is not None or key in GUARD_ONLY_KEYS}
    return own, {key for key in GUARD_KEYS if key in table and key not in values}


def _default_values(values: Mapping[str, Any], wrong: Collection[str]) -> dict[str, Any]:
    return {
        key: values[BREAKER_PREFIX + key] for key in BREAKER_FIELD_TYPES if BREAKER_PREFIX + key not in wrong
    }


def _variable(key: str) -> str:
    return MARGIN if key == "margin" else (BREAKER_PREFIX + key).upper()
