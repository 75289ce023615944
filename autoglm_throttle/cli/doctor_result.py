"""One line of the report of ``doctor``, and the time limit of its calls."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal, TypeVar

T = TypeVar("T")


Severity = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class DoctorResult:
    """One line of a report."""

    part: str  # Examined part: ``gpu``, ``redis``, ``store``
    item: str  # Examined item, as programs know it: ``round_trip``
    level: Severity
    message: str
    hint: str = ""  # The remedy; may be empty
    value: str | float | list[str] | None = None  # For programs: seconds, a name, a list of missing items

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
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again in the calling thread
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future.result(seconds)
