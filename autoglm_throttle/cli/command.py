"""What a command is, and the options that those reading settings share."""

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
    """Called only when the command is the one asked for, so it may import what the command needs."""
    run: Callable[[argparse.Namespace], int]
    """Gives the exit status."""


def add_sources(parser: argparse.ArgumentParser) -> None:
    """Add where settings come from and in which form to answer."""
    parser.add_argument("--env-file", metavar="FILE", help="a .env file to read below the environment")
    parser.add_argument("--config-file", metavar="FILE", help="the TOML file, instead of CONFIG_FILE")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")


def load(args: argparse.Namespace) -> Settings:
    """Read the settings the user asked for.

    Raises:
        ConfigError: with every fault.
    """
    overrides = {} if args.config_file is None else {"config_file": args.config_file}
    return Settings.from_env(env_file=args.env_file, **overrides)
