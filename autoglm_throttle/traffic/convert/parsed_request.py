"""Requests parsed from files of other programs, before redaction."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from autoglm_throttle.traffic.errors import TrafficError

MAX_NAMED = 20
"""Problems that are listed one by one; the others are only counted."""

_USER = re.compile(r"(?:/{2,}[^/?#]*@[^/?#]*)+")
"""Authorities with a user, as at the start of a URL without a scheme."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*([^#]*)(?:#.*)?", re.DOTALL)


@dataclass(slots=True, kw_only=True)
class ParsedRequest:
    """A request parsed from a file of another program; its fields are not trusted."""

    at_ns: int | None
    """Nanoseconds since 1970; None if the format has no times."""
    method: str
    target: str
    """Path and query, as in the file."""
    headers: list[tuple[str, str]]
    """Lower-case names."""
    body: bytes | None = b""
    """None: not in the file."""
    status: int = 0
    ms: float = 0.0
    recorded_fields: Mapping[str, object] = field(default_factory=dict)
    """Fields of a recording that the file carries in addition."""


class ImportProblems:
    """Collects reading problems: place and reason."""

    def __init__(self) -> None:
        self.count: int = 0
        self.named: list[str] = []
        """The first `MAX_NAMED` of them."""

    def add(self, where: str, reason: object) -> None:
        """Add a problem."""
        self.count += 1
        if len(self.named) < MAX_NAMED:
            self.named.append(f"{where}: {reason}")

    def lines(self) -> list[str]:
        """Format all problems as lines of text."""
        more = self.count - len(self.named)
        return [*self.named, f"and {more} more"] if more else list(self.named)


def target_of(url: str) -> str:
    """Return path and query of an absolute URL, or of a path.

    ``//name:password@host/path`` is a URL without a scheme; ``//path`` may be a path, and stays one.

    Raises:
        TrafficError: the text is neither.
    """
    match = _URL.fullmatch(url)
    rest = match[1] if match else url.partition("#")[0]
    begins = _USER.match(rest)
    if begins:
        rest = rest[begins.end() :]
    if (match or begins) and not rest.startswith("/"):
        rest = f"/{rest}"
    if not rest.startswith("/"):
        raise TrafficError("neither an absolute URL nor a path")
    return rest
