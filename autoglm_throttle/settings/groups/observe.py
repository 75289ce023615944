"""Settings of metrics and logs, and of the loading of settings."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal

from autoglm_throttle.settings.field_types import FieldType, FieldTypeError, choice, number
from autoglm_throttle.settings.groups.base import Group

UnknownNamesName = Literal["error", "warn"]


class UnknownNames(StrEnum):
    """Effect of an unknown name with our prefix."""

    ERROR = "error"
    WARN = "warn"


MetricsExportName = Literal["auto", "prometheus", "off"]


class MetricsExport(StrEnum):
    """Destination of the counters."""

    AUTO = "auto"
    PROMETHEUS = "prometheus"
    OFF = "off"


def file_path(raw: object) -> Path:
    """Accept a path that can be printed. Whether it can be read shows when it is read.

    Raises:
        ValueError: it is empty, or no text.
    """
    if not isinstance(raw, (str, Path)) or not str(raw).strip() or not str(raw).isprintable():
        raise FieldTypeError
    return Path(raw)


FILE_PATH: Final = FieldType("the path of a file", "throttle.toml", file_path)


class ObserveSettings(Group):
    """Settings of metrics and logs."""

    environment: ClassVar[str] = "METRICS*"

    metrics: Annotated[MetricsExport, choice(MetricsExport)] = MetricsExport.AUTO
    """auto: to prometheus-client if it is installed."""
    log_refused_every_s: Annotated[float, number(0.1, 86_400, "s")] = 10.0
    """Rejections for one reason are logged at most once in this time."""


class LoadingSettings(Group):
    """Settings of the loading of settings."""

    environment: ClassVar[str] = "CONFIG_FILE* UNKNOWN_ENV"

    config_file: Annotated[Path, FILE_PATH] | None = None
    """TOML with routes, plans, guards, and any of these settings in lower case."""
    unknown_env: Annotated[UnknownNames, choice(UnknownNames)] = UnknownNames.ERROR
    """Effect of an unknown name with our prefix: an error, or a warning, for a return to an older version."""
