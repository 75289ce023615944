"""``check``: prints every problem at once, then valid settings that look like a mistake; ``identity``."""

from __future__ import annotations

import argparse
import sys

from autoglm_throttle.cli.command import add_sources, load
from autoglm_throttle.cli.output import EXIT_OK, PROBLEM_FOUND, as_json, note_line, write, write_json
from autoglm_throttle.gpu.select import providers
from autoglm_throttle.settings import PREFIX, ConfigError, Problem, Settings, settings_table
from autoglm_throttle.settings.advice import collect_advice
from autoglm_throttle.types.identity import CallerHasher, ProxyChain

KINDS = ("address", "key", "user")
"""Kind of the value: an address, a header's value, or a callable's result."""

_KIND_OF = {"address": "address", "bearer": "key", "header": "key"}


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


def add_identity_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the kind to the shared options."""
    add_sources(parser)
    parser.add_argument("--kind", choices=KINDS, help="kind of the value; default: taken from IDENTITY")


def run_identity(args: argparse.Namespace) -> int:
    """Print 16 hex digits for the value on standard input, which is never printed itself."""
    settings = load(args)
    key = settings.identity_key
    if key is None:
        message = "is not set: each process would compute a different identity"
        raise ConfigError([Problem(f"{PREFIX}KEY_SECRET", message, "set the secret of the service")])
    value = sys.stdin.read().rstrip("\r\n")
    if not value:
        raise ConfigError(
            [Problem("standard input", "is empty", "printf %s VALUE | autoglm-throttle identity")]
        )
    kind = args.kind or _KIND_OF.get(settings.callers.identity.partition(":")[0], "user")
    text = CallerHasher(key).hash(kind, _counted(settings, kind, value))
    if args.format == "json":
        write_json({"kind": kind, "identity": text})
    else:
        write(text)
    return EXIT_OK


def _counted(settings: Settings, kind: str, value: str) -> str:
    if kind != "address":
        return value
    return ProxyChain(settings.callers.trusted_proxies, settings.callers.ipv6_prefix).group(value)
