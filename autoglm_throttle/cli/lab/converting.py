"""``record convert``: converts one file format to another."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from autoglm_throttle.cli.lab.faults import Faults
from autoglm_throttle.cli.lab.option import Option, add_options
from autoglm_throttle.cli.output import FINE, write
from autoglm_throttle.traffic.arrivals import Arrivals, Crowd, Shape, plan
from autoglm_throttle.traffic.convert import Bodies, Fill, Form, Options, convert, kept_of, open_source
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.record import Redaction

_FORMS: Final = "|".join(Form)

FORMS: Final = (
    Option("--from", _FORMS, "the form of FILE (default: by how it begins)"),
    Option("--to", _FORMS, "the form of OUT (default: by its name: .jsonl, .gor, .har)"),
    Option("--base-url", "URL", "scheme and host that vegeta's form needs, and others may have"),
    Option("--shape", "SHAPE", "when requests are to come that have no times, as those of vegeta"),
    Option("--arrivals", "PROCESS", "of the shape: uniform, poisson or gamma:K (default: uniform)"),
)

KEPT: Final = (
    Option("--body", "FILE", "stands in for bodies that were not recorded"),
    Option("--fill", None, "spaces of the recorded length stand in for them"),
    Option(
        "--bodies",
        "|".join(Bodies),
        "what is kept of imported bodies in any form: SHA-256, the length, or all (default: hash)",
    ),
    Option("--allow-header", "NAME", "keep this header field; of a recording no others then", many=True),
    Option("--keep-query", "NAME", "keep this query parameter; of a recording no others then", many=True),
    Option("--mask-path", "PATTERN", "mask segments of paths, such as /users/{id} or /reset/*", many=True),
)

_SUFFIXES: Final = {".jsonl": Form.JSONL, ".gor": Form.GOR, ".har": Form.HAR}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("file", metavar="FILE", help="what is read")
    parser.add_argument("out", metavar="OUT", help="what is written; it must not exist")
    add_options(parser, "forms", FORMS)
    add_options(parser, "what is kept", KEPT)


def run(args: argparse.Namespace) -> int:
    """Convert, and report the losses.

    Raises:
        TrafficError: it cannot be done; nothing is written then.
    """
    faults = Faults()
    out = Path(args.out)
    form = faults.read("--from", _form, getattr(args, "from"), None)
    to = faults.make("--to", lambda: _target(args.to, out), Form.JSONL)
    options = _options(args, faults)
    redaction = _redaction(args, faults)
    times_s = _times(args, faults)
    faults.end()
    path = Path(args.file)
    if redaction is not None:
        headers, query = kept_of(path, form)
        redaction = _allowing(args, args.allow_header or headers, args.keep_query or query)
    account = convert(open_source(path, form, redaction, times_s), out, to, options)
    write("\n".join(account.lines()))
    return FINE


def _form(word: str) -> Form:
    try:
        return Form(word)
    except ValueError:
        raise TrafficError(f"{word!r} is none of {', '.join(Form)}") from None


def _target(word: str | None, out: Path) -> Form:
    if word is not None:
        return _form(word)
    form = _SUFFIXES.get(Path(out.stem).suffix if out.suffix == ".gz" else out.suffix)
    if form is None:
        raise TrafficError(f"say what {out.name} is to be: {', '.join(Form)}")
    return form


def _options(args: argparse.Namespace, faults: Faults) -> Options:
    body = faults.read("--body", _bytes, args.body, None)
    fill = faults.make("--fill", lambda: Fill(body, spaces=args.fill), Fill())
    keep = faults.read("--bodies", _bodies, args.bodies, Bodies.HASH)
    base_url = args.base_url or ""
    return faults.make("--base-url", lambda: Options(base_url=base_url, bodies=fill, keep=keep), Options())


def _bytes(name: str) -> bytes | None:
    return Path(name).read_bytes()


def _bodies(word: str) -> Bodies:
    try:
        return Bodies(word)
    except ValueError:
        raise TrafficError(f"{word!r} is none of {', '.join(Bodies)}") from None


def _redaction(args: argparse.Namespace, faults: Faults) -> Redaction | None:
    """Return the redaction; None without its options, so that the recorded one stays."""
    if not (args.allow_header or args.keep_query or args.mask_path):
        return None
    return faults.make(
        "--allow-header, --mask-path",
        lambda: _allowing(args, args.allow_header, args.keep_query),
        None,
    )


def _allowing(args: argparse.Namespace, headers: Sequence[str], query: Sequence[str]) -> Redaction:
    """Build a redaction. Where an option is absent, a recording keeps all its fields."""
    return Redaction(allow_headers=headers, keep_query=query, mask_paths=args.mask_path)


def _times(args: argparse.Namespace, faults: Faults) -> Sequence[float] | None:
    shape = faults.read("--shape", Shape.parse, args.shape, None)
    arrivals = faults.read("--arrivals", Arrivals.parse, args.arrivals, Arrivals.UNIFORM)
    return None if shape is None else plan(shape, arrivals, Crowd()).offsets
