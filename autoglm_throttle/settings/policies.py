"""Policies of plans and guards, and the parser of the tables ``routes``, ``plans`` and ``guards``."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, NoReturn, Self, TypeVar, Unpack

from pydantic import model_validator

from autoglm_throttle.settings import field_types as f
from autoglm_throttle.settings.field_types import FieldType, FieldTypeError
from autoglm_throttle.settings.groups.base import DEFAULTS, Override, keys_of, validate
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.settings.groups.callers import USER_LIMITS
from autoglm_throttle.settings.groups.tokens import token_limit_problems
from autoglm_throttle.settings.problems import (
    MASK,
    ConfigError,
    Problem,
    quoted_key,
    repr_for_user,
    unknown_key,
)
from autoglm_throttle.settings.route_policy import LABEL, RoutePolicy
from autoglm_throttle.settings.sources import as_table, head_of
from autoglm_throttle.types import Criticality, Priority, UserLimit

if TYPE_CHECKING:
    import autoglm_throttle.settings.values as v

_MEMBER_TEXT: Final = "identity texts of 16 hex digits, as printed by autoglm-throttle identity"
_MEMBER: Final = f.word(r"[0-9a-f]{16}", _MEMBER_TEXT, "07f3a9c2d4e5b617", lower=True)
# The content is not repeated: an API key put here by mistake must not reach a log.
MEMBERS: Final = f.listed(replace(_MEMBER, public=lambda _: MASK, hidden=True))


class PlanPolicy(Override):
    """Limits and priority of one group of callers; ``name`` is the name in ``Demand.plan``.

    Raises:
        ConfigError: one problem for each argument that is not allowed.
    """

    positional: ClassVar[str] = "name"

    name: Annotated[str, LABEL]
    user_limit: Annotated[tuple[UserLimit, ...], USER_LIMITS] | None = None
    """Replaces ``USER_LIMIT`` for each member; ``off`` lifts it, None leaves it."""
    tokens_limit: Annotated[tuple[UserLimit, ...], USER_LIMITS] | None = None
    """Replaces ``TOKENS_LIMIT`` for each member; ``off`` lifts it, None leaves it."""
    tokens_input_limit: Annotated[tuple[UserLimit, ...], USER_LIMITS] | None = None
    """Replaces ``tokens_input_limit`` in the same way."""
    tokens_output_limit: Annotated[tuple[UserLimit, ...], USER_LIMITS] | None = None
    """Replaces ``tokens_output_limit`` in the same way."""
    priority: Annotated[Priority, f.PRIORITY] | None = None
    """The class of its requests; None leaves it to routes and settings."""
    members: Annotated[tuple[str, ...], MEMBERS] = ()
    """Identity texts of callers, 16 hex digits; the same caller everywhere only with a ``KEY_SECRET``."""

    if TYPE_CHECKING:

        def __init__(self, name: str, **values: Unpack[v.PlanValues]) -> None: ...

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if problems := token_limit_problems(self.__dict__):
            raise ConfigError(problems)
        return self


NAME_CHARACTERS: Final = 200


def _guard_name(raw: object) -> str:
    if not isinstance(raw, str) or not raw.isprintable() or not 1 <= len(raw) <= NAME_CHARACTERS:
        raise FieldTypeError
    return raw


# An origin such as ``https://host:8443`` is a name, too.
_NAME_TEXT: Final = f"a name of 1 to {NAME_CHARACTERS} printable characters"
GUARD_NAME: Final = FieldType(_NAME_TEXT, "vector-db", _guard_name)


class GuardPolicy(BreakerSettings):
    """Settings of one guard instead of ``BREAKER_*`` and ``DEGRADE_*``; None leaves a value to them.

    ``name`` is the name in ``throttle.guard(name)``.

    Raises:
        ConfigError: one problem for each argument that is not allowed, and for each contradiction.
    """

    positional: ClassVar[str] = "name"

    name: Annotated[str, GUARD_NAME]
    criticality: Annotated[Criticality, f.choice(Criticality)] | None = None
    """Whether its feature is core; None: as registered in code."""
    shed_above: Annotated[float, f.LOAD] | None = None
    """Load, 0.01..1, above which the feature is shed, not ``DEGRADE_SHED_AT``; it must be ``non_core``."""
    max_stale_s: Annotated[float, f.AGE] | None = None
    """Age in seconds up to which a cached response may replace a new one."""

    if TYPE_CHECKING:

        def __init__(self, name: str, **values: Unpack[v.GuardValues]) -> None: ...

    def own_values(self) -> dict[str, Any]:
        """Return the values that are set, and always the criticality, which has no default elsewhere."""
        return {"criticality": self.criticality} | self.explicit()


P = TypeVar("P", bound=Override)

EXAMPLES: Final = {
    "routes": '[[routes]] with pattern = "/v1/*"',
    "plans": "[plans.gold]",
    "guards": '[guards.vector-db] with open_s = "30s"',
}


class FrozenDict(dict[str, P]):
    """A dict that cannot be changed; unlike a mapping proxy it can be pickled and copied."""

    def _frozen(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("settings are frozen")

    if not TYPE_CHECKING:  # a type checker keeps the signatures of a dict
        __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _frozen

    def __reduce__(self) -> tuple[type[Self], tuple[dict[str, P]]]:
        return type(self), (dict(self),)


class Tables:
    """The parsed tables, and their problems under names such as ``routes[1].cost``."""

    def __init__(self, given: Mapping[str, object]) -> None:
        self.problems: list[Problem] = []
        self.wrong: dict[str, set[str]] = {}  # place of a policy -> keys that are invalid by themselves
        self.routes: tuple[RoutePolicy, ...] = tuple(self._routes(given.get("routes", ())))
        self.plans: FrozenDict[PlanPolicy] = self._named("plans", given.get("plans", ()), PlanPolicy)
        self.guards: FrozenDict[GuardPolicy] = self._named("guards", given.get("guards", ()), GuardPolicy)
        plan_of: dict[str, str] = {}
        for name, plan in self.plans.items():
            for member in plan.members:
                if (other := plan_of.setdefault(member, name)) != name:
                    message = f"{member} is already a member of {other}"
                    self._add(f"plans.{quoted_key(name)}.members", message)

    def _routes(self, raw: object) -> Iterator[RoutePolicy]:
        if not isinstance(raw, list | tuple):
            self._reject("routes", "a list of route policies", raw)
            return
        names: dict[str, int] = {}
        for position, part in enumerate(raw):
            route = self._policy(f"routes[{position}]", RoutePolicy, part, {})
            if route is None:
                continue
            first = names.setdefault(route.name, position)
            is_derived = self.wrong.get(f"routes[{position}]", set()) & {"name", "methods"}
            if first != position and not is_derived:
                self._add(f"routes[{position}].name", f"{route.name} is already the name of [{first}]")
            yield route

    def _named(self, table: str, raw: object, kind: type[P]) -> FrozenDict[P]:
        if isinstance(raw, (list, tuple)) and all(isinstance(part, kind) for part in raw):
            pairs: list[tuple[str, Any]] = [(getattr(part, "name", ""), part) for part in raw]
        elif (by_name := as_table(raw)) is not None:
            pairs = list(by_name.items())
        else:
            self._reject(table, f"{table} by name", raw)
            return FrozenDict()
        made: dict[str, P] = {}
        for name, part in pairs:
            place = f"{table}.{quoted_key(name)}"
            policy = self._policy(place, kind, part, {"name": name})
            if policy is None:
                continue
            own = getattr(policy, "name", name)
            if own != name:
                self._add(place, f"holds that of {own}")
            if made.setdefault(name, policy) is not policy:
                self._add(place, "is given twice")
        return FrozenDict(made)

    def _policy(self, place: str, kind: type[P], part: object, given: dict[str, Any]) -> P | None:
        if isinstance(part, kind):
            return part
        if isinstance(part, BreakerSettings):
            part = part.explicit()
        table = as_table(part)
        if table is None:
            self._add(place, "must be a table", f"for example {EXAMPLES[head_of(place)]}")
            return None
        policy, problems, wrong = validate(kind, table | given)
        # The name stands in the head of the table alone, and the place of its problems is the table.
        doubled = table.keys() & given.keys()
        self.problems += [unknown_key(key, keys_of(kind)).below(f"{place}.") for key in doubled]
        for problem in problems:
            named = problem.variable in given
            self.problems.append(replace(problem, variable=place) if named else problem.below(f"{place}."))
        self.wrong[place] = wrong
        if policy is None and kind is GuardPolicy:
            # It contradicts itself; its values may contradict the defaults of all guards as well.
            valid = {key: value for key, value in (table | given).items() if value is not None}
            return validate(kind, valid, DEFAULTS)[0]
        return policy

    def _reject(self, table: str, allowed: str, raw: object) -> None:
        self._add(table, f"must be {allowed}, not {repr_for_user(raw)}", f"for example {EXAMPLES[table]}")

    def _add(self, place: str, message: str, hint: str = "") -> None:
        self.problems.append(Problem(place, message, hint))
