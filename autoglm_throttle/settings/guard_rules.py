"""Cross-field checks of breaker settings: global defaults, ``[guards.<name>]``, and code."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from autoglm_throttle.settings.breaker_rules import OWN_ALONE, contradictions
from autoglm_throttle.settings.breaker_settings import BREAKER, BREAKER_FORMS, BreakerSettings
from autoglm_throttle.settings.form import read_all
from autoglm_throttle.settings.guard_policy import GUARD_FORMS, GUARD_KEYS, GuardPolicy
from autoglm_throttle.settings.problem import ConfigError, Problem, spelled
from autoglm_throttle.settings.tables import named

if TYPE_CHECKING:
    from autoglm_throttle.settings.settings import Settings

MARGIN: Final = "degrade_margin"


def breaker_of(settings: Settings, name: str, own: BreakerSettings | None = None) -> dict[str, Any]:
    """Return every setting of one guard's breaker: from code, else ``[guards.<name>]``, else ``BREAKER_*``.

    Args:
        settings: the defaults of all guards, and the table of this one.
        name: the guard.
        own: the settings made in code.

    Raises:
        ConfigError: the settings made in code contradict the others.
    """
    policy = settings.guards.get(name)
    of_code = {} if own is None else own.given()
    of_guard = {} if policy is None else policy.given()
    of_all = {key: getattr(settings, BREAKER + key) for key in BREAKER_FORMS}
    table = f"guards.{spelled(name)}"

    def called(key: str) -> str:
        if key in of_code:
            return key
        return f"{table}.{key}" if key in of_guard else _variable(key)

    figures = of_all | of_guard | of_code
    problems = contradictions(figures, of_code, called)
    if problems:
        raise ConfigError(Problem(f"{table}.{p.variable}", p.message, p.hint) for p in problems)
    return figures


def of_all_guards(values: Mapping[str, Any], given: Collection[str], wrong: Collection[str]) -> list[Problem]:
    """Find contradictions among ``BREAKER_*``; the arguments are those of ``failed_checks``."""
    written = {key for key in BREAKER_FORMS if BREAKER + key in given}
    found = contradictions(_figures(values, wrong), written, _variable)
    return [Problem(BREAKER + p.variable, p.message, p.hint) for p in found]


def of_each_guard(raw: object, values: Mapping[str, Any], wrong: Collection[str]) -> list[Problem]:
    """Find contradictions between the table of a guard and the defaults of all guards.

    Values that are invalid by themselves are left out of the checks.

    Args:
        raw: the guards as they were given.
        values: all settings.
        wrong: names of settings that are invalid by themselves.
    """
    try:
        pairs = named(raw, GuardPolicy)
    except ValueError:
        return []
    of_all = _figures(values, wrong)
    if MARGIN not in wrong:
        of_all["margin"] = values[MARGIN]
    problems = []
    for name, part in pairs:
        own, faulty = _own(part)
        told = contradictions(own, own)
        for problem in contradictions(
            {key: value for key, value in (of_all | own).items() if key not in faulty},
            own,
            lambda key, own=own: key if key in own else _variable(key),  # type: ignore[misc]
        ):
            if problem not in told:
                place = f"guards.{spelled(name)}.{problem.variable}"
                problems.append(Problem(place, problem.message, problem.hint))
    return problems


def _own(part: object) -> tuple[dict[str, Any], set[str]]:
    """Return the valid values of a guard's table, and the keys of the invalid ones."""
    if isinstance(part, BreakerSettings):
        part = {key: getattr(part, key) for key in part.forms}
    table = part if isinstance(part, Mapping) else {}
    left_out = dict.fromkeys(OWN_ALONE)
    values, _ = read_all({key: GUARD_FORMS[key] for key in GUARD_KEYS}, {**left_out, **table})
    own = {key: value for key, value in values.items() if value is not None or key in OWN_ALONE}
    return own, {key for key in GUARD_KEYS if key in table and key not in values}


def _figures(values: Mapping[str, Any], wrong: Collection[str]) -> dict[str, Any]:
    return {key: values[BREAKER + key] for key in BREAKER_FORMS if BREAKER + key not in wrong}


def _variable(key: str) -> str:
    return MARGIN if key == "margin" else (BREAKER + key).upper()
