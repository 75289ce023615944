"""Defines a setting, its metadata, and the source of its value."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import Field
from pydantic.fields import FieldInfo

from autoglm_throttle.settings.field_types import FieldType

PREFIX = "AUTOGLM_THROTTLE_"

FOUNDING = "founding figure"
CHOSEN = "chosen in the design"
SIMULATED = "simulated in the design"
CONVENTION = "convention"
"""Possible origins of a default; a sentence may stand instead where it is more precise."""


class SettingSource(StrEnum):
    """Source of a setting's value, the weakest first."""

    DEFAULT = "default"
    CONFIG_FILE = "config_file"
    ENV_FILE = "env_file"
    ENV = "env"
    CODE = "code"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting with all its data for the settings page."""

    name: str
    """Name as an attribute and as a key of ``CONFIG_FILE``."""
    field_type: FieldType[Any]
    default: Any
    about: str
    provenance: str
    """Origin of the default."""
    starred: bool
    """Whether a first user should know it."""
    tuning: bool
    """Whether it is a constant that only ``CONFIG_FILE`` and code may change."""

    @property
    def variable(self) -> str:
        """Name for operators: the variable, or for a tuning constant the key of ``CONFIG_FILE``."""
        return self.name if self.tuning else PREFIX + self.name.upper()

    @property
    def default_text(self) -> str:
        """The default in the notation of the environment; empty for "not set"."""
        return "" if self.default is None else str(self.field_type.text(self.default))


def setting(
    default: object, about: str, provenance: str, *, starred: bool = False, tuning: bool = False
) -> Any:  # noqa: ANN401 - as Field
    """Declare a setting beside its type, ``Annotated`` with its field type."""
    return Field(
        default=default,
        description=about,
        json_schema_extra={"provenance": provenance, "starred": starred, "tuning": tuning},
    )


def setting_of(name: str, info: FieldInfo) -> Setting:
    """Read the declaration of a setting.

    Raises:
        TypeError: the field has no field type.
    """
    field_type = next((part for part in info.metadata if isinstance(part, FieldType)), None)
    extra = info.json_schema_extra
    if field_type is None or not isinstance(extra, dict):
        raise TypeError(f"{name} is declared without a form")
    starred, tuning = bool(extra["starred"]), bool(extra["tuning"])
    provenance, text = str(extra["provenance"]), info.description or ""
    return Setting(name, field_type, info.default, text, provenance, starred=starred, tuning=tuning)
