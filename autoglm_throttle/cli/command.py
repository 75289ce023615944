"""Commands, and the options shared by all that read settings."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from autoglm_throttle.settings import Settings


@dataclass(frozen=True)
class Command:
    """A row of the command table."""

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    """Called only for the requested command, so it may import the command's modules."""
    run: Callable[[argparse.Namespace], int]
    """Returns the exit status."""


def add_sources(parser: argparse.ArgumentParser) -> None:
    """Add the options for the sources of settings and for the output format."""
    parser.add_argument(
        "--env-file", metavar="FILE", help="a .env file, read with lower precedence than the environment"
    )
    parser.add_argument("--config-file", metavar="FILE", help="the TOML file, instead of CONFIG_FILE")
    add_format(parser)


def add_format(parser: argparse.ArgumentParser) -> None:
    """Add the option for the output format; all commands that print JSON spell it so."""
    parser.add_argument(
        "--format",
        choices=("text", "json"),
        default="text",
        metavar="text|json",
        help="output format (default: text)",
    )


def load(args: argparse.Namespace) -> Settings:
    """Read the settings selected by the options."""
    overrides = {} if args.config_file is None else {"config_file": args.config_file}
    return Settings.from_env(env_file=args.env_file, **overrides)
