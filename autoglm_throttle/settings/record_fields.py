"""Settings of the recorder: the file, its limits, and the content of a recording."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar, Final

from pydantic_settings import SettingsConfigDict

from autoglm_throttle.settings.caller_field_types import HeaderName
from autoglm_throttle.settings.degrade_fields import DegradationSettings
from autoglm_throttle.settings.device_field_types import FilePath
from autoglm_throttle.settings.field import CHOSEN, setting
from autoglm_throttle.settings.field_types import (
    ChoiceType,
    FieldType,
    FieldTypeError,
    Listed,
    Number,
    Size,
    WithNone,
)

NEVER_RECORDED: Final = frozenset(
    {
        "authorization",
        "proxy-authorization",
        "cookie",
        "set-cookie",
        "x-api-key",
        "forwarded",
        "x-forwarded-for",
        "x-real-ip",
    }
)
"""Header fields that identify or authenticate the caller. The header that ``IDENTITY`` names is another."""

_CREDENTIAL_NAMES = re.compile(
    r"api[-_.]?key|token|secret|passw|cookie|auth[nz]?(?:[-_.]|$)|authori[sz]|authentic|session|credential"
    r"|signature|jwt|client[-_.]?cert|forwarded|(?:^|[-_.])ip$",
    re.IGNORECASE,
)
"""Common parts of other such names: ``x-goog-api-key``, ``x-auth-token``, ``cf-connecting-ip``."""

SMALLEST_BYTES: Final = 4096
"""A smaller file cannot hold its first and last lines."""


class RecordBody(StrEnum):
    """Recorded data of request bodies."""

    HASH = "hash"
    NONE = "none"
    FULL = "full"


class RecordedHeader(HeaderName):
    """A header that may be recorded."""

    allowed = "header names that identify no caller"
    example = "x-model"

    def parse(self, raw: object) -> str:
        """Parse a name that `identifies_caller` permits."""
        name = super().parse(raw)
        if identifies_caller(name):
            raise FieldTypeError("it identifies the caller and can never be recorded")
        return name


class RecordingPath(FilePath):
    """The path of a recording."""

    allowed = "the path of a file that ends in .jsonl or .jsonl.gz"
    example = "traffic.jsonl.gz"

    def parse(self, raw: object) -> Path:
        """Parse a path with the ending of a recording: a folder given by mistake is detected at once."""
        path = super().parse(raw)
        if not path.name.removesuffix(".gz").endswith(".jsonl"):
            raise FieldTypeError
        return path


class QueryName(FieldType[str]):
    """A query parameter."""

    allowed = "names of query parameters"
    example = "page"
    _one = re.compile(r"[\x21-\x7e]{1,100}")

    def parse(self, raw: object) -> str:
        """Parse a name as in a decoded URL."""
        name = raw.strip() if isinstance(raw, str) else ""
        if not self._one.fullmatch(name) or set(name) & set("&;=,?#"):
            raise FieldTypeError
        return name


class MaskedPath(FieldType[str]):
    """A pattern of paths with secret parts."""

    allowed = "patterns with {name} or a final * for the masked parts"
    example = "/users/{id}"

    def parse(self, raw: object) -> str:
        """Parse a pattern that masks at least one segment."""
        pattern = raw.strip() if isinstance(raw, str) else ""
        if len(pattern) > 1000 or not pattern.isascii() or not masks(pattern):
            raise FieldTypeError
        return pattern


def identifies_caller(name: str) -> bool:
    """Whether a header field, by its name, identifies or authenticates the caller; it can never be recorded.

    Names that only look alike are rejected, too: a missing field costs less than a recorded secret.
    """
    return name.lower() in NEVER_RECORDED or _CREDENTIAL_NAMES.search(name) is not None


def masks(pattern: str) -> bool:
    """Whether a pattern of paths masks a segment."""
    segments = pattern.strip("/").split("/")
    named = [part.startswith("{") and part.endswith("}") for part in segments]
    plain = [part for part, one in zip(segments, named, strict=True) if not one]
    if not pattern.startswith("/") or "*" in segments[:-1] or not pattern.isprintable():
        return False
    if any(set(part) & set(" ,{}?#") for part in plain) or any("*" in part and part != "*" for part in plain):
        return False
    return any(named) or segments[-1] == "*"


class RecorderSettings(DegradationSettings):
    """Declarations of the settings of the recorder."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(defer_build=True)

    record_path: Annotated[Path | None, WithNone(RecordingPath())] = setting(
        None,
        "File that RecorderMiddleware writes, packed if it ends in .gz; if there is one, name-2 is written. "
        "Not set: nothing is recorded.",
        CHOSEN,
    )
    record_sample: Annotated[float, Number(0, 1, "share")] = setting(
        1.0, "Share of the clients that are recorded, each with all its requests.", CHOSEN
    )
    record_max_bytes: Annotated[int, Size(SMALLEST_BYTES, 2**40)] = setting(
        256 * 2**20, "Size of the file at which the recording ends.", CHOSEN
    )
    record_max_s: Annotated[float, Number(1, 31_536_000, "s")] = setting(
        3600.0, "Time after which the recording ends.", CHOSEN
    )
    record_body: Annotated[RecordBody, ChoiceType(RecordBody)] = setting(
        RecordBody.HASH,
        "hash: length and SHA-256 of request bodies; none: the length; full: the body up to 64 KiB.",
        CHOSEN,
    )
    record_headers: Annotated[tuple[str, ...], Listed(RecordedHeader())] = setting(
        (),
        "Header fields to keep besides content-type, content-length, accept, user-agent and PRIORITY_HEADER.",
        CHOSEN,
    )
    record_query: Annotated[tuple[str, ...], Listed(QueryName())] = setting(
        (), "Query parameters to keep; of all others only that they were there.", CHOSEN
    )
    record_mask_paths: Annotated[tuple[str, ...], Listed(MaskedPath())] = setting(
        (),
        "Path patterns: segments in braces are masked; a final * masks the rest.",
        CHOSEN,
    )
