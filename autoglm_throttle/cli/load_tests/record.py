"""``record``: inspects a recording of traffic, checks its format, or converts to one."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from autoglm_throttle.cli.command import add_format
from autoglm_throttle.cli.load_tests import conversion
from autoglm_throttle.cli.load_tests.problems import run_command
from autoglm_throttle.cli.output import EXIT_OK, PROBLEM_FOUND, write, write_json
from autoglm_throttle.traffic.record import Info, check, info

EXAMPLES: Final = """\
examples:
  autoglm-throttle record info traffic.jsonl.gz
  autoglm-throttle record check traffic.jsonl
  autoglm-throttle record convert requests.gor traffic.jsonl --allow-header accept-language
  autoglm-throttle record convert traffic.jsonl shared.jsonl --mask-path '/users/{id}'

Recordings are made by RecorderMiddleware, just outside ThrottleMiddleware, where RECORD_PATH is set.

exit status: 0 success, 1 the check found problems, 2 the command could not start
"""


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
        (
            "check",
            "check the format and the order of a recording, and that no field is forbidden",
            _check,
        ),
    ):
        own = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        own.add_argument("file", metavar="FILE", help="a recording")
        add_format(own)
        own.set_defaults(work=work)
    text = "turn a file of GoReplay into a recording, or remove data from a recording"
    usage = "autoglm-throttle record convert FILE OUT [options]"
    own = commands.add_parser("convert", help=text, description=f"{text[0].upper()}{text[1:]}.", usage=usage)
    conversion.add_arguments(own)
    own.set_defaults(work=conversion.run)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand.

    Returns:
        0; 1 if the check found problems; 2 if the file cannot be read.
    """
    work: Callable[[argparse.Namespace], int] = args.work
    return run_command("record", lambda: work(args))


def _info(args: argparse.Namespace) -> int:
    summary = info(Path(args.file))
    if args.format == "json":
        write_json(_document(summary))
    else:
        write("\n".join(summary.lines()))
    return EXIT_OK


def _document(summary: Info) -> dict[str, Any]:
    heading, end = summary.header, summary.end
    return {
        "start": heading.start,
        "library": heading.made_by,
        "sample": heading.sample,
        "redaction": dict(heading.redaction),
        "requests": summary.entries,
        "first_s": summary.first_s,
        "span_s": summary.span_s,
        "rps": summary.rps,
        "busiest": summary.busiest,
        "clients": summary.clients,
        "bodies_bytes": summary.bodies_bytes,
        "priorities": dict(summary.priorities),
        "decisions": dict(summary.decisions),
        "statuses": {str(status): count for status, count in summary.statuses.items()},
        "end": None if end is None else {"reason": end.reason, "dropped": end.dropped},
        "faults": {"count": summary.problems.count, "messages": list(summary.problems)},
    }


def _check(args: argparse.Namespace) -> int:
    result = check(Path(args.file))
    if args.format == "json":
        document: dict[str, Any] = {
            "entries": result.entries,
            "count": result.count,
            "messages": result.messages,
        }
        write_json({"ok": result.clean} | document | {"sorts": dict(result.problem_kinds)})
    else:
        sums = [f"{count} x {what}" for what, count in sorted(result.problem_kinds.items())]
        good = f"{result.entries} requests, no problems"
        write("\n".join([good] if result.clean else [*result.messages, "", *sums]))
    return EXIT_OK if result.clean else PROBLEM_FOUND
