"""``check``: prints every problem at once, then valid settings that look like a mistake."""

from __future__ import annotations

import argparse
from pathlib import Path

from autoglm_throttle.admission.nginx_flags import folder_fault
from autoglm_throttle.cli import output
from autoglm_throttle.cli.gpus import gpu_problems
from autoglm_throttle.cli.output import EXIT_OK, PROBLEM_FOUND, add_sources, load, write
from autoglm_throttle.gpu.select import providers
from autoglm_throttle.settings import PREFIX, ConfigError, Problem, Settings
from autoglm_throttle.settings.advice import collect_advice


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the shared options and that for warnings."""
    add_sources(parser)
    parser.add_argument("--strict", action="store_true", help="end with status 1 if there are warnings, too")


def run(args: argparse.Namespace) -> int:
    """Print warnings; problems end in the ``ConfigError`` that the caller prints."""
    settings = load(args)
    with gpu_problems():
        providers(settings.gpu)  # made, not read: a start fails if one lacks its package
    _check_flags_dir(settings)
    warnings = collect_advice(settings)
    status = PROBLEM_FOUND if args.strict and warnings else EXIT_OK
    if args.format == "json":
        notes = output.as_json(warnings)
        output.write_json({"ok": status == EXIT_OK, "problems": [], "warnings": notes})
        return status
    for warning in warnings:
        write(output.note_line("warning", warning))
    write(f"no problem, {len(warnings)} warning{'' if len(warnings) == 1 else 's'}")
    return status


def _check_flags_dir(settings: Settings) -> None:
    folder = settings.control.nginx_flags_dir
    if folder is not None and (fault := folder_fault(Path(folder))):
        hint = "with systemd, RuntimeDirectory= makes it"
        raise ConfigError([Problem(f"{PREFIX}NGINX_FLAGS_DIR", fault, hint)])
