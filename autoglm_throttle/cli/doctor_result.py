"""Results of a diagnosis, and its time limit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

T = TypeVar("T")


class Severity(StrEnum):
    """Severity of a result."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class DoctorResult:
    """One line of a report."""

    part: str  # Examined part: ``gpu``, ``redis``, ``store``
    item: str  # Examined item, as programs know it: ``round_trip``
    level: Severity
    message: str
    hint: str = ""  # The remedy; may be empty
    # The same for programs: seconds, a name, a list of missing items.
    value: str | float | list[str] | None = None

    def __post_init__(self) -> None:
        for name in ("message", "hint"):
            object.__setattr__(self, name, one_line(getattr(self, name)))


def one_line(text: str) -> str:
    """Replace characters that could move a terminal's cursor: names come from servers and drivers."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def within(seconds: float, work: Callable[[], T]) -> T:
    """Run a call that may hang, such as a driver's call or the look-up of a host's name.

    After the time limit it goes on alone, on a daemon thread.
    """
    result: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            result.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again in the calling thread
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not result:
        raise TimeoutError
    return result[0]
