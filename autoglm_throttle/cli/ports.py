"""``ports``: writes the metrics ports of all workers of a host as targets for Prometheus."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from autoglm_throttle.cli.output import EXIT_OK, PROBLEM_FOUND, to_stderr, write

FIRST_PORT: Final = 9100
LAST_PORT: Final = 65_535


def _whole(most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not (text.isascii() and text.isdigit() and 1 <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"must be a whole number from 1 to {most}, not {text!r}")
        return int(text)

    return number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("workers", metavar="N", type=_whole(1000), help="number of workers, 1 to 1000")
    parser.add_argument("--file-sd", metavar="FILE", type=Path, help="the file to write; else it is printed")
    parser.add_argument(
        "--first",
        metavar="PORT",
        type=_whole(LAST_PORT),
        default=FIRST_PORT,
        help="first port (default: 9100)",
    )
    parser.add_argument(
        "--address", default="127.0.0.1", help="address that Prometheus reaches (default: 127.0.0.1)"
    )
    parser.add_argument("--instance", help="label instance of all workers (default: the name of the host)")


def run(args: argparse.Namespace) -> int:
    """Write or print the targets."""
    from autoglm_throttle.observe.dashboards import targets_file

    if args.first + args.workers - 1 > LAST_PORT:
        to_stderr(f"ports: {args.workers} ports from {args.first} on end above {LAST_PORT}\n")
        return PROBLEM_FOUND
    ports = range(args.first, args.first + args.workers)
    text = targets_file(args.address, ports, args.instance or socket.gethostname())
    if args.file_sd is None:
        write(text.rstrip("\n"))
        return EXIT_OK
    try:
        args.file_sd.write_text(text, "utf-8")
    except OSError as error:
        to_stderr(f"ports: {args.file_sd} cannot be written: {error.strerror}\n")
        return PROBLEM_FOUND
    return EXIT_OK
