"""Policy of one group of requests: a pattern of paths and the settings that apply to them."""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Self, Unpack

from pydantic import ValidationInfo, model_validator

from autoglm_throttle.settings.field_types import (
    FLAG,
    OBJECTIVE,
    PRIORITY,
    FieldType,
    FieldTypeError,
    choice,
    listed,
    number,
    parts_of,
    word,
)
from autoglm_throttle.settings.groups.base import Override, validate
from autoglm_throttle.settings.groups.callers import PATH_CHARACTERS, USER_LIMITS
from autoglm_throttle.settings.groups.gpu import PRECISION, RATIO
from autoglm_throttle.settings.problems import ConfigError, Problem
from autoglm_throttle.types import Priority, SlotUse, UserLimit

if TYPE_CHECKING:
    import autoglm_throttle.settings.values as v

REST: Final = "*"  # as the last segment: matches any rest of the path, or nothing
_NAMED: Final = r"\{[A-Za-z_][A-Za-z0-9_]*\}"
_ENCODED: Final = r"%[0-9A-Fa-f]{2}"
_METHOD: Final = r"[A-Z][A-Z0-9-]{0,31}"
_NO_LITERAL = set("{}*?# ")


def _pattern(raw: object) -> str:
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


def _check_segment(segment: str) -> None:
    if re.fullmatch(_NAMED, segment):
        return
    if not segment:
        raise FieldTypeError("an empty segment: two slashes in a row count as one")
    if segment == REST:
        raise FieldTypeError("* stands only at the end; for one segment write {name}")
    if set(segment) & _NO_LITERAL:
        raise FieldTypeError("a segment is literal text, {name}, or * at the end")
    if re.search(_ENCODED, segment):
        raise FieldTypeError("paths are matched decoded: write the character itself")


def _methods(raw: object) -> frozenset[str]:
    names = [part.strip().upper() if isinstance(part, str) else "" for part in parts_of(raw)]
    if not names or not all(re.fullmatch(_METHOD, name) for name in names):
        raise FieldTypeError
    return frozenset(names)


def _resource_policy(raw: object) -> "ResourcePolicy":
    if isinstance(raw, ResourcePolicy):
        return raw
    table = dict(raw) if isinstance(raw, Mapping) else {None: raw}
    if not all(isinstance(key, str) for key in table):
        raise FieldTypeError
    policy, problems, _ = validate(ResourcePolicy, table)
    if policy is None or problems:
        raise ConfigError(problem.below(".") for problem in problems)
    return policy


PATTERN: Final = FieldType("a path such as /v1/chat, /users/{id} or /v1/*", "/v1/*", _pattern)
METHODS: Final = FieldType(
    "HTTP methods such as GET,POST", "POST", _methods, text=lambda names: ",".join(sorted(names))
)
LABEL: Final = word(
    r"[ !#-\[\]-~]{1,200}",
    "1 to 200 ASCII characters without quotes or control characters",
    "chat",
)
"""A name that can stand in headers, logs and metrics."""

RESOURCE_POLICY: Final = FieldType(
    "a table with precision_hint, gpu_memory_ratio or compute_priority",
    "{ gpu_memory_ratio = 0.5 }",
    _resource_policy,
)


class ResourcePolicy(Override):
    """Memory share and serving advice of one route; None leaves a value unchanged.

    Raises:
        ConfigError: one problem for each argument that is not allowed.
    """

    precision_hint: Annotated[tuple[str, ...], listed(PRECISION)] | None = None
    """Labels of the variants, the best first; replaces ``precisions``."""
    gpu_memory_ratio: Annotated[float, RATIO] | None = None
    """Share of the memory for requests, 0.01..1, above which the route's are rejected, in every class."""
    compute_priority: Annotated[Priority, PRIORITY] | None = None
    """The class passed to the engine."""

    if TYPE_CHECKING:

        def __init__(self, **values: Unpack[v.ResourceValues]) -> None: ...


