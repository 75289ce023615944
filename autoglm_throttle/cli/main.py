"""The command table and the way from arguments to an exit status."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from autoglm_throttle._runtime import how_to_install
from autoglm_throttle.cli import check, doctor, gpus, show, tiers
from autoglm_throttle.cli.command import Command, add_sources
from autoglm_throttle.cli.output import (
    EXIT_OK,
    PROBLEM_FOUND,
    WRONG_USAGE,
    as_json,
    broken_pipe_ok,
    note_line,
    write,
    write_json,
)
from autoglm_throttle.settings import ConfigError
from autoglm_throttle.types import ThrottleError
from autoglm_throttle.version import __version__


def _lazy_command(name: str, text: str, module: str) -> Command:
    """Make a command with a module that is imported only on use."""

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        import_module(module).add_arguments(parser)

    def run(args: argparse.Namespace) -> int:
        return int(import_module(module).run(args))

    return Command(name, text, add_arguments, run)


COMMANDS: Final = (
    Command("check", "print every problem and warning of the settings", check.add_arguments, check.run),
    Command("show", "print the settings in force and where each came from", show.add_arguments, show.run),
    Command("tiers", "print the rates that apply in each band of GPU utilization", add_sources, tiers.run),
    Command(
        "identity",
        "read a key or an address from standard input, print its hashed identity",
        check.add_identity_arguments,
        check.run_identity,
    ),
    Command("doctor", "check that the GPUs and the shared store respond", add_sources, doctor.run),
    Command("gpus", "show the state of each GPU and inference engine", gpus.add_arguments, gpus.run),
    Command("demo", "run a simulated service under load, on loopback", lambda _: None, lambda _: EXIT_OK),
    _lazy_command("load", "send load to a service and report the results", "autoglm_throttle.cli.load"),
    _lazy_command("replay", "send recorded traffic to a service", "autoglm_throttle.cli.replay"),
    _lazy_command(
        "record", "inspect, check or convert a recording of traffic", "autoglm_throttle.cli.record"
    ),
)

COMPARE: Final = replace(
    next(row for row in COMMANDS if row.name == "load"),
    help="put two reports side by side",
    add_arguments=lambda parser: import_module("autoglm_throttle.cli.load").add_compare_arguments(parser),
)
"""Replaces ``load`` before the word ``compare``: it has options of its own."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments without the program's name; None takes those of the process.

    Returns:
        0 success, 1 a problem was found. Wrong usage exits with 2, as argparse does.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["demo"]:
        return start_demo(arguments[1:])
    args = _parser(arguments).parse_args(arguments)
    logging.getLogger("autoglm_throttle").addHandler(logging.NullHandler())
    with broken_pipe_ok() as output:
        output.status = _run(args.command, args)
    return output.status


def start_demo(words: Sequence[str]) -> int:
    """Replace this process by ``python -m examples.demo``, which a clone of the repository holds.

    Returns:
        2 where there is no clone: neither the working directory nor the folder of this package is one.
    """
    for root in (Path.cwd(), Path(__file__).resolve().parents[2]):
        if (root / "examples" / "demo" / "__main__.py").is_file():
            sys.stdout.flush()
            path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
            command = [sys.executable, "-m", "examples.demo", *words]
            os.execve(sys.executable, command, os.environ | {"PYTHONPATH": path})  # noqa: S606 - no shell
    sys.stderr.write(
        "autoglm-throttle demo: the demonstration is examples/demo of the repository, which the package does "
        "not contain: clone the repository and run make demo there\n"
    )
    return WRONG_USAGE


def _run(command: Command, args: argparse.Namespace) -> int:
    try:
        return command.run(args)
    except ConfigError as error:
        _report(error, as_document=getattr(args, "format", "text") == "json")
        return PROBLEM_FOUND
    except ThrottleError as error:
        sys.stderr.write(f"{command.name}: {error}\n")
        return PROBLEM_FOUND


class _ExactParser(argparse.ArgumentParser):
    """A parser without abbreviated options: a new option must not change the meaning of an old command.

    Subparsers are of the same class.
    """

    def __init__(self, **arguments: Any) -> None:  # noqa: ANN401 - those of argparse
        super().__init__(**{"allow_abbrev": False, **arguments})


class _PrintCompletion(argparse.Action):
    """Print the completion script of a shell, written by shtab from the parser of all commands, and exit."""

    def __call__(self, parser: argparse.ArgumentParser, *values: object) -> None:
        try:
            import shtab
        except ImportError:
            parser.error(f"--print-completion: the package shtab is missing: {how_to_install('completion')}")
        write(shtab.complete(_parser((), of_all=True), shell=str(values[1])))
        parser.exit()


def _parser(arguments: Sequence[str], *, of_all: bool = False) -> argparse.ArgumentParser:
    """Make the parser; only the requested command has its arguments, unless those of all are wanted."""
    parser = _ExactParser(
        prog="autoglm-throttle", description="Inspect and test the limits of a GPU service."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument(
        "--print-completion",
        action=_PrintCompletion,
        choices=("bash", "zsh", "tcsh"),
        help="print a completion script for this shell",
    )
    positionals = [word for word in arguments if not word.startswith("-")]
    requested = positionals[0] if positionals else None
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for row in COMMANDS:
        command = COMPARE if positionals[:2] == [row.name, "compare"] == ["load", "compare"] else row
        own = commands.add_parser(
            command.name, help=command.help, description=command.help.capitalize() + "."
        )
        own.set_defaults(command=command)
        if of_all or command.name == requested:
            command.add_arguments(own)
    return parser


def _report(error: ConfigError, *, as_document: bool) -> None:
    if as_document:
        write_json({"ok": False, "problems": as_json(error.problems), "warnings": []})
    else:
        for problem in error.problems:
            write(note_line("problem", problem))
