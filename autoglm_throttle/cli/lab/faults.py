"""Every fault of a command line at once, each with the option it is about."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Final, TypeVar

from autoglm_throttle.cli.output import aside
from autoglm_throttle.model import ThrottleError
from autoglm_throttle.traffic.errors import TrafficError

USAGE: Final = 2
"""The exit status of what could not begin: wrong usage, a file, a connection."""

INTERRUPTED: Final = 130
"""The same after Ctrl-C, as shells say it."""

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


def guarded(name: str, work: Callable[[], int]) -> int:
    """Do the work of a command; what keeps it from beginning is told and ends with 2.

    So does what nobody expected, with its traceback: 1 would say that an objective failed.

    Args:
        name: of the command.
        work: gives the exit status.
    """
    try:
        return work()
    except Unusable as error:
        aside("".join(f"autoglm-throttle {name}: {fault}\n" for fault in error.faults))
        return USAGE
    except ThrottleError as error:
        aside(f"autoglm-throttle {name}: {error}\n")
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        raise
    except (OSError, MemoryError) as error:
        aside(f"autoglm-throttle {name}: {str(error) or 'out of memory'}\n")
        return USAGE
    except Exception:  # noqa: BLE001 - told in full
        fault = f"autoglm-throttle {name}: this is a fault of autoglm-throttle itself; please report it\n"
        aside(traceback.format_exc() + fault)
        return USAGE
