"""Guards in the output of ``show``: their own figures, and the defaults that these replace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from autoglm_throttle.cli.output import table
from autoglm_throttle.cli.place import place_text
from autoglm_throttle.settings import GuardPolicy, Settings, settings_table
from autoglm_throttle.settings.groups.base import field_types
from autoglm_throttle.settings.problems import quoted_key

NOT_SET: Final = "-"
"""Cell of a table without a value."""

_INSTEAD_OF: Final = {"shed_above": "degrade_shed_at", "max_stale_s": "degrade_max_stale_s"}
"""Key -> the setting that it replaces, if its name is not ``breaker_`` and the key."""


def guards_table(settings: Settings) -> str:
    """Format a row for each figure that a guard has of its own, with its place."""
    units = {key: kind.unit for key, kind in field_types(GuardPolicy).items()}
    rows = [("guard", "figure", "value", "unit", "instead of", "source")]
    for name, policy in settings.guards.items():
        rows += [
            (name, key, value, units[key], instead_of or NOT_SET, _place(settings, name, key))
            for key, value, instead_of in _figures(settings, policy)
        ] or [(name, NOT_SET, NOT_SET, "", NOT_SET, _place(settings, name))]
    return table(rows)


def guards_document(settings: Settings) -> list[dict[str, Any]]:
    """Return the same as objects."""
    units = {key: kind.unit for key, kind in field_types(GuardPolicy).items()}
    return [
        {
            "name": name,
            "source": settings.source_of("guards").value,
            "place": _place(settings, name),
            "figures": {
                key: {
                    "value": value,
                    "unit": units[key] or None,
                    "instead_of": instead_of or None,
                }
                for key, value, instead_of in _figures(settings, policy)
            },
        }
        for name, policy in settings.guards.items()
    ]


def _figures(settings: Settings, policy: GuardPolicy) -> Iterator[tuple[str, str, str]]:
    """Yield key, value, and the value for all guards; the latter is empty if there is none."""
    types = field_types(GuardPolicy)
    for key, value in policy.explicit().items():
        if key != "name":
            of_all = _INSTEAD_OF.get(key, f"breaker_{key}")
            default = settings.text_of(of_all) if of_all in settings_table() else ""
            yield key, types[key].text(value), default


def _place(settings: Settings, name: str, key: str = "") -> str:
    return place_text(settings, f"guards.{quoted_key(name)}" + (f".{key}" if key else ""))
