"""The first and the last line of a recording."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from autoglm_throttle.traffic.record.entry import VERSION

KIND: Final = "autoglm-throttle-traffic"
"""What the first line calls the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """What the first line says of all others."""

    start: str = ""
    """When the recording began: ISO 8601 in UTC; empty where the line is missing."""
    made_by: str = ""
    """Version that wrote it."""
    redaction: Mapping[str, Any] = field(default_factory=dict)
    """What was left standing: ``headers``, ``query``, ``paths`` (masked), ``body``, and whose ``key`` the
    clients are hashed with."""
    sample: float = 1.0
    """Share of the clients that was recorded."""

    def to_line(self) -> str:
        """The line of the file, without its end."""
        found = {
            "v": VERSION,
            "kind": KIND,
            "start": self.start,
            "library": self.made_by,
            "redaction": dict(self.redaction),
            "sample": self.sample,
        }
        return json.dumps(found, separators=(",", ":"))

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Heading:
        """Read it from the object of a first line; what is of another type is taken as not said."""
        redaction, sample = found.get("redaction"), found.get("sample")
        return cls(
            start=_shown(found.get("start")),
            made_by=_shown(found.get("library")),
            redaction=redaction if isinstance(redaction, dict) else {},
            sample=float(sample) if isinstance(sample, (int, float)) and 0.0 <= sample <= 1.0 else 1.0,
        )


@dataclass(frozen=True, slots=True)
class End:
    """What the last line says: why the recording ended, and what was lost on the way."""

    reason: str
    """``closed``, ``max_bytes`` or ``max_s``."""
    dropped: int
    """Requests that are not in the file because the writer could not keep up."""

    def to_line(self) -> str:
        """The line of the file, without its end."""
        return f'{{"v":{VERSION},"end":"{self.reason}","dropped":{self.dropped}}}'

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> End:
        """Read it from the object of a last line."""
        dropped = found.get("dropped")
        return cls(_shown(found.get("end")), dropped if type(dropped) is int and dropped >= 0 else 0)


def _shown(found: object) -> str:
    """A short printable text, since people are shown it."""
    text = found if isinstance(found, str) else ""
    return text if text.isascii() and text.isprintable() and len(text) <= 100 else ""
