"""Header and trailer of a recording: its first and its last line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from autoglm_throttle.traffic.record.recorded_request import VERSION

KIND: Final = "autoglm-throttle-traffic"
"""Value of ``kind`` in the first line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingHeader:
    """First line of a recording: properties of the file."""

    start: str = ""
    """Start of the recording: ISO 8601 in UTC; empty where the line is missing."""
    made_by: str = ""
    """Library version that wrote it."""
    redaction: Mapping[str, Any] = field(default_factory=dict)
    """Allowed ``headers`` and ``query``, masked ``paths``, ``body`` mode, and the kind of ``key`` that hashes
    the clients.
    """
    sample: float = 1.0
    """Share of the clients that was recorded."""

    def to_line(self) -> str:
        """Format the line of the file, without its line end."""
        data = {
            "v": VERSION,
            "kind": KIND,
            "start": self.start,
            "library": self.made_by,
            "redaction": dict(self.redaction),
            "sample": self.sample,
        }
        return json.dumps(data, separators=(",", ":"))

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> RecordingHeader:
        """Read it from the object of a first line; a value of another type counts as absent."""
        redaction, sample = data.get("redaction"), data.get("sample")
        return cls(
            start=_printable(data.get("start")),
            made_by=_printable(data.get("library")),
            redaction=redaction if isinstance(redaction, dict) else {},
            sample=float(sample) if isinstance(sample, (int, float)) and 0.0 <= sample <= 1.0 else 1.0,
        )


@dataclass(frozen=True, slots=True)
class RecordingTrailer:
    """Last line of a recording: the reason for its end, and the number of lost requests."""

    reason: str
    """``closed``, ``max_bytes`` or ``max_s``."""
    dropped: int
    """Requests missing from the file because the writer could not keep up."""

    def to_line(self) -> str:
        """Format the line of the file, without its line end."""
        return f'{{"v":{VERSION},"end":"{self.reason}","dropped":{self.dropped}}}'

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> RecordingTrailer:
        """Read it from the object of a last line."""
        dropped = data.get("dropped")
        return cls(_printable(data.get("end")), dropped if type(dropped) is int and dropped >= 0 else 0)


def _printable(value: object) -> str:
    """Return a short printable text, safe for display; otherwise an empty one."""
    text = value if isinstance(value, str) else ""
    return text if text.isascii() and text.isprintable() and len(text) <= 100 else ""
