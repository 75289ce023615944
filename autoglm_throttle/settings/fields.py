"""Every setting: type, field type, default, meaning, and origin of the default.

This table is the source of the settings page, of ``autoglm-throttle show`` and of every message.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar, Final

from pydantic_settings import SettingsConfigDict

from autoglm_throttle.settings.device_field_types import FilePath
from autoglm_throttle.settings.field import CHOSEN, Setting, setting, setting_of
from autoglm_throttle.settings.field_types import ChoiceType, Number, WithNone
from autoglm_throttle.settings.record_fields import RecorderSettings
from autoglm_throttle.settings.tuning_fields import TuningFields


class UnknownNames(StrEnum):
    """Effect of an unknown name with our prefix."""

    ERROR = "error"
    WARN = "warn"


class MetricsExport(StrEnum):
    """Destination of the counters."""

    AUTO = "auto"
    PROMETHEUS = "prometheus"
    OFF = "off"


class ObserveSettings(RecorderSettings):
    """Declarations of the other settings: metrics, logs, and loading of settings."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(defer_build=True)

    metrics: Annotated[MetricsExport, ChoiceType(MetricsExport)] = setting(
        MetricsExport.AUTO, "auto: to prometheus-client if it is installed.", CHOSEN, starred=True
    )
    log_refused_every_s: Annotated[float, Number(0.1, 86_400, "s")] = setting(
        10.0, "Rejections for one reason are logged at most once in this time.", CHOSEN
    )
    config_file: Annotated[Path | None, WithNone(FilePath())] = setting(
        None,
        "TOML with routes, plans, guards, and any of these settings in lower case.",
        CHOSEN,
        starred=True,
    )
    unknown_env: Annotated[UnknownNames, ChoiceType(UnknownNames)] = setting(
        UnknownNames.ERROR,
        "Effect of an unknown name with our prefix: "
        "an error, or a warning, for a return to an older version.",
        CHOSEN,
    )


class SettingFields(TuningFields, ObserveSettings):
    """Every declaration, in the order of the settings page; ``Settings`` adds the loading of values."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(defer_build=True)


SETTINGS: Final[Mapping[str, Setting]] = {
    name: setting_of(name, info) for name, info in SettingFields.model_fields.items()
}
"""Name -> setting, in the order of the settings page."""