class RoutePolicy(Override):
    """Policy of the requests that match one pattern. Among several policies the first match counts.

    Raises:
        ConfigError: one problem for each argument that is not allowed.
    """

    positional: ClassVar[str] = "pattern"

    pattern: Annotated[str, PATTERN]
    """Segments are literal, ``{name}`` (any one segment) or, as the last, ``*`` (the rest, may be empty)."""
    methods: Annotated[frozenset[str], METHODS] | None = None
    """The methods it applies to; None is all of them."""
    priority: Annotated[Priority, PRIORITY] | None = None
    """Replaces ``PRIORITY_DEFAULT``; None leaves it."""
    cost: Annotated[float, number(0, 1e9, "units", above=True)] = 1.0
    """Units, up to 1e9, that a request takes from its bucket and, rounded up, from user windows; above 0."""
    user_limit: Annotated[tuple[UserLimit, ...], USER_LIMITS] | None = None
    """Replaces the user limit of settings and plan; ``off`` lifts it, None leaves it."""
    name: Annotated[str, LABEL] = ""
    """Its name in rejections, logs and metrics; not set: made from methods and pattern."""
    exempt: Annotated[bool, FLAG] = False
    """Counted, but neither charged nor rejected."""
    slo_s: Annotated[float, OBJECTIVE] | None = None
    """Target seconds for a complete response, 0.001..86400, for its work class; None: as ``SLO_S``."""
    slot: Annotated[SlotUse, choice(SlotUse)] = SlotUse.REQUEST
    """When its requests hold a slot of the concurrency limit, see ``SlotUse``."""
    resource_policy: Annotated[ResourcePolicy, RESOURCE_POLICY] | None = None
    """Memory share and serving advice of its requests; it turns ``QUOTAS`` on. None leaves it."""

    if TYPE_CHECKING:

        def __init__(self, pattern: str, **values: Unpack[v.RouteValues]) -> None: ...

    @model_validator(mode="after")
    def _complete(self, info: ValidationInfo) -> Self:
        given = self.model_fields_set | set(info.context or ())
        charged = {"priority", "user_limit", "resource_policy"} & given
        if self.exempt and (charged or self.cost != 1.0 or "cost" in (info.context or ())):
            left_out = "leave out cost, priority, user_limit, resource_policy"
            raise ConfigError([Problem("exempt", "an exempt route is never charged", left_out)])
        if not self.name:
            # The model is frozen.
            self.__dict__["name"] = f"{','.join(sorted(self.methods or ()))} {self.pattern}".strip()
        return self

    @cached_property
    def segments(self) -> tuple[str, ...]:
        """The pattern's parts between slashes; none for ``/``."""
        return tuple(self.pattern[1:].split("/")) if self.pattern != "/" else ()

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


def earlier_matches(routes: Sequence[RoutePolicy]) -> list[tuple[int, ...]]:
    """Return for each policy the earlier ones that together match all its requests; none if it can apply."""
    longest = max((len(route.segments) for route in routes), default=0)
    tree = _PatternTree()
    found = []
    for position, route in enumerate(routes):
        # Exact: a request with segments and a method that no policy names stands for all others of its kind,
        # and no length beyond the longest pattern behaves differently.
        witnesses = _witnesses(route, longest)
        takers = [at for request in witnesses if (at := tree.first(*request)) is not None]
        found.append(tuple(dict.fromkeys(takers)) if len(takers) == len(witnesses) else ())
        tree.add(position, route)
    return found


class _PatternTree:
    """Earlier patterns by segment, so that the check of many routes takes linear time."""

    def __init__(self) -> None:
        self.children: dict[str, _PatternTree] = {}
        # Method (None: all) -> position of the first policy whose pattern ends here, or matches any rest.
        self.ends: dict[str | None, int] = {}
        self.rests: dict[str | None, int] = {}

    def add(self, position: int, route: RoutePolicy) -> None:
        """Add a pattern; an earlier one with the same requests stays."""
        node = self
        fixed = [part for part in route.segments if part != REST]
        for part in fixed:
            node = node.children.setdefault("{}" if part.startswith("{") else part, _PatternTree())
        table = node.ends if len(fixed) == len(route.segments) else node.rests
        for method in route.methods or (None,):
            table.setdefault(method, position)

    def first(self, method: str, segments: Sequence[str]) -> int | None:
        """Return the position of the first policy that matches a request."""
        tables = [self.rests] if segments else [self.rests, self.ends]
        found = [table[name] for table in tables for name in (method, None) if name in table]
        parts = {segments[0], "{}"} & self.children.keys() if segments else ()
        further = (self.children[part].first(method, segments[1:]) for part in parts)
        found += [at for at in further if at is not None]
        return min(found, default=None)


def _witnesses(route: RoutePolicy, longest: int) -> list[tuple[str, tuple[str, ...]]]:
    other = "\0"
    fixed = tuple(other if part.startswith("{") else part for part in route.segments if part != REST)
    tails = range(longest + 2 - len(fixed)) if route.segments[-1:] == (REST,) else range(1)
    methods = sorted(route.methods or {other})
    return [(method, fixed + (other,) * tail) for method in methods for tail in tails]
