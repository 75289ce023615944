"""Settings of metrics and logs, of the loading of settings, and of the recorder."""

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar, Final
from urllib.parse import urlsplit

from pydantic import SecretStr

from autoglm_throttle.settings import field_types as f
from autoglm_throttle.settings.field_types import FLAG, FieldType, FieldTypeError, choice, listed, number
from autoglm_throttle.settings.groups.base import Group
from autoglm_throttle.settings.groups.callers import HEADER_NAME, SECRET


class UnknownNames(StrEnum):
    """Effect of an unknown name with our prefix."""

    ERROR = "error"
    WARN = "warn"


class MetricsExport(StrEnum):
    """Destination of the counters."""

    AUTO = "auto"
    PROMETHEUS = "prometheus"
    OFF = "off"


def file_path(raw: object) -> Path:
    """Accept a path that can be printed."""
    if not isinstance(raw, (str, Path)) or not str(raw).strip() or not str(raw).isprintable():
        raise FieldTypeError
    return Path(raw)


FILE_PATH: Final = FieldType("the path of a file", "throttle.toml", file_path)


class ObserveSettings(Group):
    """Settings of metrics and logs."""

    environment: ClassVar[str] = "METRICS* STATUS_TOKEN"

    metrics: Annotated[MetricsExport, choice(MetricsExport)] = MetricsExport.AUTO
    """auto: to prometheus-client if it is installed."""
    alerts: Annotated[bool, FLAG] = True
    """Evaluates the alert rules in this process, where metrics_app or start_alerts is used."""
    log_refused_every_s: Annotated[float, number(0.1, 86_400, "s")] = 10.0
    """Rejections for one reason are logged at most once in this time."""
    trace_wait: Annotated[bool, FLAG] = False
    """Whether the time of a request in the queue is a span of its own, in a trace of OpenTelemetry."""
    status_token: Annotated[SecretStr, SECRET] | None = None
    """Token of the live page; not set: it answers only requests from this machine."""


def _webhook_url(raw: object) -> SecretStr:
    text = f.secret_text(raw).strip()
    url = urlsplit(text)  # may raise ValueError
    if url.scheme not in {"http", "https"} or not url.hostname or not text.isprintable() or " " in text:
        raise FieldTypeError
    return SecretStr(text)


# Its path and its login are shown to no one: services put their keys there.
WEBHOOK_URL: Final = f.secret(
    "a URL that begins with http:// or https://", "http://localhost:9093/api/v2/alerts", _webhook_url
)


class AlertSettings(Group):
    """Settings of the alert rules."""

    prefix: ClassVar[str] = "alert_"
    environment: ClassVar[str] = "WEBHOOK_URL"

    webhook_url: Annotated[SecretStr, WEBHOOK_URL] | None = None
    """Address to which the built-in alerts are posted, in the form of Alertmanager's version 2. Not set: they
    are only logged."""
    gpu_pct: Annotated[float, number(1, 100, "%")] = 85.0
    """Utilization above which a GPU is busy. [founding figure]"""
    gpu_for_s: Annotated[float, number(0, 86_400, "s")] = 180.0
    """Time for which it must be busy. [founding figure]"""
    memory_ratio: Annotated[float, number(0.01, 1, "share")] = 0.9
    """Fill of the memory of a GPU above which it is nearly full. [founding figure]"""
    p95_s: Annotated[float, number(0.005, 60, "s")] = 2.0
    """95th percentile of the durations of admitted requests above which they are slow.
    [founding figure]"""
    p95_for_s: Annotated[float, number(0, 86_400, "s")] = 180.0
    """Time for which they must be slow."""
    z_rules: Annotated[bool, FLAG] = False
    """Compares utilization and latency with the half hour before. It only informs: see the runbook."""
    z_plain: Annotated[bool, FLAG] = False
    """Compares by the plain z-score, z > 3 for one minute, which raises many false alerts."""


class LoadingSettings(Group):
    """Settings of the loading of settings."""

    environment: ClassVar[str] = "CONFIG_FILE* UNKNOWN_ENV"

    config_file: Annotated[Path, FILE_PATH] | None = None
    """TOML with routes, plans, guards, and any of these settings in lower case."""
    unknown_env: Annotated[UnknownNames, choice(UnknownNames)] = UnknownNames.ERROR
    """Effect of an unknown name with our prefix: an error, or a warning, for a return to an older version."""


