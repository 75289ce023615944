"""Policy of one group of requests: a pattern of paths and the settings that apply to them."""

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Self, Unpack

from pydantic import ValidationInfo, model_validator

from autoglm_throttle.settings import field_types as f
from autoglm_throttle.settings.field_types import FieldType, FieldTypeError
from autoglm_throttle.settings.groups.base import Override, validate
from autoglm_throttle.settings.groups.callers import PATH_CHARACTERS, USER_LIMITS, ErrorStyle
from autoglm_throttle.settings.groups.gpu import PRECISION, RATIO
from autoglm_throttle.settings.groups.tokens import TOKEN_FIELDS, token_limit_problems
from autoglm_throttle.settings.problems import ConfigError, Problem
from autoglm_throttle.settings.sources import as_table
from autoglm_throttle.types import Priority, SlotUse, UserLimit

if TYPE_CHECKING:
    import autoglm_throttle.settings.values as v

REST: Final = "*"  # as the last segment: matches any rest of the path, or nothing
# Patterns of segments that are not allowed, with the reason; a segment ``{name}`` is.
_WRONG_SEGMENTS: Final = (
    (r"", "an empty segment: two slashes in a row count as one"),
    (r"\*", "* stands only at the end; for one segment write {name}"),
    (r".*[{}*?# ].*", "a segment is literal text, {name}, or * at the end"),
    (r".*%[0-9A-Fa-f]{2}.*", "paths are matched decoded: write the character itself"),
)


def _pattern(raw: object) -> str:
    """Parse a pattern; a slash at the end is dropped, because paths are matched without it."""
    text = f.text_of(raw)
    if not text.startswith("/") or not text.isprintable() or len(text) > PATH_CHARACTERS:
        raise FieldTypeError
    path = text.rstrip("/")
    segments = path.removesuffix("/" + REST).split("/")[1:]
    named = [segment for segment in segments if re.fullmatch(r"\{[A-Za-z_][A-Za-z0-9_]*\}", segment)]
    for segment in segments:
        reasons = (reason for wrong, reason in _WRONG_SEGMENTS if re.fullmatch(wrong, segment))
        if segment not in named and (reason := next(reasons, "")):
            raise FieldTypeError(reason)
    if len(set(named)) < len(named):
        raise FieldTypeError("two segments have one name")
    return path or "/"


def _methods(raw: object) -> frozenset[str]:
    names = [f.text_of(part).upper() for part in f.parts_of(raw)]
    if not names or not all(re.fullmatch(r"[A-Z][A-Z0-9-]{0,31}", name) for name in names):
        raise FieldTypeError
    return frozenset(names)


def _resource_policy(raw: object) -> "ResourcePolicy":
    if isinstance(raw, ResourcePolicy):
        return raw
    table = as_table(raw)
    if table is None:
        raise FieldTypeError
    policy, problems, _ = validate(ResourcePolicy, table)
    if policy is None or problems:
        raise ConfigError(problem.below(".") for problem in problems)
    return policy


