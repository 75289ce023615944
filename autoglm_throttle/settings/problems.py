"""Problems of the settings, all reported together in one exception, without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from autoglm_throttle.types import ThrottleError

MASK: Final = "********"
SHOWN_CHARACTERS: Final = 60  # enough to recognise the input, short enough for one line of a log
NEAR_ENOUGH: Final = 0.6  # similarity (difflib) below which a proposed name misleads more than it helps
_READ_AT_MOST: Final = 2000  # characters of a value that a message reads: a variable may hold megabytes


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
            object.__setattr__(self, name, escaped(shortened(getattr(self, name), _READ_AT_MOST)))

    def __str__(self) -> str:
        text = f"{self.variable}: {self.message}"
        return f"{text} ({self.hint})" if self.hint else text

    def below(self, place: str) -> Problem:
        """Return the problem with its place put behind another: ``routes[1]`` and ``.cost``."""
        return Problem(place + self.variable, self.message, self.hint)


class ConfigError(ThrottleError, ValueError):
    """Raised for settings that cannot be used; carries every problem, in the order of the settings page."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: list[Problem] = list(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return str(self.problems[0])
        lines = "".join(f"\n  {problem}" for problem in self.problems)
        return f"{len(self.problems)} problems in the settings:{lines}"


def repr_for_user(value: object) -> str:
    """Format a value for a message: in quotes, one line, 60 characters, no secrets of a URL."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except Exception:  # noqa: BLE001 - a value in code may have any fault
        text = type(value).__name__
    text = masked_url(text[:_READ_AT_MOST], whole_login=True)
    return f"'{escaped(shortened(text, SHOWN_CHARACTERS))}'"


def shortened(text: str, characters: int) -> str:
    """Shorten a text to a number of characters, with three dots in place of its end."""
    return text if len(text) <= characters else f"{text[: characters - 3]}..."


def masked_url(text: str, *, whole_login: bool = False) -> str:
    """Mask the password and every query value of a URL; user name, host and names of options stay.

    In a text that may be no URL, everything from the scheme to the last ``@`` counts as the login, which
    ``whole_login`` masks with the user name.
    """
    separator = next((mark for mark in ("://", ":/") if mark in text), "")
    scheme, _, rest = text.partition(separator) if separator else ("", "", text)
    login, at, tail = rest.rpartition("@")
    if at and login:
        user, colon, password = login.partition(":")
        # A login without a colon is masked as a whole: it may be a password in the wrong place.
        login = f"{user}:{MASK if password else ''}" if colon and not whole_login else MASK
    path, question, query = tail.partition("?")
    # Without an equals sign a whole part of the query may be a secret.
    query = re.sub("(?=[^&;])([^&;=]*=)?[^&;]*", lambda part: (part[1] or "") + MASK, query)
    return scheme + separator + login + at + path + question + query


def quoted_key(name: str) -> str:
    """Format a name as a key of TOML: in quotes unless it is of letters, digits, dashes and underscores."""
    if re.fullmatch("[A-Za-z0-9_-]+", name):
        return name
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def nearest(name: str, known: Sequence[str]) -> str | None:
    """Return the known name most like ``name``, or None if none is near."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(name[:_READ_AT_MOST], known, n=1, cutoff=NEAR_ENOUGH)), None)


def unknown_key(key: str, known: Sequence[str]) -> Problem:
    """Build the problem of an unknown key, with the nearest known one."""
    near = nearest(key.lower(), known)
    hint = f"did you mean {near}?" if near else f"known are {', '.join(known)}"
    return Problem(key, "is not a known key", hint)


def escaped(text: str) -> str:
    """Escape control characters: user input must not control the terminal that shows it."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
