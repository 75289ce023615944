"""``record``: inspects a recording of traffic, checks its format, or converts to one."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from autoglm_throttle.cli.options import Option, add_options, run_command
from autoglm_throttle.cli.output import EXIT_OK, PROBLEM_FOUND, add_format, write, write_json
from autoglm_throttle.settings.groups.observe import RecordBody
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.record import Redaction, check, info, info_lines
from autoglm_throttle.traffic.sources import copy_to_recording, open_source, recorded_names

EXAMPLES: Final = """\
examples:
  autoglm-throttle record info traffic.jsonl.gz
  autoglm-throttle record check traffic.jsonl
  autoglm-throttle record convert requests.gor traffic.jsonl --allow-header accept-language
  autoglm-throttle record convert traffic.jsonl shared.jsonl --mask-path '/users/{id}'

Recordings are made by RecorderMiddleware, just outside ThrottleMiddleware, where RECORD_PATH is set.

exit status: 0 success, 1 the check found problems, 2 the command could not start
"""


def _bodies(text: str) -> RecordBody:
    try:
        return RecordBody(text)
    except ValueError:
        raise TrafficError(f"{text!r} is not one of {', '.join(RecordBody)}") from None


_BODIES: Final = "part of imported bodies to store: SHA-256, the length, or all"
_HEADERS: Final = "store this header field; of a recording, only the fields given"
_QUERY: Final = "store this query parameter; of a recording, only the parameters given"

CONVERT_OPTIONS: Final = (
    Option("--bodies", "|".join(RecordBody), _BODIES, _bodies, "hash"),
    Option("--allow-header", "NAME", _HEADERS, many=True),
    Option("--keep-query", "NAME", _QUERY, many=True),
    Option("--mask-path", "PATTERN", "mask segments of paths, such as /users/{id} or /reset/*", many=True),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the commands below this one."""
    parser.usage = "autoglm-throttle record COMMAND FILE ..."
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, prog="autoglm-throttle record"
    )
    for name, text, work in (
        ("info", "count requests, clients, decisions and stored data", _info),
        ("check", "check the format and the order of a recording, and that no field is forbidden", _check),
    ):
        own = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        own.add_argument("file", metavar="FILE", help="a recording")
        add_format(own)
        own.set_defaults(work=work)
    text = "turn a file of GoReplay into a recording, or remove data from a recording"
    usage = "autoglm-throttle record convert FILE OUT [options]"
    own = commands.add_parser("convert", help=text, description=f"{text[0].upper()}{text[1:]}.", usage=usage)
    own.add_argument("file", metavar="FILE", help="file to read: .gor, or a recording")
    own.add_argument("out", metavar="OUT", help="recording to write; it must not exist")
    add_options(own, {"stored data": CONVERT_OPTIONS})
    own.set_defaults(work=_convert)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand."""
    work: Callable[[argparse.Namespace], int] = args.work
    return run_command("record", lambda: work(args))


def _info(args: argparse.Namespace) -> int:
    found = info(Path(args.file))
    if args.format == "json":
        write_json(found)
    else:
        write("\n".join(info_lines(found)))
    return EXIT_OK


def _check(args: argparse.Namespace) -> int:
    requests, problems = check(Path(args.file))
    count, kinds = problems.count, problems.kinds
    if args.format == "json":
        found = {"entries": requests, "count": count, "messages": problems.messages, "sorts": dict(kinds)}
        write_json({"ok": not count} | found)
    else:
        sums = [f"{number} x {kind}" for kind, number in sorted(kinds.items())]
        write("\n".join([*problems.messages, "", *sums] if count else [f"{requests} requests, no problems"]))
    return PROBLEM_FOUND if count else EXIT_OK


def _convert(args: argparse.Namespace) -> int:
    """Convert, and report the removed data; nothing is written if it cannot be done."""
    path, redaction = Path(args.file), None  # without options the recorded redaction stays
    if args.allow_header or args.keep_query or args.mask_path:
        options = "--allow-header, --mask-path"
        redaction = args.problems.make(
            options, lambda: _redaction(args, args.allow_header, args.keep_query), None
        )
    args.problems.raise_if_any()
    if redaction is not None:
        headers, query = recorded_names(path)
        redaction = _redaction(args, args.allow_header or headers, args.keep_query or query)
    source = open_source(path, redaction)
    count = copy_to_recording(source, Path(args.out), args.bodies)
    write("\n".join([f"{count} requests written", *source.problem_lines()]))
    return EXIT_OK


def _redaction(args: argparse.Namespace, headers: Sequence[str], query: Sequence[str]) -> Redaction:
    """Build a redaction. Where an option is absent, a recording keeps all its fields."""
    return Redaction(allow_headers=headers, keep_query=query, mask_paths=args.mask_path)
