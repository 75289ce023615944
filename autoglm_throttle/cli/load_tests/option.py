"""Options as rows of a table. All are texts to argparse, so that their problems are reported together."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass

HIDDEN = "***"


def hidden(_: str) -> str:
    """Return the placeholder of a secret."""
    return HIDDEN


def hidden_value(text: str) -> str:
    """Return a header field without its value."""
    return f"{text.partition(':')[0]}: {HIDDEN}"


def hidden_query(text: str) -> str:
    """Return a URL or path without the values of its query; a part without a name is a value."""
    place, mark, query = text.partition("?")
    if not query:
        return text
    parts = (part.partition("=") for part in query.split("&"))
    return f"{place}{mark}{'&'.join(f'{name}={HIDDEN}' if equals else HIDDEN for name, equals, _ in parts)}"


@dataclass(frozen=True, slots=True)
class Option:
    """A row of a table of options."""

    name: str
    """With its dashes."""
    metavar: str | None
    """Name of its value; None: it is a switch."""
    help: str
    many: bool = False
    """Whether it may be given several times."""
    shown: Callable[[str], str] = str
    """Form of its text in reports; some texts may hold a secret."""

    @property
    def dest(self) -> str:
        """Its attribute."""
        return self.name.lstrip("-").replace("-", "_")

    def add(self, group: argparse._ArgumentGroup) -> None:
        """Add it to a group of a parser."""
        if self.metavar is None:
            group.add_argument(self.name, dest=self.dest, action="store_true", help=self.help)
        elif self.many:
            group.add_argument(
                self.name, dest=self.dest, action="append", default=[], metavar=self.metavar, help=self.help
            )
        else:
            group.add_argument(self.name, dest=self.dest, metavar=self.metavar, help=self.help)

    def tokens(self, args: argparse.Namespace) -> list[str]:
        """Return the arguments as given, without secrets; empty if the option was not given."""
        value = getattr(args, self.dest)
        if self.metavar is None:
            return [self.name] if value else []
        texts = value if self.many else [] if value is None else [value]
        return [word for text in texts for word in (self.name, self.shown(text))]


def add_options(parser: argparse.ArgumentParser, title: str, options: Iterable[Option]) -> None:
    """Add a group of options."""
    group = parser.add_argument_group(title)
    for option in options:
        option.add(group)


def command(tokens: Iterable[str], options: Iterable[Option], args: argparse.Namespace) -> str:
    """Return the command line in a form that can be shown and run again, without secrets.

    Args:
        tokens: its name and the positional arguments.
        options: its options, in the order to show them.
        args: the parsed arguments.
    """
    given = [word for option in options for word in option.tokens(args)]
    return shlex.join(["autoglm-throttle", *tokens, *given])
