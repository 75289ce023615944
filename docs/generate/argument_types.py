"""Generates the types of the arguments of settings and policies, which type checkers read.

Run: ``python -m docs.generate.argument_types > autoglm_throttle/settings/values.pyi``.

A setting is declared once, as the field of a group. Its argument may also be a text in the notation of the
environment, which no annotation of the field can say: so the types of arguments are a stub made from them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

from pydantic import SecretStr

from autoglm_throttle import types
from autoglm_throttle.settings.groups import GROUPS, callers, observe
from autoglm_throttle.settings.groups.base import Group, declared, field_types
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.settings.policies import GuardPolicy, PlanPolicy
from autoglm_throttle.settings.route_policy import ResourcePolicy, RoutePolicy
from autoglm_throttle.types import Priority, UserLimit

TypeForm = Any
"""A class, or a special form such as ``tuple[str, ...]``."""

POLICIES: Final[dict[str, tuple[str, type[Group]]]] = {
    "BreakerValues": ("TypedDict", BreakerSettings),
    "GuardValues": ("BreakerValues", GuardPolicy),
    "PlanValues": ("TypedDict", PlanPolicy),
    "ResourceValues": ("TypedDict", ResourcePolicy),
    "RouteValues": ("TypedDict", RoutePolicy),
}
"""Types of the arguments -> its base, and the policy that takes them."""

PLAIN: Final[dict[Any, str]] = {
    bool: "bool",
    int: "int",
    float: "float | str",
    str: "str",
    Path: "Path | str",
    SecretStr: "SecretStr | str",
    ResourcePolicy: "ResourcePolicy | ResourceValues",
}
MODULES: Final = {"t": types, "c": callers, "o": observe}
"""Prefix of the enums of a module -> the module."""
TEXT_ONLY_IN_FILES: Final = {"cost": "float"}
"""Numbers that no environment variable holds and that have no unit."""

_HEAD: Final = '''\
"""Types of the arguments of settings, so that an editor completes names and a type checker finds typos.

Type checkers alone read this file, which `docs/generate/argument_types.py` writes.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from pydantic import SecretStr

from autoglm_throttle import types as t
from autoglm_throttle.settings.groups import callers as c
from autoglm_throttle.settings.groups import observe as o
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.settings.policies import GuardPolicy, PlanPolicy
from autoglm_throttle.settings.route_policy import ResourcePolicy, RoutePolicy
'''
_TABLES: Final = """\
    routes: Sequence[RoutePolicy | Mapping[str, Any]]
    plans: Sequence[PlanPolicy] | Mapping[str, PlanPolicy | Mapping[str, Any]]
    guards: Sequence[GuardPolicy] | Mapping[str, GuardPolicy | BreakerSettings | Mapping[str, Any]]
    resource_policy: ResourcePolicy | ResourceValues
"""


def argument_types() -> str:
    """Return the text of the stub."""
    classes = [_policy_class(name, base, policy) for name, (base, policy) in POLICIES.items()]
    rows = [
        row for group in GROUPS.values() for row in _setting_rows(group) if not row.startswith("    gpu:")
    ]
    beside = "class ValuesBesideGpu(TypedDict, total=False):\n"
    beside += (
        '    """Settings as arguments of ``throttle_for_tests``, whose ``gpu`` is no name of a source."""\n\n'
    )
    values = "class SettingValues(ValuesBesideGpu, total=False):\n"
    values += (
        '    """Arguments of ``Settings`` and ``Settings.from_env``."""\n\n    gpu: str | Sequence[str]\n'
    )
    return "\n".join([_HEAD, *classes, beside + "\n".join(rows) + "\n" + _TABLES, values])


def _policy_class(name: str, base: str, policy: type[Group]) -> str:
    lines = [f"class {name}({base}, total=False):", f'    """Arguments of ``{policy.__name__}``."""', ""]
    hints = get_type_hints(policy)
    own = [field for field in policy.model_fields if field != policy.positional]
    if base != "TypedDict":
        own = [field for field in own if field not in BreakerSettings.model_fields]
    lines += [
        f"    {field}: {_text(hints[field], field_types(policy)[field].unit, field)} | None" for field in own
    ]
    return "\n".join(lines).replace(" | None | None", " | None") + "\n"


def _setting_rows(group: type[Group]) -> Iterator[str]:
    hints = get_type_hints(group)
    for name, known in declared(group).items():
        yield f"    {name}: {_text(hints[known.field], known.field_type.unit, known.field)}"


def _text(annotation: TypeForm, unit: str, field: str) -> str:
    """Return the type of an argument for the type of a field."""
    parts = [part for part in get_args(annotation) if part is not type(None)]
    if type(None) in get_args(annotation):
        return f"{_text(parts[0], unit, field)} | None"
    if parts:
        items = "Collection" if annotation.__origin__ is frozenset or field == "members" else "Sequence"
        return f"str | {items}[{_item(parts[0])}]"
    if annotation is int and unit == "bytes":
        return "int | str"
    return TEXT_ONLY_IN_FILES.get(field) or PLAIN.get(annotation) or _item(annotation)


def _item(kind: TypeForm) -> str:
    if get_args(kind):
        return "tuple[float, float]"
    if kind in {str, float}:
        return str(kind.__name__)
    if kind is UserLimit:
        return "t.UserLimit"
    if not issubclass(kind, Enum):
        raise TypeError(f"{kind} has no argument type")
    prefix = next(prefix for prefix, part in MODULES.items() if hasattr(part, kind.__name__))
    words = (word.label if isinstance(word, Priority) else str(word.value) for word in kind)
    texts = ", ".join(f'"{word}"' for word in words)
    return f"{prefix}.{kind.__name__} | Literal[{texts}]"


if __name__ == "__main__":
    sys.stdout.write(argument_types())
