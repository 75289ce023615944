"""Policy of one group of requests: a pattern of paths and the settings that apply to them.

This module holds only the policy and its checks. The table that finds the policy of a request in
a fraction of a microsecond belongs to the ASGI layer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from autoglm_throttle.settings.caller_field_types import PATH_CHARACTERS, UserLimitsType
from autoglm_throttle.settings.control_fields import OBJECTIVE
from autoglm_throttle.settings.field_types import (
    FieldType,
    FieldTypeError,
    Flag,
    Number,
    PriorityType,
    WithNone,
    read_all,
)
from autoglm_throttle.settings.problems import ConfigError, Problem, unknown_keys
from autoglm_throttle.settings.resource_policy import ResourcePolicy, ResourcePolicyType
from autoglm_throttle.types import Priority, PriorityName, UserLimit

REST: Final = "*"
"""As the last segment: matches any rest of the path, or nothing."""

COST_AT_MOST = 1e9
NAME_CHARACTERS = 200

_NAMED = re.compile(r"\{[A-Za-z_][A-Za-z0-9_]*\}")
_ENCODED = re.compile(r"%[0-9A-Fa-f]{2}")
_METHOD = re.compile(r"[A-Z][A-Z0-9-]{0,31}")
_NO_LITERAL = set("{}*?# ")


class Pattern(FieldType[str]):
    """A path of segments: literal, ``{name}`` for any one segment, or ``*`` for the rest."""

    allowed = "a path such as /v1/chat, /users/{id} or /v1/*"
    example = "/v1/*"

    def parse(self, raw: object) -> str:
        """Parse a pattern; a slash at the end is dropped, because paths are matched without it."""
        text = raw.strip() if isinstance(raw, str) else ""
        if not text.startswith("/") or not text.isprintable() or len(text) > PATH_CHARACTERS:
            raise FieldTypeError
        path = text.rstrip("/")
        *front, last = path[1:].split("/")
        for segment in front if last == REST or not path else [*front, last]:
            _check_segment(segment)
        named = [segment for segment in (*front, last) if segment.startswith("{")]
        if len(set(named)) < len(named):
            raise FieldTypeError("two segments have one name")
        return path or "/"


class Methods(FieldType[frozenset[str]]):
    """Names of HTTP methods."""

    allowed = "HTTP methods such as GET,POST"
    example = "POST"

    def parse(self, raw: object) -> frozenset[str]:
        """Parse text separated by commas, or several texts."""
        parts = raw.split(",") if isinstance(raw, str) else raw
        if not isinstance(parts, Iterable) or isinstance(parts, (bytes, Mapping)):
            raise FieldTypeError
        names = [part.strip().upper() if isinstance(part, str) else "" for part in parts]
        if not names or not all(_METHOD.fullmatch(name) for name in names):
            raise FieldTypeError
        return frozenset(names)

    def text(self, value: frozenset[str]) -> str:
        """Format the names in alphabetical order."""
        return ",".join(sorted(value))


class Label(FieldType[str]):
    """A name that can stand in headers, logs and metrics."""

    allowed: str = f"1 to {NAME_CHARACTERS} ASCII characters without quotes or control characters"
    example = "chat"

    def parse(self, raw: object) -> str:
        """Accept a printable name."""
        name = raw.strip() if isinstance(raw, str) else ""
        good = name.isascii() and name.isprintable() and not set(name) & set('"\\')
        if not good or not 1 <= len(name) <= NAME_CHARACTERS:
            raise FieldTypeError
        return name


ROUTE_FIELD_TYPES: Final[Mapping[str, FieldType[Any]]] = {
    "pattern": Pattern(),
    "methods": WithNone(Methods()),
    "priority": WithNone(PriorityType()),
    "cost": Number(0, COST_AT_MOST, "units", above=True),
    "user_limit": WithNone(UserLimitsType()),
    "name": WithNone(Label()),
    "exempt": Flag(),
    "slo_s": WithNone(OBJECTIVE),
    "resource_policy": WithNone(ResourcePolicyType()),
}


@dataclass(frozen=True, slots=True, init=False)
class RoutePolicy:
    """Policy of the requests that match one pattern. Among several policies the first match counts.

    Args:
        pattern: segments are literal, ``{name}`` (any one segment) or, as the last, ``*``
            (the rest, may be empty).
        methods: the methods it applies to; None is all of them.
        priority: replaces ``PRIORITY_DEFAULT``; None leaves it.
        cost: units taken per request from the priority bucket and, rounded up, from user windows; above 0.
        user_limit: replaces the user limit of settings and plan, in the notation or ready; ``off`` lifts it,
            None leaves it.
        name: its name in rejections, logs and metrics; None makes one from methods and pattern.
        exempt: counted, but neither charged nor rejected.
        slo_s: target seconds for a complete response, 0.001..86400; None leaves it to ``SLO_S``.
        resource_policy: memory share and serving advice of its requests, ready or as a table; it turns
            ``QUOTAS`` on. None leaves it.

    Raises:
        ConfigError: one problem for each argument that is not allowed.
    """

    pattern: str
    methods: frozenset[str] | None
    priority: Priority | None
    cost: float
    user_limit: tuple[UserLimit, ...] | None
    name: str
    exempt: bool
    slo_s: float | None
    resource_policy: ResourcePolicy | None
    segments: tuple[str, ...] = field(repr=False, compare=False)
    """The pattern's parts between slashes; none for ``/``."""

    def __init__(  # noqa: PLR0913, PLR0917 - one argument for each column of the table
        self,
        pattern: str,
        methods: Iterable[str] | None = None,
        priority: Priority | PriorityName | None = None,
        cost: float = 1.0,
        user_limit: str | Sequence[UserLimit] | None = None,
        name: str | None = None,
        exempt: bool = False,
        slo_s: float | str | None = None,
        resource_policy: ResourcePolicy | Mapping[str, object] | None = None,
    ) -> None:
        given = (pattern, methods, priority, cost, user_limit, name, exempt, slo_s, resource_policy)
        values, problems = read_all(ROUTE_FIELD_TYPES, dict(zip(ROUTE_FIELD_TYPES, given, strict=True)))
        of_the_charged = (priority, user_limit, resource_policy)
        if exempt is True and (cost != 1.0 or any(column is not None for column in of_the_charged)):
            left_out = "leave out cost, priority, user_limit, resource_policy"
            problems.append(Problem("exempt", "an exempt route is never charged", left_out))
        if problems:
            raise ConfigError(problems)
        if values["name"] is None:
            methods_text = ",".join(sorted(values["methods"] or ()))
            values["name"] = f"{methods_text} {values['pattern']}".strip()
        values["segments"] = segments_of(values["pattern"])
        for column, value in values.items():
            object.__setattr__(self, column, value)

    def matches(self, method: str, segments: Sequence[str]) -> bool:
        """Whether a request of this method and these path segments matches the pattern."""
        if self.methods is not None and method not in self.methods:
            return False
        mine = self.segments
        if mine[-1:] == (REST,):
            mine = mine[:-1]
            segments = segments[: len(mine)]
        return len(mine) == len(segments) and all(
            part == given or part.startswith("{") for part, given in zip(mine, segments, strict=True)
        )


