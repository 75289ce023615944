"""Declarations of the groups: valid defaults, no schema that is not needed, and equal types of arguments."""

from __future__ import annotations

import subprocess
import sys
import types
import typing
from collections.abc import Collection, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel

import autoglm_throttle.settings
from autoglm_throttle.settings import BreakerSettings, GuardPolicy, PlanPolicy, RoutePolicy, settings_table
from autoglm_throttle.settings.groups import GROUP_OF, GROUPS
from autoglm_throttle.settings.groups.base import DEFAULTS, field_types
from autoglm_throttle.settings.route_policy import ResourcePolicy
from autoglm_throttle.settings.sources import TABLES
from autoglm_throttle.types import Priority
from docs.generate.argument_types import argument_types

STUB = Path(autoglm_throttle.settings.__file__).parent / "values.pyi"
typed: Any = types.ModuleType("autoglm_throttle.settings.values")
"""The stub of the arguments' types, as a module."""
exec(argument_types(), vars(typed))
sys.modules[typed.__name__] = typed  # where the typing module looks up the names of its annotations

POLICIES: list[tuple[type[BaseModel], Any]] = [
    (BreakerSettings, typed.BreakerValues),
    (GuardPolicy, typed.GuardValues),
    (RoutePolicy, typed.RouteValues),
    (PlanPolicy, typed.PlanValues),
    (ResourcePolicy, typed.ResourceValues),
]
"""Policy -> types of its arguments."""


def types_of(arguments: Any) -> dict[str, Any]:
    """Return the types of arguments by name."""
    return typing.get_type_hints(arguments)