PATTERN: Final = FieldType("a path such as /v1/chat, /users/{id} or /v1/*", "/v1/*", _pattern)
METHODS: Final = FieldType(
    "HTTP methods such as GET,POST", "POST", _methods, text=lambda names: ",".join(sorted(names))
)
# A name that can stand in headers, logs and metrics.
LABEL: Final = f.word(
    r"[ !#-\[\]-~]{1,200}", "1 to 200 ASCII characters without quotes or control characters", "chat"
)
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

    precision_hint: Annotated[tuple[str, ...], f.listed(PRECISION)] | None = None
    """Labels of the variants, the best first; replaces ``precisions``."""
    gpu_memory_ratio: Annotated[float, RATIO] | None = None
    """Share of the memory for requests, 0.01..1, above which the route's are rejected, in every class."""
    compute_priority: Annotated[Priority, f.PRIORITY] | None = None
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
    """The methods it applies to, GET covers HEAD; None is all of them."""
    priority: Annotated[Priority, f.PRIORITY] | None = None
    """Replaces ``PRIORITY_DEFAULT``; None leaves it."""
    cost: Annotated[float, f.number(0, 1e9, "units", above=True)] = 1.0
    """Units, up to 1e9, that a request takes from its bucket and, rounded up, from user windows; above 0."""
    user_limit: Annotated[tuple[UserLimit, ...], USER_LIMITS] | None = None
    """Replaces the user limit of settings and plan; ``off`` lifts it, None leaves it."""
    tokens_limit: Annotated[tuple[UserLimit, ...], USER_LIMITS] | None = None
    """Replaces ``TOKENS_LIMIT`` and that of the plan; ``off`` lifts it, None leaves it."""
    tokens_input_limit: Annotated[tuple[UserLimit, ...], USER_LIMITS] | None = None
    """Replaces ``tokens_input_limit`` in the same way."""
    tokens_output_limit: Annotated[tuple[UserLimit, ...], USER_LIMITS] | None = None
    """Replaces ``tokens_output_limit`` in the same way."""
    name: Annotated[str, LABEL] = ""
    """Its name in rejections, logs and metrics; not set: made from methods and pattern."""
    exempt: Annotated[bool, f.FLAG] = False
    """Counted, but neither charged nor rejected."""
    slo_s: Annotated[float, f.OBJECTIVE] | None = None
    """Target seconds for a complete response, 0.001..86400, for its work class; None: as ``SLO_S``."""
    slot: Annotated[SlotUse, f.choice(SlotUse)] = SlotUse.REQUEST
    """When its requests hold a slot of the concurrency limit, see ``SlotUse``."""
    errors: Annotated[ErrorStyle, f.choice(ErrorStyle)] | None = None
    """Replaces ``errors`` of all; None leaves it."""
    resource_policy: Annotated[ResourcePolicy, RESOURCE_POLICY] | None = None
    """Memory share and serving advice of its requests; it turns ``QUOTAS`` on. None leaves it."""

    if TYPE_CHECKING:

        def __init__(self, pattern: str, **values: Unpack[v.RouteValues]) -> None: ...

    @model_validator(mode="after")
    def _complete(self, info: ValidationInfo) -> Self:
        given = self.model_fields_set | set(info.context or ())
        charged = {"priority", "user_limit", "resource_policy", *TOKEN_FIELDS.values()} & given
        if self.exempt and (charged or self.cost != 1.0 or "cost" in (info.context or ())):
            left_out = "leave out cost, priority, user_limit, token limits, resource_policy"
            raise ConfigError([Problem("exempt", "an exempt route is never charged", left_out)])
        if problems := token_limit_problems(self.__dict__):
            raise ConfigError(problems)
        if not self.name:
            # The model is frozen.
            self.__dict__["name"] = f"{','.join(sorted(self.methods or ()))} {self.pattern}".strip()
        return self

    @property
    def limits_tokens(self) -> bool:
        """Whether it has a token limit of its own."""
        return any(getattr(self, name) for name in TOKEN_FIELDS.values())

    @cached_property
    def segments(self) -> tuple[str, ...]:
        """The pattern's parts between slashes; none for ``/``."""
        return tuple(self.pattern[1:].split("/")) if self.pattern != "/" else ()

    @cached_property
    def covered_methods(self) -> frozenset[str] | None:
        """The methods it applies to; HEAD too where GET is: servers answer it with the handler of GET."""
        methods = self.methods
        return methods | {"HEAD"} if methods is not None and "GET" in methods else methods


class RouteTrie:
    """Positions of route policies by path segment: finds the first match without visiting every policy."""

    def __init__(self, routes: Iterable[RoutePolicy] = ()) -> None:
        self._root = _Node()
        for position, route in enumerate(routes):
            self.add(route, position)

    def add(self, route: RoutePolicy, position: int) -> None:
        """Insert a policy; its position must be above those inserted before."""
        node = self._root
        fixed = [part for part in route.segments if part != REST]
        for part in fixed:
            # No segment of a path is empty, so the empty text stands for any one segment.
            node = node.children.setdefault("" if part.startswith("{") else part, _Node())
        positions = node.exact if len(fixed) == len(route.segments) else node.rest
        for method in route.covered_methods or (None,):
            positions.setdefault(method, position)

    def first(self, method: str, segments: Iterable[str]) -> int | None:
        """Return the position of the first policy that matches a request; None if no policy does."""
        nodes = [self._root]
        found: list[dict[str | None, int]] = []
        for segment in segments:
            reached: list[_Node] = []
            for node in nodes:
                found.append(node.rest)
                if segment in node.children:
                    reached.append(node.children[segment])
                if "" in node.children:
                    reached.append(node.children[""])
            nodes = reached
            if not nodes:
                break
        for node in nodes:
            found += (node.exact, node.rest)
        matching = [places[name] for places in found for name in (method, None) if name in places]
        return min(matching, default=None)


class _Node:
    """Policies whose patterns begin alike: the first position of each method; the key None: any method."""

    __slots__ = ("children", "exact", "rest")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.exact: dict[str | None, int] = {}  # Patterns that end here
        self.rest: dict[str | None, int] = {}  # Patterns that match any rest from here on


def earlier_matches(routes: Sequence[RoutePolicy]) -> list[tuple[int, ...]]:
    """Return for each policy the earlier ones that together match all its requests; none if it can apply."""
    longest = max((len(route.segments) for route in routes), default=0)
    earlier = RouteTrie()
    found = []
    for position, route in enumerate(routes):
        # Exact: a request with segments and a method that no policy names stands for all others of its kind,
        # and no length beyond the longest pattern behaves differently.
        witnesses = _witnesses(route, longest)
        takers = [at for request in witnesses if (at := earlier.first(*request)) is not None]
        found.append(tuple(dict.fromkeys(takers)) if len(takers) == len(witnesses) else ())
        earlier.add(route, position)
    return found


def _witnesses(route: RoutePolicy, longest: int) -> list[tuple[str, tuple[str, ...]]]:
    other = "\0"
    fixed = tuple(other if part.startswith("{") else part for part in route.segments if part != REST)
    tails = range(longest + 2 - len(fixed)) if route.segments[-1:] == (REST,) else range(1)
    methods = sorted(route.covered_methods or {other})
    return [(method, fixed + (other,) * tail) for method in methods for tail in tails]
