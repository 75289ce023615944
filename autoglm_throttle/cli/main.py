"""The command table and the way from arguments to an exit status."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from autoglm_throttle._runtime import how_to_install
from autoglm_throttle.cli import output
from autoglm_throttle.cli.output import write
from autoglm_throttle.settings import ConfigError
from autoglm_throttle.types import ThrottleError
from autoglm_throttle.version import __version__

# Command -> its description. Its module here has the same name, ``add_arguments`` and ``run``.
COMMANDS: Final = {
    "check": "print every problem and warning of the settings",
    "show": "print the settings in force and where each came from",
    "tiers": "print the rates that apply in each band of GPU utilization",
    "identity": "read a key or an address from standard input, print its hashed identity",
    "doctor": "check that the GPUs and the shared store respond",
    "gpus": "show the state of each GPU and inference engine",
    "page": "print the live page of a running service",
    "agent": "read the GPUs of this host for its fleet, and serve their metrics; no app",
    "gateway": "put the limits in front of servers that take no middleware: a reverse proxy",
    "dashboards": "write the alert rules for Prometheus and the dashboard for Grafana",
    "nginx": "print the configuration of nginx as a second tier in front of the service",
    "ports": "write the metrics ports of all workers as targets for Prometheus",
    "demo": "run a simulated service under load, on loopback",
    "load": "send load to a service and report the results",
    "replay": "send recorded traffic to a service",
    "record": "inspect, check or convert a recording of traffic",
}


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
    args.status = output.EXIT_OK  # if the reader of the output closes it early
    with output.broken_pipe_ok():
        args.status = _run(args)
    return int(args.status)


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
    return output.WRONG_USAGE


def _run(args: argparse.Namespace) -> int:
    try:
        return int(import_module(f"autoglm_throttle.cli.{args.module}").run(args))
    except ConfigError as error:
        if getattr(args, "format", "text") == "json":
            problems = output.as_json(error.problems)
            output.write_json({"ok": False, "problems": problems, "warnings": []})
        else:
            write("\n".join(output.note_line("problem", problem) for problem in error.problems))
    except ThrottleError as error:
        sys.stderr.write(f"{args.module}: {error}\n")
    return output.PROBLEM_FOUND


class _ExactParser(argparse.ArgumentParser):
    """A parser without abbreviated options: a new option must not change the meaning of an old command."""

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
    text = "Inspect and test the limits of a GPU service."
    parser = _ExactParser(prog="autoglm-throttle", description=text)
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument(
        "--print-completion",
        action=_PrintCompletion,
        choices=("bash", "zsh", "tcsh"),
        help="print a completion script for this shell",
    )
    requested = next((word for word in arguments if not word.startswith("-")), None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, text in COMMANDS.items():
        own = commands.add_parser(name, help=text, description=f"{text.capitalize()}.")
        own.set_defaults(module=name)
        if name != "demo" and (of_all or name == requested):
            import_module(f"autoglm_throttle.cli.{name}").add_arguments(own)
    return parser
