"""``check``: prints every problem at once, then valid settings that look like a mistake."""

from __future__ import annotations

import argparse

from autoglm_throttle.cli.output import (
    EXIT_OK,
    PROBLEM_FOUND,
    add_sources,
    as_json,
    load,
    note_line,
    write,
    write_json,
)
from autoglm_throttle.gpu.select import providers
from autoglm_throttle.settings import ConfigError, Problem, Settings, settings_table
from autoglm_throttle.settings.advice import collect_advice


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the shared options and that for warnings."""
    add_sources(parser)
    parser.add_argument("--strict", action="store_true", help="end with status 1 if there are warnings, too")


def run(args: argparse.Namespace) -> int:
    """Print warnings; problems end in the ``ConfigError`` that the caller prints."""
    settings = load(args)
    _check_sources(settings)
    warnings = collect_advice(settings)
    status = PROBLEM_FOUND if args.strict and warnings else EXIT_OK
    if args.format == "json":
        write_json({"ok": status == EXIT_OK, "problems": [], "warnings": as_json(warnings)})
        return status
    for warning in warnings:
        write(note_line("warning", warning))
    write(f"no problem, {len(warnings)} warning{'' if len(warnings) == 1 else 's'}")
    return status


def _check_sources(settings: Settings) -> None:
    """Create the sources without reading them: a start fails if one lacks its package."""
    try:
        providers(settings.gpu)
    except ValueError as error:
        raise ConfigError([Problem(settings_table()["gpu"].variable, str(error))]) from None
