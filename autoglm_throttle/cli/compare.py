"""``load compare``: two reports side by side."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from autoglm_throttle.cli.load_options import ProblemList, UsageError, is_json, run_command
from autoglm_throttle.cli.output import EXIT_OK, write, write_json
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.report import Document, compare, comparison, loads


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``load compare``; its first word is ``compare`` itself."""
    parser.usage = "autoglm-throttle load compare A B [--format text|json]"
    parser.description = "Put two reports side by side."
    parser.add_argument("words", metavar="A B", nargs="+", help="the JSON of two reports")
    parser.add_argument("--format", metavar="text|json", help="output format (default: text)")


def run(args: argparse.Namespace) -> int:
    """Compare two reports; return 2 if they cannot be read."""
    return run_command("load", lambda: compare_files(args.words[1:], args.format))


def compare_files(names: Sequence[str], form: str | None) -> int:
    """Print two reports side by side."""
    if len(names) != 2:
        raise UsageError(["compare: takes the JSON of two reports, A and B"])
    problems = ProblemList()
    as_json = problems.make("--format", lambda: is_json(form or "text"), other=False)
    first, second = (problems.make("compare", partial(_read_report, name), None) for name in names)
    problems.raise_if_any()
    if first is None or second is None:  # pragma: no cover - then there was a fault
        raise AssertionError
    if as_json:
        write_json(comparison(first, second))
    else:
        write("\n".join(compare(first, second)))
    return EXIT_OK


def _read_report(name: str) -> Document:
    try:
        return loads(Path(name).read_text("utf-8"))
    except UnicodeDecodeError:
        raise TrafficError(f"{name}: not a text") from None
    except TrafficError as error:
        raise TrafficError(f"{name}: {error}") from None
