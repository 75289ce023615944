"""What is known about a setting beside its value, and where a value came from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import Field
from pydantic.fields import FieldInfo

from autoglm_throttle.settings.form import Form

PREFIX = "AUTOGLM_THROTTLE_"

FOUNDING = "founding figure"
CHOSEN = "chosen in the design"
SIMULATED = "simulated in the design"
CONVENTION = "convention"
"""Where a default may come from; where it can be said more closely, a sentence stands instead."""


class Source(StrEnum):
    """Where the value of a setting came from, the weakest first."""

    DEFAULT = "default"
    CONFIG_FILE = "config_file"
    ENV_FILE = "env_file"
    ENV = "env"
    CODE = "code"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: everything the settings page says about it."""

    name: str
    """As an attribute and as a key of ``CONFIG_FILE``."""
    form: Form[Any]
    default: Any
    about: str
    provenance: str
    """Where the default comes from."""
    starred: bool
    """Whether a first user should know it."""
    tuning: bool
    """Whether it is a constant that only ``CONFIG_FILE`` and code may change."""

    @property
    def variable(self) -> str:
        """How an operator names it: the variable, or for a tuning constant the key of ``CONFIG_FILE``."""
        return self.name if self.tuning else PREFIX + self.name.upper()

    @property
    def default_text(self) -> str:
        """The default as it would be written; empty for "not set"."""
        return "" if self.default is None else str(self.form.text(self.default))


def setting(
    default: object, about: str, provenance: str, *, starred: bool = False, tuning: bool = False
) -> Any:  # noqa: ANN401 - as Field
    """Declare a setting beside its type, ``Annotated`` with its form."""
    return Field(
        default=default,
        description=about,
        json_schema_extra={"provenance": provenance, "starred": starred, "tuning": tuning},
    )


def setting_of(name: str, info: FieldInfo) -> Setting:
    """Read the declaration back.

    Raises:
        TypeError: the field has no form.
    """
    form = next((part for part in info.metadata if isinstance(part, Form)), None)
    extra = info.json_schema_extra
    if form is None or not isinstance(extra, dict):
        raise TypeError(f"{name} is declared without a form")
    return Setting(
        name,
        form,
        info.default,
        info.description or "",
        str(extra["provenance"]),
        starred=bool(extra["starred"]),
        tuning=bool(extra["tuning"]),
    )
