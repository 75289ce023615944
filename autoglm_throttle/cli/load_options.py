"""Options of the load tests: tables for argparse, parsed so that all problems are reported together."""

from __future__ import annotations

import argparse
import math
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from autoglm_throttle.cli.output import WRONG_USAGE, to_stderr
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.plan import parse_duration, parse_number
from autoglm_throttle.types import ThrottleError

INTERRUPTED: Final = 130  # The exit status after Ctrl-C, as shells define it

HIDDEN: Final = "***"

T = TypeVar("T")


class UsageError(TrafficError):
    """The command cannot run with these arguments."""

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

    def make(self, option: str, make: Callable[[], T], other: T) -> T:
        """Build a value; if that raises, add the problem of this option and return ``other``."""
        try:
            return make()
        except OSError as error:
            self.add(option, f"{error.filename}: {error.strerror}" if error.filename else error)
        except (TrafficError, ValueError) as error:
            self.add(option, error)
        return other

    def raise_if_any(self) -> None:
        """Raise `UsageError` with all problems if there are any."""
        if self._problems:
            raise UsageError(self._problems)


class Option(NamedTuple):
    """A row of a table of options."""

    name: str  # With its dashes
    metavar: str | None  # Name of its value; None: it is a switch
    help: str
    # Parses its text; may raise ``TrafficError``, ``ValueError`` or ``OSError``.
    parse: Callable[[str], Any] = str
    default: Any = None
    many: bool = False  # Whether it may be given several times; its value is a list then
    shown: Callable[[str], str] = str  # Form of its text in reports; some texts may hold a secret

    @property
    def dest(self) -> str:
        """Its attribute."""
        return self.name.lstrip("-").replace("-", "_")


OptionGroups = Mapping[str, Sequence[Option]]  # Title of a group -> its options


def add_options(parser: argparse.ArgumentParser, groups: OptionGroups) -> None:
    """Add groups of options to a parser, which leaves their values as texts."""
    for title, options in groups.items():
        group = parser.add_argument_group(title)
        for option in options:
            kind: dict[str, Any] = {"metavar": option.metavar}
            if option.metavar is None:
                kind = {"action": "store_true"}
            elif option.many:
                kind |= {"action": "append", "default": []}
            group.add_argument(option.name, dest=option.dest, help=option.help, **kind)


def parse_options(
    args: argparse.Namespace, groups: OptionGroups, problems: ProblemList
) -> argparse.Namespace:
    """Return the parsed values; an option that was not given or is wrong has its default."""

    def parsed(option: Option, text: str) -> object:
        return problems.make(option.name, lambda: option.parse(text), option.default)

    values = argparse.Namespace(**vars(args))
    for option in (option for options in groups.values() for option in options):
        given = getattr(args, option.dest)
        if option.many:
            setattr(values, option.dest, [parsed(option, text) for text in given])
        elif option.metavar is not None:
            setattr(values, option.dest, option.default if given is None else parsed(option, given))
    return values


def option_words(args: argparse.Namespace, options: Iterable[Option]) -> list[str]:
    """Return the options that were given, as words of a command line without secrets."""
    words: list[str] = []
    for option in options:
        given = getattr(args, option.dest)
        if option.metavar is None:
            words += [option.name] if given else []
        else:
            texts = given if option.many else [] if given is None else [given]
            words += [word for text in texts for word in (option.name, option.shown(text))]
    return words


def hidden_query(text: str) -> str:
    """Return a URL or path without the values of its query; a part without a name is a value."""
    place, mark, query = text.partition("?")
    if not query:
        return text
    parts = (part.partition("=") for part in query.split("&"))
    return f"{place}{mark}{'&'.join(f'{name}={HIDDEN}' if equals else HIDDEN for name, equals, _ in parts)}"


def above_zero(text: str) -> float:
    """Parse a finite number above 0."""
    value = parse_number(text)
    if not 0.0 < value < math.inf:
        raise TrafficError(f"{text!r} must be a finite number above 0")
    return value


def whole_number(minimum: int, maximum: float = math.inf) -> Callable[[str], int]:
    """Return a parser of whole numbers within bounds."""

    def read_whole(word: str) -> int:
        value = parse_number(word)
        if not minimum <= value <= maximum or value != math.floor(value) or math.isinf(value):
            bounds = f"from {minimum} to {maximum}" if math.isfinite(maximum) else f"of at least {minimum}"
            raise TrafficError(f"{word!r} must be a whole number {bounds}")
        return int(value)

    return read_whole


def time_s(text: str) -> float:
    """Parse a duration above 0; return seconds."""
    seconds = parse_duration(text)
    if not 0.0 < seconds < math.inf:
        raise TrafficError(f"{text!r} must be a finite duration above 0")
    return seconds


def is_json(text: str) -> bool:
    """Whether the output format is JSON."""
    if text not in ("text", "json"):
        raise TrafficError(f"{text!r} is neither text nor json")
    return text == "json"


def run_command(name: str, work: Callable[[], int]) -> int:
    """Run a command; an error before its start is printed and ends with 2.

    An unexpected exception ends with 2 as well, with its traceback: 1 would mean that an objective failed.
    """
    try:
        return work()
    except UsageError as error:
        text = "".join(f"autoglm-throttle {name}: {problem}\n" for problem in error.problems)
    except ThrottleError as error:
        text = f"autoglm-throttle {name}: {error}\n"
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # an OSError, but no failure: main() treats it as success
        raise
    except (OSError, MemoryError) as error:
        text = f"autoglm-throttle {name}: {str(error) or 'out of memory'}\n"
    except Exception:  # noqa: BLE001 - printed in full
        bug = "this is a bug in autoglm-throttle; please report it"
        text = f"{traceback.format_exc()}autoglm-throttle {name}: {bug}\n"
    to_stderr(text)
    return WRONG_USAGE
