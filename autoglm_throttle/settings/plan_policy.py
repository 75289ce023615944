"""Plans: limits and priority of groups of callers, by name, with their members."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from autoglm_throttle.settings.caller_field_types import UserLimitsType
from autoglm_throttle.settings.field_types import (
    FieldType,
    FieldTypeError,
    Listed,
    PriorityType,
    WithNone,
    read_all,
)
from autoglm_throttle.settings.problems import ConfigError, Problem, quoted_key, unknown_keys
from autoglm_throttle.settings.route_policy import Label
from autoglm_throttle.types import Priority, PriorityName, UserLimit

_IDENTITY = re.compile(r"[0-9a-f]{16}")


class Member(FieldType[str]):
    """The identity text of a caller, never the key or address itself."""

    allowed = "identity texts of 16 hex digits, as printed by autoglm-throttle identity"
    example = "07f3a9c2d4e5b617"
    secret = True
    """An API key that was put here by mistake must not appear in a log."""

    def parse(self, raw: object) -> str:
        """Accept 16 hex digits."""
        text = raw.strip().lower() if isinstance(raw, str) else ""
        if not _IDENTITY.fullmatch(text):
            raise FieldTypeError
        return text


class Members(Listed):
    """A list of identity texts; its problems are counted, not quoted."""

    secret = True

    def __init__(self) -> None:
        super().__init__(Member())

    def parse(self, raw: object) -> tuple[str, ...]:
        """Parse the list without ever repeating its content."""
        try:
            return super().parse(raw)
        except ValueError:
            raise FieldTypeError(f"for example {self.example}") from None


PLAN_FIELD_TYPES: Final[Mapping[str, FieldType[Any]]] = {
    "name": Label(),
    "user_limit": WithNone(UserLimitsType()),
    "priority": WithNone(PriorityType()),
    "members": Members(),
}


@dataclass(frozen=True, slots=True, init=False)
class PlanPolicy:
    """Limits and priority of one group of callers.

    Args:
        name: the name in ``Demand.plan``.
        user_limit: replaces ``USER_LIMIT`` for each member; ``off`` lifts it, None leaves it.
        priority: the class of its requests; None leaves it to routes and settings.
        members: identity texts of the callers (16 hex digits); they mean the same caller everywhere
            only with a ``KEY_SECRET``.

    Raises:
        ConfigError: one problem for each argument that is not allowed.
    """

    name: str
    user_limit: tuple[UserLimit, ...] | None
    priority: Priority | None
    members: tuple[str, ...]

    def __init__(
        self,
        name: str,
        user_limit: str | Sequence[UserLimit] | None = None,
        priority: Priority | PriorityName | None = None,
        members: Iterable[str] = (),
    ) -> None:
        given = dict(zip(PLAN_FIELD_TYPES, (name, user_limit, priority, members), strict=True))
        values, problems = read_all(PLAN_FIELD_TYPES, given)
        if problems:
            raise ConfigError(problems)
        for field, value in values.items():
            object.__setattr__(self, field, value)


class PlanPolicies(Mapping[str, PlanPolicy]):
    """All plans by name; immutable.

    Args:
        plans: each name once, each member in one plan only.

    Raises:
        ConfigError: a name or a member occurs twice.
    """

    __slots__ = ("_by_member", "_by_name")

    def __init__(self, plans: Iterable[PlanPolicy] = ()) -> None:
        self._by_name: dict[str, PlanPolicy] = {}
        self._by_member: dict[str, PlanPolicy] = {}
        problems = []
        for plan in plans:
            if self._by_name.setdefault(plan.name, plan) is not plan:
                problems.append(Problem(f".{quoted_key(plan.name)}", "is given twice"))
            for member in plan.members:
                other = self._by_member.setdefault(member, plan)
                if other is not plan:
                    problems.append(
                        Problem(
                            f".{quoted_key(plan.name)}.members",
                            f"{member} is already a member of {other.name}",
                        )
                    )
        if problems:
            raise ConfigError(problems)

    def of(self, member: str) -> PlanPolicy | None:
        """Return the plan of a caller, by identity text; None if there is none."""
        return self._by_member.get(member)

    @property
    def has_members(self) -> bool:
        """Whether any plan has members."""
        return bool(self._by_member)

    def __getitem__(self, name: str) -> PlanPolicy:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def __repr__(self) -> str:
        return f"PlanPolicies({list(self._by_name.values())!r})"


def plan_from_table(name: str, table: object) -> PlanPolicy:
    """Build a plan from one ``[plans.<name>]`` table.

    Raises:
        ConfigError: problems under the names of the keys, each with a dot in front.
    """
    if not isinstance(table, Mapping):
        raise ConfigError([Problem("", "must be a table")])
    keys = tuple(key for key in PLAN_FIELD_TYPES if key != "name")
    problems = unknown_keys(table, keys)
    try:
        plan = PlanPolicy(name, **{key: table[key] for key in keys if key in table})
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(Problem("." + p.variable, p.message, p.hint) for p in problems)
    return plan