# Header fields that identify or authenticate the caller. The header that ``IDENTITY`` names is another.
NEVER_RECORDED: Final = frozenset(
    [
        *("authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key"),
        *("forwarded", "x-forwarded-for", "x-real-ip"),
    ]
)

# Common parts of other such names: x-goog-api-key, x-auth-token, cf-connecting-ip.
_CREDENTIAL_NAMES: Final = (
    r"(?i)api[-_.]?key|token|secret|passw|cookie|auth[nz]?(?:[-_.]|$)|authori[sz]|authentic|session|credential"
    r"|signature|jwt|client[-_.]?cert|forwarded|(?:^|[-_.])ip$"
)
SMALLEST_BYTES: Final = 4096  # a smaller file cannot hold its first and last lines


class RecordBody(StrEnum):
    """Recorded data of request bodies."""

    HASH = "hash"
    NONE = "none"
    FULL = "full"


def identifies_caller(name: str) -> bool:
    """Whether a header field, by its name, identifies or authenticates the caller; it can never be recorded.

    Names that only look alike are rejected, too: a missing field costs less than a recorded secret.
    """
    return name.lower() in NEVER_RECORDED or re.search(_CREDENTIAL_NAMES, name) is not None


def masks(pattern: str) -> bool:
    """Whether a pattern of paths masks a segment."""
    segments = pattern.strip("/").split("/")
    plain = [part for part in segments if not (part.startswith("{") and part.endswith("}"))]
    if not pattern.startswith("/") or "*" in segments[:-1] or not pattern.isprintable():
        return False
    if any(part != "*" and set(part) & set(" ,{}?#*") for part in plain):
        return False
    return len(plain) < len(segments) or segments[-1] == "*"


def _recorded_header(raw: object) -> str:
    name = str(HEADER_NAME.parse(raw))
    if identifies_caller(name):
        raise FieldTypeError("it identifies the caller and can never be recorded")
    return name


def _recording_path(raw: object) -> Path:
    """Parse a path with the ending of a recording: a folder given by mistake is detected at once."""
    path = file_path(raw)
    if not path.name.removesuffix(".gz").endswith(".jsonl"):
        raise FieldTypeError
    return path


def _masked_path(raw: object) -> str:
    pattern = f.text_of(raw)
    if len(pattern) > 1000 or not pattern.isascii() or not masks(pattern):
        raise FieldTypeError
    return pattern


RECORDED_HEADER: Final = FieldType("header names that identify no caller", "x-model", _recorded_header)
_PATH_TEXT: Final = "the path of a file that ends in .jsonl or .jsonl.gz"
RECORDING_PATH: Final = FieldType(_PATH_TEXT, "traffic.jsonl.gz", _recording_path)
QUERY_NAME: Final = f.word(r"[!\"$%'-+\--:<>@-~]{1,100}", "names of query parameters", "page")
_MASK_TEXT: Final = "patterns with {name} or a final * for the masked parts"
MASKED_PATH: Final = FieldType(_MASK_TEXT, "/users/{id}", _masked_path)


class RecorderSettings(Group):
    """Settings of the recorder: the file, its limits, and the content of a recording."""

    prefix: ClassVar[str] = "record_"
    environment: ClassVar[str] = "PATH"

    path: Annotated[Path, RECORDING_PATH] | None = None
    """File that RecorderMiddleware writes, packed if it ends in .gz; if there is one, name-2 is written. Not
    set: nothing is recorded."""
    sample: Annotated[float, number(0, 1, "share")] = 1.0
    """Share of the clients that are recorded, each with all its requests."""
    max_bytes: Annotated[int, f.whole(SMALLEST_BYTES, 2**40, "bytes")] = 256 * 2**20
    """Size of the file at which the recording ends."""
    max_s: Annotated[float, number(1, 31_536_000, "s")] = 3600.0
    """Time after which the recording ends."""
    body: Annotated[RecordBody, choice(RecordBody)] = RecordBody.HASH
    """hash: length and SHA-256 of request bodies; none: the length; full: the body up to 64 KiB."""
    headers: Annotated[tuple[str, ...], listed(RECORDED_HEADER)] = ()
    """Header fields to keep besides content-type, content-length, accept, user-agent and PRIORITY_HEADER."""
    query: Annotated[tuple[str, ...], listed(QUERY_NAME)] = ()
    """Query parameters to keep; of all others only that they were there."""
    mask_paths: Annotated[tuple[str, ...], listed(MASKED_PATH)] = ()
    """Path patterns: segments in braces are masked; a final * masks the rest."""
