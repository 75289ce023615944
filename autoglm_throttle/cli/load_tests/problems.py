"""Collects every problem of a command line, each with its option."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Final, TypeVar

from autoglm_throttle.cli.output import to_stderr
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.types import ThrottleError

USAGE: Final = 2
"""The exit status of a run that could not start: wrong usage, a file, a connection."""

INTERRUPTED: Final = 130
"""The exit status after Ctrl-C, as shells define it."""

T = TypeVar("T")


class UsageError(TrafficError):
    """The command cannot run with these arguments.

    Args:
        problems: the problems, one sentence each.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems: tuple[str, ...] = tuple(problems)


class ProblemList:
    """List of problems, filled while options are read."""

    def __init__(self) -> None:
        self._problems: list[str] = []

    def add(self, option: str, problem: object) -> None:
        """Add a problem."""
        self._problems.append(f"{option}: {problem}")

    def read(self, option: str, read: Callable[[str], T], text: str | None, other: T) -> T:
        """Parse the text of an option.

        Args:
            option: its name.
            read: parses the text; may raise ``TrafficError``, ``ValueError`` or ``OSError``.
            text: as given; None: not given.
            other: result for an option that was not given or cannot be read.
        """
        if text is None:
            return other
        try:
            return read(text)
        except OSError as error:
            self.add(option, f"{text}: {error.strerror or error}")
        except (TrafficError, ValueError) as error:
            self.add(option, error)
        return other

    def make(self, option: str, make: Callable[[], T], other: T) -> T:
        """Build a value from several options.

        Args:
            option: name for these options in a problem.
            make: builds the value; may raise ``TrafficError``.
            other: result if it raises.
        """
        return self.read(option, lambda _: make(), "", other)

    def raise_if_any(self) -> None:
        """Raise if there are problems.

        Raises:
            UsageError: with all of them.
        """
        if self._problems:
            raise UsageError(self._problems)


def run_command(name: str, work: Callable[[], int]) -> int:
    """Run a command; an error before its start is printed and ends with 2.

    An unexpected exception ends with 2 as well, with its traceback: 1 would mean that an objective failed.

    Args:
        name: of the command.
        work: returns the exit status.
    """
    try:
        return work()
    except UsageError as error:
        to_stderr("".join(f"autoglm-throttle {name}: {fault}\n" for fault in error.problems))
        return USAGE
    except ThrottleError as error:
        to_stderr(f"autoglm-throttle {name}: {error}\n")
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # an OSError, but no failure: main() treats it as success
        raise
    except (OSError, MemoryError) as error:
        to_stderr(f"autoglm-throttle {name}: {str(error) or 'out of memory'}\n")
        return USAGE
    except Exception:  # noqa: BLE001 - printed in full
        fault = f"autoglm-throttle {name}: this is a bug in autoglm-throttle; please report it\n"
        to_stderr(traceback.format_exc() + fault)
        return USAGE
