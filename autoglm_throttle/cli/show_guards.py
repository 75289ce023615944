"""Guards in the output of ``show``: their own figures, and the defaults that these replace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from autoglm_throttle.cli.output import table
from autoglm_throttle.settings import GuardPolicy, Settings, settings_table
from autoglm_throttle.settings.guard_policy import GUARD_FIELD_TYPES, GUARD_KEYS

NOT_SET: Final = "-"
"""Cell of a table without a value."""

_INSTEAD_OF: Final = {"shed_above": "degrade_shed_at", "max_stale_s": "degrade_max_stale_s"}
"""Key -> the setting that it replaces, if its name is not ``breaker_`` and the key."""


def guards_table(settings: Settings) -> str:
    """Format a row for each figure that a guard has of its own, with its source."""
    source = str(settings.source_of("guards"))
    rows = [("guard", "figure", "value", "unit", "instead of", "source")]
    for name, policy in settings.guards.items():
        figures = list(_figures(settings, policy))
        rows += [
            (name, key, value, GUARD_FIELD_TYPES[key].unit, instead_of or NOT_SET, source)
            for key, value, instead_of in figures
        ] or [(name, NOT_SET, NOT_SET, "", NOT_SET, source)]
    return table(rows)


def guards_document(settings: Settings) -> list[dict[str, Any]]:
    """Return the same as objects."""
    return [
        {
            "name": name,
            "source": settings.source_of("guards").value,
            "figures": {
                key: {
                    "value": value,
                    "unit": GUARD_FIELD_TYPES[key].unit or None,
                    "instead_of": instead_of or None,
                }
                for key, value, instead_of in _figures(settings, policy)
            },
        }
        for name, policy in settings.guards.items()
    ]


def _figures(settings: Settings, policy: GuardPolicy) -> Iterator[tuple[str, str, str]]:
    """Yield key, value, and the value for all guards; the latter is empty if there is none."""
    for key in GUARD_KEYS:
        value = getattr(policy, key)
        if value is None:
            continue
        of_all = _INSTEAD_OF.get(key, f"breaker_{key}")
        yield (
            key,
            GUARD_FIELD_TYPES[key].text(value),
            settings.text_of(of_all) if of_all in settings_table else "",
        )
