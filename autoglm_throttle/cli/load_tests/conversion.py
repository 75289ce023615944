"""``record convert``: converts one file format to another."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from autoglm_throttle.cli.load_tests.option import Option, add_options
from autoglm_throttle.cli.load_tests.problems import ProblemList
from autoglm_throttle.cli.output import EXIT_OK, write
from autoglm_throttle.traffic.convert import (
    Bodies,
    ConvertOptions,
    FileFormat,
    Fill,
    convert,
    open_source,
    recorded_names,
)
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.plan import Arrivals, LoadShape, PriorityMix, make_plan
from autoglm_throttle.traffic.record import Redaction

_FORM_NAMES: Final = "|".join(FileFormat)

FORM_OPTIONS: Final = (
    Option("--from", _FORM_NAMES, "the form of FILE (default: by how it begins)"),
    Option("--to", _FORM_NAMES, "the form of OUT (default: by its name: .jsonl, .gor, .har)"),
    Option("--base-url", "URL", "scheme and host that vegeta's form needs, and others may have"),
    Option("--shape", "SHAPE", "arrival times for requests without times, such as those of vegeta"),
    Option(
        "--arrivals",
        "PROCESS",
        "arrival process of the shape: uniform, poisson or gamma:K (default: uniform)",
    ),
)

RETENTION_OPTIONS: Final = (
    Option("--body", "FILE", "body to use where none was recorded"),
    Option("--fill", None, "use spaces of the recorded length instead"),
    Option(
        "--bodies",
        "|".join(Bodies),
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

_SUFFIXES: Final = {".jsonl": FileFormat.JSONL, ".gor": FileFormat.GOR, ".har": FileFormat.HAR}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("file", metavar="FILE", help="file to read")
    parser.add_argument("out", metavar="OUT", help="file to write; it must not exist")
    add_options(parser, "forms", FORM_OPTIONS)
    add_options(parser, "stored data", RETENTION_OPTIONS)


def run(args: argparse.Namespace) -> int:
    """Convert, and report the losses.

    Raises:
        TrafficError: it cannot be done; nothing is written then.
    """
    problems = ProblemList()
    out = Path(args.out)
    form = problems.read("--from", _form, getattr(args, "from"), None)
    to = problems.make("--to", lambda: _target(args.to, out), FileFormat.JSONL)
    options = _options(args, problems)
    redaction = _redaction(args, problems)
    times_s = _times(args, problems)
    problems.raise_if_any()
    path = Path(args.file)
    if redaction is not None:
        headers, query = recorded_names(path, form)
        redaction = _redaction_of(args, args.allow_header or headers, args.keep_query or query)
    account = convert(open_source(path, form, redaction, times_s), out, to, options)
    write("\n".join(account.lines()))
    return EXIT_OK


def _form(text: str) -> FileFormat:
    try:
        return FileFormat(text)
    except ValueError:
        raise TrafficError(f"{text!r} is not one of {', '.join(FileFormat)}") from None


def _target(text: str | None, out: Path) -> FileFormat:
    if text is not None:
        return _form(text)
    form = _SUFFIXES.get(Path(out.stem).suffix if out.suffix == ".gz" else out.suffix)
    if form is None:
        raise TrafficError(f"state the format of {out.name} with --to: {', '.join(FileFormat)}")
    return form


def _options(args: argparse.Namespace, problems: ProblemList) -> ConvertOptions:
    body = problems.read("--body", _bytes, args.body, None)
    fill = problems.make("--fill", lambda: Fill(body, spaces=args.fill), Fill())
    keep = problems.read("--bodies", _bodies, args.bodies, Bodies.HASH)
    base_url = args.base_url or ""
    return problems.make(
        "--base-url", lambda: ConvertOptions(base_url=base_url, bodies=fill, keep=keep), ConvertOptions()
    )


def _bytes(name: str) -> bytes | None:
    return Path(name).read_bytes()


def _bodies(text: str) -> Bodies:
    try:
        return Bodies(text)
    except ValueError:
        raise TrafficError(f"{text!r} is not one of {', '.join(Bodies)}") from None


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


def _times(args: argparse.Namespace, problems: ProblemList) -> Sequence[float] | None:
    shape = problems.read("--shape", LoadShape.parse, args.shape, None)
    arrivals = problems.read("--arrivals", Arrivals.parse, args.arrivals, Arrivals.UNIFORM)
    return None if shape is None else make_plan(shape, arrivals, PriorityMix()).offsets
