"""Parses the tables ``[[routes]]``, ``[plans.<name>]`` and ``[guards.<name>]``, or the same in code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from autoglm_throttle.settings.groups.base import DEFAULTS, Override, keys_of, validate
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.settings.guard_policy import GuardPolicy
from autoglm_throttle.settings.plan_policy import PlanPolicy
from autoglm_throttle.settings.problems import Problem, quoted_key, repr_for_user, unknown_key
from autoglm_throttle.settings.route_policy import RoutePolicy
from autoglm_throttle.settings.sources import as_table, head_of

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

    def __reduce__(self) -> tuple[type[FrozenDict[P]], tuple[dict[str, P]]]:
        return FrozenDict, (dict(self),)


class Tables:
    """The parsed tables, and their problems under names such as ``routes[1].cost``."""

    def __init__(self, given: Mapping[str, object]) -> None:
        self.problems: list[Problem] = []
        self.wrong: dict[str, set[str]] = {}
        """Place of a policy -> keys that are invalid by themselves."""
        self.routes: tuple[RoutePolicy, ...] = tuple(self._routes(given.get("routes", ())))
        self.plans: FrozenDict[PlanPolicy] = self._named("plans", given.get("plans", ()), PlanPolicy)
        self.guards: FrozenDict[GuardPolicy] = self._named("guards", given.get("guards", ()), GuardPolicy)
        self._check_members()

    def _routes(self, raw: object) -> Iterator[RoutePolicy]:
        if not isinstance(raw, (list, tuple)):
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
                message = f"{route.name} is already the name of [{first}]"
                self.problems.append(Problem(f"routes[{position}].name", message))
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
                self.problems.append(Problem(place, f"holds that of {own}"))
            if made.setdefault(name, policy) is not policy:
                self.problems.append(Problem(place, "is given twice"))
        return FrozenDict(made)

    def _policy(self, place: str, kind: type[P], part: object, given: dict[str, Any]) -> P | None:
        if isinstance(part, kind):
            return part
        if isinstance(part, BreakerSettings):
            part = part.explicit()
        table = as_table(part)
        if table is None:
            example = EXAMPLES[head_of(place)]
            self.problems.append(Problem(place, "must be a table", f"for example {example}"))
            return None
        policy, problems, wrong = validate(kind, table | given)
        # The name stands in the head of the table alone.
        doubled = table.keys() & given.keys()
        self.problems += [unknown_key(key, keys_of(kind)).below(f"{place}.") for key in doubled]
        self.problems += [
            # The name of a table is its place.
            problem.below(f"{place}.")
            if problem.variable not in given
            else Problem(place, problem.message, problem.hint)
            for problem in problems
        ]
        self.wrong[place] = wrong
        if policy is None and kind is GuardPolicy:
            # It contradicts itself; its values may contradict the defaults of all guards as well.
            valid = {key: value for key, value in (table | given).items() if value is not None}
            return validate(kind, valid, DEFAULTS)[0]
        return policy

    def _reject(self, table: str, allowed: str, raw: object) -> None:
        message = f"must be {allowed}, not {repr_for_user(raw)}"
        self.problems.append(Problem(table, message, f"for example {EXAMPLES[table]}"))

    def _check_members(self) -> None:
        """Find callers that are members of two plans."""
        plan_of: dict[str, str] = {}
        for plan in self.plans.values():
            for member in plan.members:
                other = plan_of.setdefault(member, plan.name)
                if other != plan.name:
                    place = f"plans.{quoted_key(plan.name)}.members"
                    self.problems.append(Problem(place, f"{member} is already a member of {other}"))
