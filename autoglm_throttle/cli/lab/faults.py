"""Every fault of a command line at once, each with the option it is about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from autoglm_throttle.traffic.errors import TrafficError

USAGE: Final = 2
"""The exit status of what could not begin: wrong usage, a file, a connection."""

T = TypeVar("T")


class Unusable(TrafficError):
    """The command cannot be done as it was asked for.

    Args:
        faults: what to change, one sentence each.
    """

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults: tuple[str, ...] = tuple(faults)


class Faults:
    """Collects them."""

    def __init__(self) -> None:
        self._found: list[str] = []

    def note(self, option: str, fault: object) -> None:
        """Keep one."""
        self._found.append(f"{option}: {fault}")

    def read(self, option: str, read: Callable[[str], T], text: str | None, other: T) -> T:
        """What an option says.

        Args:
            option: its name.
            read: reads its text; may raise ``TrafficError``, ``ValueError`` or ``OSError``.
            text: as it was given; None: it was not.
            other: what stands for an option that was not given or cannot be read.
        """
        if text is None:
            return other
        try:
            return read(text)
        except OSError as error:
            self.note(option, f"{text}: {error.strerror or error}")
        except (TrafficError, ValueError) as error:
            self.note(option, error)
        return other

    def make(self, option: str, make: Callable[[], T], other: T) -> T:
        """What is made of several options.

        Args:
            option: how to call them.
            make: makes it; may raise ``TrafficError``.
            other: what stands for it then.
        """
        return self.read(option, lambda _: make(), "", other)

    def end(self) -> None:
        """Go on if there are none.

        Raises:
            Unusable: with all of them.
        """
        if self._found:
            raise Unusable(self._found)
