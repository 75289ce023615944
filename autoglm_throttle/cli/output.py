"""How commands say things: aligned text, one JSON document, problems with their remedies."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from autoglm_throttle.settings import Problem

FINE: Final = 0
PROBLEM_FOUND: Final = 1

_COLOURS: Final = {
    "problem": "\x1b[31m",
    "fail": "\x1b[31m",
    "warning": "\x1b[33m",
    "warn": "\x1b[33m",
    "ok": "\x1b[32m",
}
_PLAIN: Final = "\x1b[0m"


def write(text: str) -> None:
    """Write lines to standard output; what the terminal's encoding lacks is written as an escape."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")


def write_json(document: object) -> None:
    """Write one JSON document in ASCII."""
    write(json.dumps(document, indent=2))


def aside(text: str) -> None:
    """Write to standard error; if nobody reads it any more, what goes on is not kept from going on."""
    with contextlib.suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


class Reader:
    """Whoever reads what a command writes."""

    status = FINE
    """The exit status for one who left before the end."""


@contextlib.contextmanager
def reader_may_leave() -> Iterator[Reader]:
    """Whoever reads the other end of a pipe may have seen enough, as ``head`` has."""
    try:
        yield Reader()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the exit flushes, and fails, too


def table(rows: Iterable[Sequence[str]], *, right: frozenset[int] = frozenset()) -> str:
    """Lines whose columns are as wide as their widest cell.

    Args:
        rows: cells, the heading first.
        right: numbers of the columns that are flush right.
    """
    cells = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if position in right else cell.ljust(width)
            for position, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )


def remark(kind: str, problem: Problem) -> str:
    """A problem or warning as a line and, indented, what to do about it."""
    text = f"{painted(kind)}: {problem.variable}: {problem.message}"
    return f"{text}\n    {problem.hint}" if problem.hint else text


def as_json(problems: Iterable[Problem]) -> list[dict[str, str]]:
    """Problems as JSON objects."""
    return [{"variable": p.variable, "message": p.message, "hint": p.hint} for p in problems]


def painted(kind: str, width: int = 0) -> str:
    """The word in its colour, where the terminal wants colours; filled up with blanks to a width."""
    blanks = " " * (width - len(kind))
    if os.environ.get("NO_COLOR") or not sys.stdout.isatty():
        return kind + blanks
    return f"{_COLOURS[kind]}{kind}{_PLAIN}{blanks}"
