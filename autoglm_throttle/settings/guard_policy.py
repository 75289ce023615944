"""Configuration of one guard: a table ``[guards.<name>]``, or the same in code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from autoglm_throttle.settings.breaker_settings import BREAKER_FIELD_TYPES, BreakerSettings
from autoglm_throttle.settings.degrade_fields import AGE, LOAD
from autoglm_throttle.settings.field_types import ChoiceType, FieldType, FieldTypeError, WithNone
from autoglm_throttle.settings.problems import ConfigError, Problem, quoted_key, unknown_keys
from autoglm_throttle.types import Criticality, CriticalityName

NAME_CHARACTERS: Final = 200


class GuardName(FieldType[str]):
    """The name of a guard; an origin such as ``https://host:8443`` is a name, too."""

    allowed: str = f"a name of 1 to {NAME_CHARACTERS} printable characters"
    example = "vector-db"

    def parse(self, raw: object) -> str:
        """Accept the name unchanged: code refers to it letter by letter."""
        if not isinstance(raw, str) or not raw.isprintable() or not 1 <= len(raw) <= NAME_CHARACTERS:
            raise FieldTypeError
        return raw


GUARD_FIELD_TYPES: Final[Mapping[str, FieldType[Any]]] = {
    "name": GuardName(),
    **BREAKER_FIELD_TYPES,
    "criticality": WithNone(ChoiceType(Criticality)),
    "shed_above": WithNone(LOAD),
    "max_stale_s": WithNone(AGE),
}

GUARD_KEYS: Final = tuple(key for key in GUARD_FIELD_TYPES if key != "name")
"""The keys of a table ``[guards.<name>]``."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GuardPolicy(BreakerSettings):
    """Settings of one guard instead of ``BREAKER_*`` and ``DEGRADE_*``; None leaves a value to them.

    Args:
        name: the name in ``throttle.guard(name)``.
        criticality: whether its feature is core; None: as registered in code.
        shed_above: load above which the feature is shed, 0.01..1, instead of ``DEGRADE_SHED_AT``; it
            needs the criticality ``non_core``.
        max_stale_s: age in seconds up to which a cached response may replace a new one.

    The others are those of ``BreakerSettings``.

    Raises:
        ConfigError: one problem for each argument that is not allowed, and for each two that
            contradict each other.
    """

    name: str = field(kw_only=False)
    criticality: Criticality | CriticalityName | None = None
    shed_above: float | str | None = None
    max_stale_s: float | str | None = None

    field_types: ClassVar[Mapping[str, FieldType[Any]]] = GUARD_FIELD_TYPES


class GuardPolicies(Mapping[str, GuardPolicy]):
    """The policies of all guards by name; immutable.

    Args:
        policies: each name once.

    Raises:
        ConfigError: a name occurs twice.
    """

    __slots__ = ("_by_name",)

    def __init__(self, policies: Iterable[GuardPolicy] = ()) -> None:
        self._by_name: dict[str, GuardPolicy] = {}
        problems = [
            Problem(f".{quoted_key(policy.name)}", "is given twice")
            for policy in policies
            if self._by_name.setdefault(policy.name, policy) is not policy
        ]
        if problems:
            raise ConfigError(problems)

    def __getitem__(self, name: str) -> GuardPolicy:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def __repr__(self) -> str:
        return f"GuardPolicies({list(self._by_name.values())!r})"


def guard_from_table(name: str, table: object) -> GuardPolicy:
    """Build a policy from one ``[guards.<name>]`` table, or from ``BreakerSettings`` made in code.

    Raises:
        ConfigError: problems under the names of the keys, each with a dot in front.
    """
    if isinstance(table, BreakerSettings):
        table = table.explicit_fields()
    if not isinstance(table, Mapping):
        raise ConfigError([Problem("", "must be a table", 'for example { failures = 3, open_s = "30s" }')])
    problems = unknown_keys(table, GUARD_KEYS)
    try:
        policy = GuardPolicy(name, **{key: table[key] for key in GUARD_KEYS if key in table})
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(_below_table(problem) for problem in problems)
    return policy


def _below_table(problem: Problem) -> Problem:
    """Move a problem below its table; one of the name becomes one of the table itself."""
    where = "" if problem.variable == "name" else f".{problem.variable}"
    return Problem(where, problem.message, problem.hint)
