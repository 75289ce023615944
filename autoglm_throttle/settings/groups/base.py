"""The base of groups: declarations of settings, and the problems of their values.

The docstring of a field is its meaning on the settings page, with the origin of the default in brackets.
"""

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, ClassVar, Final, NamedTuple, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, model_validator

from autoglm_throttle.settings.field_types import FieldType
from autoglm_throttle.settings.problems import ConfigError, Problem, unknown_key

PREFIX: Final = "AUTOGLM_THROTTLE_"
DEFAULTS: Final = "defaults"  # context of a validation: the values are those of all guards, not of one


class Setting(NamedTuple):
    """One declared setting with all its data."""

    name: str  # as an argument and as a key of CONFIG_FILE
    field: str  # name in its group
    field_type: FieldType
    default: Any
    starred: bool  # whether a first user should know it
    file_only: bool  # whether it is no environment variable

    @property
    def variable(self) -> str:
        """Name for operators: the variable, or the key of ``CONFIG_FILE`` where there is no variable."""
        return self.name if self.file_only else PREFIX + self.name.upper()

    @property
    def short_name(self) -> str:
        """Name in a message: as ``variable``, without the prefix of all variables."""
        return self.name if self.file_only else self.name.upper()

    @property
    def default_text(self) -> str:
        """The default in the notation of the environment; empty for "not set"."""
        return "" if self.default is None else self.field_type.text(self.default)


class Group(BaseModel):
    """Settings of one mechanism, which receives the group: frozen, each declared once.

    Raises:
        ConfigError: with one problem for each value that is not allowed.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", defer_build=True, arbitrary_types_allowed=True, hide_input_in_errors=True
    )

    prefix: ClassVar[str] = ""  # left out of the fields' names: `breaker_failures` is the field `failures`
    environment: ClassVar[str] = ""  # environment variables; with * those that a first user should know
    positional: ClassVar[str] = ""  # field that the constructor takes as its positional argument

    def __init__(self, /, *first: Any, **values: Any) -> None:  # noqa: ANN401 - the fields check them
        if len(first) > bool(self.positional) or (first and self.positional in values):
            once = f"only {self.positional}, and once" if self.positional else "none"
            raise TypeError(f"positional arguments of {type(self).__name__}: {once}")
        values |= dict.fromkeys([self.positional] if first else (), *first)
        try:
            super().__init__(**values)
        except ValidationError:
            raise ConfigError(validate(type(self), values)[1]) from None

    # The mark of pydantic's own constructor: without it `model_validate` would call this one.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # read by the metaclass

    def __setattr__(self, name: str, value: object) -> None:
        # The error of pydantic would print the value, which may be a secret.
        raise AttributeError(f"{type(self).__name__}.{name} cannot be set: settings are frozen")

    def explicit(self) -> dict[str, Any]:
        """Return the values that were set, by field."""
        given = self.model_fields_set
        return {field: getattr(self, field) for field in type(self).model_fields if field in given}

    def __repr_args__(self) -> Any:  # noqa: ANN401 - as in pydantic
        types = field_types(type(self))
        for field, value in self.explicit().items():
            yield field, value if types[field].public is None else types[field].public_text(value)


G = TypeVar("G", bound=Group)


@cache
def field_types(group: type[Group]) -> dict[str, FieldType]:
    """Return the field type of each field of a group."""
    kinds = {}
    for field, info in group.model_fields.items():
        # `Annotated[X, type] | None` keeps the type inside the union.
        inner = (part for side in get_args(info.annotation) for part in get_args(side)[1:])
        kinds[field] = next(part for part in (*info.metadata, *inner) if isinstance(part, FieldType))
    return kinds


@cache
def declared(group: type[Group]) -> dict[str, Setting]:
    """Return the settings of a group by their full names."""
    variables = group.environment.lower().split()
    rows = {}
    for field, kind in field_types(group).items():
        name, starred = group.prefix + field, f"{field}*" in variables
        file_only = not starred and field not in variables
        rows[name] = Setting(name, field, kind, group.model_fields[field].default, starred, file_only)
    return rows


def keys_of(group: type[Group]) -> tuple[str, ...]:
    """Return the keys of a table: all but the name of a plan or a guard, which stands in the head."""
    return tuple(field for field in group.model_fields if field != "name" or group.positional != "name")


class Override(Group):
    """Settings of one route, plan or guard, instead of those of all: None counts as not set."""

    @model_validator(mode="before")
    @classmethod
    def _without_none(cls, values: Any, info: ValidationInfo) -> Any:  # noqa: ANN401 - pydantic passes anything
        if info.context == DEFAULTS or not isinstance(values, Mapping):
            return values
        return {key: value for key, value in values.items() if value is not None}


def validate(
    group: type[G], raw: Mapping[Any, Any], context: Collection[str] = ()
) -> tuple[G | None, list[Problem], set[str]]:
    """Validate raw values; the context is ``DEFAULTS``, or names of invalid values, which are not checked.

    Return the group of the valid values, or None if a value is missing or contradicts another; all problems;
    the names of the invalid and unknown values.
    """
    try:
        return group.model_validate(raw, context=context), [], set()
    except ValidationError as error:
        items: list[Any] = error.errors(include_url=False)
    wrong = {str(item["loc"][0]) for item in items if item["loc"]}
    problems = [problem for item in items for problem in _problems(group, item, raw)]
    rest = {key: value for key, value in raw.items() if str(key) not in wrong}
    if len(rest) == len(raw):
        return None, problems, wrong
    made, more, _ = validate(group, rest, context or wrong)
    return made, problems + [problem for problem in more if problem.variable not in wrong], wrong


def _problems(group: type[Group], item: Any, raw: Mapping[Any, Any]) -> list[Problem]:  # noqa: ANN401 - pydantic's ErrorDetails
    field = str(item["loc"][0]) if item["loc"] else ""
    types = field_types(group)
    reason = item.get("ctx", {}).get("error")
    if isinstance(reason, ConfigError):
        return [problem.below(field) for problem in reason.problems]
    if field not in types:
        return [unknown_key(field, keys_of(group))]
    if item["type"] == "missing":
        return [Problem(field, "is missing", f"for example {types[field].example}")]
    return [Problem(field, *types[field].describe_error(raw.get(field), str(reason or "")))]
