"""What an examination finds, and how long it may take."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

T = TypeVar("T")


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a report."""

    part: str
    """What was looked at: ``gpu``, ``redis``, ``storage``."""
    item: str
    """What was looked for, as programs know it: ``round_trip``."""
    level: Level
    message: str
    hint: str = ""
    """What to do about it; may be empty."""
    value: str | float | list[str] | None = None
    """The same for programs: seconds, a name, what is missing."""

    def __post_init__(self) -> None:
        for name in ("message", "hint"):
            object.__setattr__(self, name, printable(getattr(self, name)))


def printable(text: str) -> str:
    """The text without what could move a terminal's cursor: names come from servers and drivers."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def within(seconds: float, work: Callable[[], T]) -> T:
    """Do something that may hang, such as a driver's call or the look-up of a host's name.

    It is left to itself on a daemon thread when the time is over.

    Raises:
        TimeoutError: it has not ended in time.
    """
    result: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            result.append(work())
        except BaseException as error:  # noqa: BLE001 - it is raised again, where it was asked for
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not result:
        raise TimeoutError
    return result[0]
