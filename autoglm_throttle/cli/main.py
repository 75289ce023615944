"""The command table and the way from arguments to an exit status."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from autoglm_throttle.cli import check, doctor, gpus, identity, show, tiers
from autoglm_throttle.cli.command import Command, add_sources
from autoglm_throttle.cli.output import (
    PROBLEM_FOUND,
    as_json,
    reader_may_leave,
    remark,
    write,
    write_json,
)
from autoglm_throttle.model import ThrottleError
from autoglm_throttle.settings import ConfigError
from autoglm_throttle.version import __version__


def _later(name: str, text: str, module: str) -> Command:
    """Make a command with a module that is imported only on use."""

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        import_module(module).add_arguments(parser)

    def run(args: argparse.Namespace) -> int:
        return int(import_module(module).run(args))

    return Command(name, text, add_arguments, run)


COMMANDS: Final = (
    Command("check", "print every problem and warning of the settings", add_sources, check.run),
    Command("show", "print the settings in force and where each came from", show.add_arguments, show.run),
    Command("tiers", "print what each band of GPU utilization leaves of the rates", add_sources, tiers.run),
    Command(
        "identity",
        "read a key or an address from standard input, print the text that stands for it",
        identity.add_arguments,
        identity.run,
    ),
    Command("doctor", "ask the GPUs and the shared store whether they answer", add_sources, doctor.run),
    Command("gpus", "show what each GPU and each engine does", gpus.add_arguments, gpus.run),
    _later("demo", "run a simulated service under load, on loopback", "autoglm_throttle.traffic.demo"),
    _later("load", "send a load to a service and judge what became of it", "autoglm_throttle.cli.lab.load"),
    _later("replay", "send recorded traffic to a service", "autoglm_throttle.cli.lab.replay"),
    _later(
        "record", "look at a recording of traffic, check or convert it", "autoglm_throttle.cli.lab.record"
    ),
)

COMPARE: Final = _later("load", "put two reports side by side", "autoglm_throttle.cli.lab.compare")
"""Replaces ``load`` before the word ``compare``: it has options of its own."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments without the program's name; None takes those of the process.

    Returns:
        0 success, 1 a problem was found. Wrong usage exits with 2, as argparse does.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    args = _parser(arguments).parse_args(arguments)
    logging.getLogger("autoglm_throttle").addHandler(logging.NullHandler())
    with reader_may_leave() as reader:
        reader.status = _run(args.command, args)
    return reader.status


def _run(command: Command, args: argparse.Namespace) -> int:
    try:
        return command.run(args)
    except ConfigError as error:
        _report(error, as_document=getattr(args, "format", "text") == "json")
        return PROBLEM_FOUND
    except ThrottleError as error:
        sys.stderr.write(f"{command.name}: {error}\n")
        return PROBLEM_FOUND


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="autoglm-throttle", description="Look at and try out the limits of a GPU service."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    words = [word for word in arguments if not word.startswith("-")]
    asked = words[0] if words else None
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for row in COMMANDS:
        command = COMPARE if words[:2] == [row.name, "compare"] == ["load", "compare"] else row
        own = commands.add_parser(
            command.name, help=command.help, description=command.help.capitalize() + "."
        )
        own.set_defaults(command=command)
        if command.name == asked:
            command.add_arguments(own)
    return parser


def _report(error: ConfigError, *, as_document: bool) -> None:
    if as_document:
        write_json({"ok": False, "problems": as_json(error.problems), "warnings": []})
    else:
        for problem in error.problems:
            write(remark("problem", problem))
