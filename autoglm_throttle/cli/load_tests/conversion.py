"""``record convert``: writes a file of GoReplay, or a recording with less in it, as a recording."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from autoglm_throttle.cli.load_tests.option import Option, add_options
from autoglm_throttle.cli.load_tests.problems import ProblemList
from autoglm_throttle.cli.output import EXIT_OK, write
from autoglm_throttle.settings.groups.observe import RecordBody
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.record import Redaction
from autoglm_throttle.traffic.sources import copy_to_recording, open_source, recorded_names

OPTIONS: Final = (
    Option(
        "--bodies",
        "|".join(RecordBody),
        "part of imported bodies to store: SHA-256, the length, or all (default: hash)",
    ),
    Option(
        "--allow-header", "NAME", "store this header field; of a recording, only the fields given", many=True
    ),
    Option(
        "--keep-query",
        "NAME",
        "store this query parameter; of a recording, only the parameters given",
        many=True,
    ),
    Option("--mask-path", "PATTERN", "mask segments of paths, such as /users/{id} or /reset/*", many=True),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("file", metavar="FILE", help="file to read: .gor, or a recording")
    parser.add_argument("out", metavar="OUT", help="recording to write; it must not exist")
    add_options(parser, "stored data", OPTIONS)


def run(args: argparse.Namespace) -> int:
    """Convert, and report the removed data.

    Raises:
        TrafficError: it cannot be done; nothing is written then.
    """
    problems = ProblemList()
    bodies = problems.read("--bodies", _bodies, args.bodies, RecordBody.HASH)
    redaction = _redaction(args, problems)
    problems.raise_if_any()
    path = Path(args.file)
    if redaction is not None:
        headers, query = recorded_names(path)
        redaction = _redaction_of(args, args.allow_header or headers, args.keep_query or query)
    source = open_source(path, redaction)
    count = copy_to_recording(source, Path(args.out), bodies)
    write("\n".join([f"{count} requests written", *source.problem_lines()]))
    return EXIT_OK


def _bodies(text: str) -> RecordBody:
    try:
        return RecordBody(text)
    except ValueError:
        raise TrafficError(f"{text!r} is not one of {', '.join(RecordBody)}") from None


def _redaction(args: argparse.Namespace, problems: ProblemList) -> Redaction | None:
    """Return the redaction; None without its options, so that the recorded one stays."""
    if not (args.allow_header or args.keep_query or args.mask_path):
        return None
    return problems.make(
        "--allow-header, --mask-path",
        lambda: _redaction_of(args, args.allow_header, args.keep_query),
        None,
    )


def _redaction_of(args: argparse.Namespace, headers: Sequence[str], query: Sequence[str]) -> Redaction:
    """Build a redaction. Where an option is absent, a recording keeps all its fields."""
    return Redaction(allow_headers=headers, keep_query=query, mask_paths=args.mask_path)