def accepts(annotation: Any, value: object) -> bool:
    """Whether a type checker accepts a value for an annotation."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in {typing.Union, types.UnionType}:
        return any(accepts(part, value) for part in parts)
    if origin is Literal:
        return value in parts
    if origin is tuple:
        return isinstance(value, tuple) and all(map(accepts, parts, value))
    if origin in {Sequence, Collection}:
        return isinstance(value, origin) and all(accepts(parts[0], part) for part in value)
    return accepts_class(origin or annotation, value)


def accepts_class(kind: Any, value: object) -> bool:
    """Whether a type checker accepts a value for a class: an int for a float, but no bool for an int."""
    if kind is Any:
        return True
    if typing.is_typeddict(kind):
        return isinstance(value, dict)
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def enum_of(model: type[BaseModel], field: str) -> type[Enum] | None:
    """Return the enum of a field; None if it has another type."""
    inside = parts_inside(typing.get_type_hints(model)[field])
    return next((part for part in inside if isinstance(part, type) and issubclass(part, Enum)), None)


def words_of(kind: type[Enum]) -> set[str]:
    """Return the words of an enum in texts."""
    return {member.label if isinstance(member, Priority) else str(member.value) for member in kind}


class TestDefaults:
    """Defaults, which are taken without validation."""

    @pytest.mark.parametrize("name", settings_table())
    def test_default_is_valid_and_equals_its_text(self, name: str) -> None:
        known, group = settings_table()[name], GROUPS[GROUP_OF[name]]
        raw = [known.default, known.default_text] if known.default is not None else [None]
        for value in raw:
            made = getattr(group.model_validate({known.field: value}, context=DEFAULTS), known.field)
            assert made == known.default
            assert type(made) is type(known.default)
        assert known.variable == (name if known.file_only else "AUTOGLM_THROTTLE_" + name.upper())
        assert not (known.file_only and known.starred)

    @pytest.mark.parametrize("name", settings_table())
    def test_example_of_a_message_is_allowed(self, name: str) -> None:
        known, group = settings_table()[name], GROUPS[GROUP_OF[name]]
        # The example of a secret is a command.
        for example in known.field_type.example.split(" or ") if name != "key_secret" else ():
            group.model_validate({known.field: example}, context=DEFAULTS)

    @pytest.mark.parametrize("policy", [policy for policy, _ in POLICIES], ids=lambda policy: policy.__name__)
    def test_default_of_a_policy_is_valid(self, policy: type[BaseModel]) -> None:
        required: dict[str, Any] = {name: "/a" for name in ("pattern", "name") if is_required(policy, name)}
        for field, info in policy.model_fields.items():
            if field not in required and (field, policy) != ("name", RoutePolicy):
                made = policy.model_validate(required | {field: info.default})
                assert getattr(made, field) == info.default


def is_required(policy: type[BaseModel], name: str) -> bool:
    """Whether a policy has a field that must be given."""
    return name in policy.model_fields and policy.model_fields[name].is_required()


class TestSchemas:
    """Schemas of pydantic, which take most of the time of a start."""

    def complete_after(self, code: str) -> set[str]:
        """Run code in a new process; return the models that have a schema then."""
        script = (
            f"from autoglm_throttle import Settings\n{code}\n"
            "from autoglm_throttle.settings import RoutePolicy, PlanPolicy, GuardPolicy\n"
            "from autoglm_throttle.settings.groups import GROUPS\n"
            "models = [Settings, RoutePolicy, PlanPolicy, GuardPolicy, *GROUPS.values()]\n"
            "print(*(model.__name__ for model in models if model.__pydantic_complete__))\n"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        return set(done.stdout.split())

    @pytest.mark.parametrize(
        ("code", "complete"),
        [
            ("Settings(); Settings.from_env({})", ""),
            ("Settings(workers=2)", "RateSettings"),
            ("Settings.from_env({'AUTOGLM_THROTTLE_SLO_S': '9'})", "ConcurrencySettings"),
            ("Settings(routes=[{'pattern': '/a'}])", "RoutePolicy"),
            ("Settings(guards={'db': {'failures': 3}})", "GuardPolicy"),
            ("Settings(breaker_failures=3, gpu='none')", "BreakerSettings GpuSettings"),
        ],
    )
    def test_only_groups_with_given_values_have_a_schema(self, code: str, complete: str) -> None:
        assert self.complete_after(code) == set(complete.split())


class TestTypesOfArguments:
    """Types of arguments, which only type checkers read."""

    def test_stub_is_the_generated_one(self) -> None:
        command = "python -m docs.generate.argument_types > autoglm_throttle/settings/values.pyi"
        assert STUB.read_text() == argument_types(), f"run: {command}"

    @pytest.mark.parametrize("name", settings_table())
    def test_type_of_a_setting_accepts_its_default(self, name: str) -> None:
        annotation = types_of(typed.SettingValues)[name]
        known = settings_table()[name]
        assert accepts(annotation, known.default)
        assert accepts(annotation, None) == (known.default is None)
        assert not accepts(annotation, object())

    @pytest.mark.parametrize("name", settings_table())
    def test_type_of_a_setting_has_the_words_of_its_enum(self, name: str) -> None:
        known = settings_table()[name]
        check_enum(types_of(typed.SettingValues)[name], enum_of(GROUPS[GROUP_OF[name]], known.field))

    @pytest.mark.parametrize(("policy", "arguments"), POLICIES, ids=lambda part: part.__name__)
    def test_arguments_of_a_policy_are_its_columns(self, policy: Any, arguments: Any) -> None:
        assert types_of(arguments).keys() == policy.model_fields.keys() - {policy.positional}

    @pytest.mark.parametrize(("policy", "arguments"), POLICIES, ids=lambda part: part.__name__)
    def test_type_of_a_column_has_the_words_of_its_enum(self, policy: Any, arguments: Any) -> None:
        for field, annotation in types_of(arguments).items():
            check_enum(annotation, enum_of(policy, field))
            default = policy.model_fields[field].default
            assert accepts(annotation, default), field

    def test_type_of_numbers_with_units_accepts_texts(self) -> None:
        for name, known in settings_table().items():
            annotation = types_of(typed.SettingValues)[name]
            has_units = known.field_type.unit in {"s", "requests/s", "bytes", "%", "share"}
            if has_units and known.field_type.bounds:
                assert accepts(annotation, "1"), name

    def test_arguments_are_the_settings_and_the_tables(self) -> None:
        names = {*settings_table(), *TABLES}
        assert types_of(typed.SettingValues).keys() == names
        assert types_of(typed.ValuesBesideGpu).keys() == names - {"gpu"}

    def test_types_of_breakers_are_those_of_all(self) -> None:
        of_all, of_one = types_of(typed.SettingValues), types_of(typed.BreakerValues)
        for field in field_types(BreakerSettings):
            assert set(get_args(of_one[field])) == {*parts_of(of_all[f"breaker_{field}"]), type(None)}


def parts_of(annotation: Any) -> tuple[Any, ...]:
    """Return the parts of a union, or the only type."""
    is_union = get_origin(annotation) in {typing.Union, types.UnionType}
    return get_args(annotation) if is_union else (annotation,)


def parts_inside(annotation: Any) -> list[Any]:
    """Return a type and all types inside it."""
    inner = [] if get_origin(annotation) is Literal else get_args(annotation)
    return [annotation, *(part for side in inner for part in parts_inside(side))]


def check_enum(annotation: Any, kind: type[Enum] | None) -> None:
    """Check that an annotation names the enum and all its words, or no words without an enum."""
    inside = parts_inside(annotation)
    words = {word for part in inside if get_origin(part) is Literal for word in get_args(part)}
    assert words == (words_of(kind) if kind else set())
    assert kind is None or kind in inside
