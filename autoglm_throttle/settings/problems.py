"""Problems of the settings, all reported together in one exception."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autoglm_throttle.types import ThrottleError

SHOWN_CHARACTERS = 60
"""Longer values are truncated: enough to recognise the input, short enough for one line of a log."""

NEAR_ENOUGH = 0.6
"""Similarity (difflib) from which a name is proposed; below it a proposal misleads more than it helps."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")

_URL_LOGIN = re.compile(r"://.*@", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of the settings."""

    variable: str
    """Place of the problem: a variable, an argument, or file, line and key."""
    message: str
    """The allowed values and, unless it is secret, the given value."""
    hint: str = ""
    """Proposed correction; may be empty."""

    def __post_init__(self) -> None:
        for name in ("variable", "message", "hint"):
            object.__setattr__(self, name, _escaped(getattr(self, name)))

    def __str__(self) -> str:
        text = f"{self.variable}: {self.message}"
        return f"{text} ({self.hint})" if self.hint else text


class ConfigError(ThrottleError, ValueError):
    """Raised for settings that cannot be used; carries every problem found, not just the first.

    Args:
        problems: at least one, in the order of the settings page.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: list[Problem] = list(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return str(self.problems[0])
        lines = "".join(f"\n  {problem}" for problem in self.problems)
        return f"{len(self.problems)} problems in the settings:{lines}"


def repr_for_user(value: object) -> str:
    """Format a value for a message: in quotes, one line, 60 characters, no password of a URL."""
    text = value if isinstance(value, str) else repr(value)
    text = _URL_LOGIN.sub("://***@", text)
    if len(text) > SHOWN_CHARACTERS:
        text = text[: SHOWN_CHARACTERS - 3] + "..."
    return f"'{_escaped(text)}'"


def quoted_key(name: str) -> str:
    """Format a name as a key of TOML: in quotes unless it is of letters, digits, dashes and underscores."""
    if _BARE.fullmatch(name):
        return name
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def nearest(name: str, known: Sequence[str]) -> str | None:
    """Return the known name most like ``name``, or None if none is near."""
    from difflib import get_close_matches

    matches = get_close_matches(name, known, n=1, cutoff=NEAR_ENOUGH)
    return matches[0] if matches else None


def unknown_keys(table: Mapping[str, object], known: Sequence[str]) -> list[Problem]:
    """Return a problem for each unknown key, with the nearest known one."""
    problems = []
    for key in table:
        if key not in known:
            near = nearest(str(key).lower(), known)
            problems.append(
                Problem(
                    str(key),
                    "is not a known key",
                    f"did you mean {near}?" if near else "known are " + ", ".join(known),
                )
            )
    return problems


def _escaped(text: str) -> str:
    """Escape control characters: user input must not control the terminal that shows it."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