def segments_of(path: str) -> tuple[str, ...]:
    """Split a path at its slashes, the slash at the end not counted."""
    return tuple(path.strip("/").split("/")) if path.strip("/") else ()


def unreachable(routes: Sequence[RoutePolicy]) -> list[tuple[RoutePolicy, tuple[RoutePolicy, ...]]]:
    """Find policies that can never apply, each with the earlier ones that match all its requests."""
    longest = max((len(route.segments) for route in routes), default=0)
    found = []
    for position, route in enumerate(routes):
        takers: dict[RoutePolicy, None] = {}
        # Exact: a request with segments and a method that no policy names stands for all others of its kind,
        # and no length beyond the longest pattern behaves differently.
        for method, segments in _witnesses(route, longest):
            taker = next((r for r in routes[:position] if r.matches(method, segments)), None)
            if taker is None:
                break
            takers[taker] = None
        else:
            found.append((route, tuple(takers)))
    return found


def _witnesses(route: RoutePolicy, longest: int) -> list[tuple[str, tuple[str, ...]]]:
    other = "\0"
    fixed = tuple(other if part.startswith("{") else part for part in route.segments if part != REST)
    tails = range(longest + 2 - len(fixed)) if route.segments[-1:] == (REST,) else range(1)
    methods = sorted(route.methods or {other})
    return [(method, fixed + (other,) * tail) for method in methods for tail in tails]


def route_from_table(table: object) -> RoutePolicy:
    """Build a policy from one ``[[routes]]`` table.

    Raises:
        ConfigError: problems under the names of the keys, each with a dot in front.
    """
    if not isinstance(table, Mapping):
        raise ConfigError([Problem("", "must be a table with the key pattern")])
    problems = unknown_keys(table, tuple(ROUTE_FIELD_TYPES))
    if "pattern" not in table:
        problems.append(Problem("pattern", "is missing", f"for example {Pattern.example}"))
    known = {key: table[key] for key in ROUTE_FIELD_TYPES if key in table}
    try:
        route = RoutePolicy(**({"pattern": Pattern.example} | known))
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(Problem("." + p.variable, p.message, p.hint) for p in problems)
    return route


def _check_segment(segment: str) -> None:
    if _NAMED.fullmatch(segment):
        return
    if not segment:
        raise FieldTypeError("an empty segment: two slashes in a row count as one")
    if segment == REST:
        raise FieldTypeError("* stands only at the end; for one segment write {name}")
    if set(segment) & _NO_LITERAL:
        raise FieldTypeError("a segment is literal text, {name}, or * at the end")
    if _ENCODED.search(segment):
        raise FieldTypeError("paths are matched decoded: write the character itself")
