"""Options that commands share, and their output: aligned text, one JSON document, problems with remedies."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from autoglm_throttle.settings import Problem, Settings

EXIT_OK: Final = 0
PROBLEM_FOUND: Final = 1
WRONG_USAGE: Final = 2

_COLOURS: Final = {"problem": 31, "fail": 31, "warning": 33, "warn": 33, "ok": 32}  # red, yellow, green


def add_sources(parser: argparse.ArgumentParser) -> None:
    """Add the options for the sources of settings and for the output format."""
    parser.add_argument(
        "--env-file", metavar="FILE", help="a .env file, read with lower precedence than the environment"
    )
    parser.add_argument("--config-file", metavar="FILE", help="the TOML file, instead of CONFIG_FILE")
    add_format(parser)


def add_format(parser: argparse.ArgumentParser) -> None:
    """Add the option for the output format; all commands that print JSON spell it so."""
    parser.add_argument(
        "--format",
        choices=("text", "json"),
        default="text",
        metavar="text|json",
        help="output format (default: text)",
    )


def load(args: argparse.Namespace) -> Settings:
    """Read the settings selected by the options."""
    overrides = {} if args.config_file is None else {"config_file": args.config_file}
    return Settings.from_env(env_file=args.env_file, **overrides)


def write(text: str) -> None:
    """Write lines to standard output. Characters outside the terminal's encoding are written as escapes."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")


def write_json(document: object) -> None:
    """Write one JSON document in ASCII."""
    write(json.dumps(document, indent=2))


def to_stderr(text: str) -> None:
    """Write to standard error; a closed pipe there does not stop the command."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        # Else the interpreter flushes the rest at exit, fails, and replaces the exit status.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


@contextlib.contextmanager
def broken_pipe_ok() -> Iterator[None]:
    """Treat a broken pipe as success: the reader may need only the start, as ``head`` does."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Else the interpreter flushes stdout at exit, and fails there as well.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def table(rows: Iterable[Sequence[str]], *, right: frozenset[int] = frozenset()) -> str:
    """Format lines with columns as wide as their widest cell."""
    columns = list(zip(*rows, strict=True))
    for position, column in enumerate(columns):
        width = max(map(len, column))
        align = str.rjust if position in right else str.ljust
        columns[position] = tuple(align(cell, width) for cell in column)
    return "\n".join("  ".join(row).rstrip() for row in zip(*columns, strict=True))


def note_line(kind: str, problem: Problem) -> str:
    """Format a problem or warning as a line and, indented, its remedy."""
    text = f"{colored(kind)}: {problem.variable}: {problem.message}"
    return f"{text}\n    {problem.hint}" if problem.hint else text


def as_json(problems: Iterable[Problem]) -> list[dict[str, str]]:
    """Convert problems to JSON objects."""
    return [{"variable": p.variable, "message": p.message, "hint": p.hint} for p in problems]


def colored(kind: str, width: int = 0) -> str:
    """Return the word in its colour if the terminal shows colours, padded with blanks to a width."""
    blanks = " " * (width - len(kind))
    if os.environ.get("NO_COLOR") or not sys.stdout.isatty():
        return kind + blanks
    return f"\x1b[{_COLOURS[kind]}m{kind}\x1b[0m{blanks}"
