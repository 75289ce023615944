"""``record``: inspects a recording of traffic, checks it for secrets, or converts it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from autoglm_throttle.cli.lab import converting
from autoglm_throttle.cli.lab.faults import guarded
from autoglm_throttle.cli.output import FINE, PROBLEM_FOUND, write, write_json
from autoglm_throttle.traffic.record import Info, check, info

EXAMPLES: Final = """\
examples:
  autoglm-throttle record info traffic.jsonl.gz
  autoglm-throttle record check traffic.jsonl
  autoglm-throttle record convert traffic.jsonl t.json --to vegeta --base-url http://127.0.0.1:8000 --fill
  autoglm-throttle record convert browser.har traffic.jsonl --allow-header accept-language

Recordings are made by RecorderMiddleware, just outside ThrottleMiddleware, where RECORD_PATH is set.

exit status: 0 done, 1 the check found something, 2 it could not begin
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
        ("info", "count requests, clients, decisions and what was kept", _info),
        ("check", "look for what must not be in a recording: form, order, secrets", _check),
    ):
        own = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        own.add_argument("file", metavar="FILE", help="a recording")
        own.add_argument("--format", choices=("text", "json"), default="text", help="default: text")
        own.set_defaults(work=work)
    text = "turn a recording into a file of vegeta, GoReplay or HAR, or such a file into a recording"
    usage = "autoglm-throttle record convert FILE OUT [options]"
    own = commands.add_parser("convert", help=text, description=f"{text[0].upper()}{text[1:]}.", usage=usage)
    converting.add_arguments(own)
    own.set_defaults(work=converting.run)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand.

    Returns:
        0; 1 if the check found problems; 2 if the file cannot be read.
    """
    work: Callable[[argparse.Namespace], int] = args.work
    return guarded("record", lambda: work(args))


def _info(args: argparse.Namespace) -> int:
    found = info(Path(args.file))
    if args.format == "json":
        write_json(_document(found))
    else:
        write("\n".join(found.lines()))
    return FINE


def _document(found: Info) -> dict[str, Any]:
    heading, end = found.heading, found.end
    return {
        "start": heading.start,
        "library": heading.made_by,
        "sample": heading.sample,
        "redaction": dict(heading.redaction),
        "requests": found.entries,
        "first_s": found.first_s,
        "span_s": found.span_s,
        "rps": found.rps,
        "busiest": found.busiest,
        "clients": found.clients,
        "bodies_bytes": found.bodies_bytes,
        "priorities": dict(found.priorities),
        "decisions": dict(found.decisions),
        "statuses": {str(status): count for status, count in found.statuses.items()},
        "end": None if end is None else {"reason": end.reason, "dropped": end.dropped},
        "faults": {"count": found.faults.count, "told": list(found.faults)},
    }


def _check(args: argparse.Namespace) -> int:
    found = check(Path(args.file))
    if args.format == "json":
        told: dict[str, Any] = {"entries": found.entries, "count": found.count, "told": found.told}
        write_json({"ok": found.clean} | told | {"sorts": dict(found.sorts)})
    else:
        sums = [f"{count} x {what}" for what, count in sorted(found.sorts.items())]
        good = f"{found.entries} requests, nothing found"
        write("\n".join([good] if found.clean else [*found.told, "", *sums]))
    return FINE if found.clean else PROBLEM_FOUND
