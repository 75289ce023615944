"""``identity``: prints the hashed identity of a caller, for the member list of a plan."""

from __future__ import annotations

import argparse
import sys

from autoglm_throttle.cli.output import EXIT_OK, add_sources, load, write, write_json
from autoglm_throttle.settings import PREFIX, ConfigError, Problem
from autoglm_throttle.types.identity import CallerHasher, ProxyChain

KINDS = ("address", "key", "user")  # An address, a header's value, or a callable's result
_KIND_OF = {"address": "address", "bearer": "key", "header": "key"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the kind to the shared options."""
    add_sources(parser)
    parser.add_argument("--kind", choices=KINDS, help="kind of the value; default: taken from IDENTITY")


def run(args: argparse.Namespace) -> int:
    """Print 16 hex digits for the value on standard input, which is never printed itself."""
    settings = load(args)
    key = settings.identity_key
    if key is None:
        message = "is not set: each process would compute a different identity"
        raise ConfigError([Problem(f"{PREFIX}KEY_SECRET", message, "set the secret of the service")])
    value = sys.stdin.read().rstrip("\r\n")
    if not value:
        hint = "printf %s VALUE | autoglm-throttle identity"
        raise ConfigError([Problem("standard input", "is empty", hint)])
    kind = args.kind or _KIND_OF.get(settings.callers.identity.partition(":")[0], "user")
    if kind == "address":
        value = ProxyChain(settings.callers.trusted_proxies, settings.callers.ipv6_prefix).group(value)
    text = CallerHasher(key).hash(kind, value)
    if args.format == "json":
        write_json({"kind": kind, "identity": text})
    else:
        write(text)
    return EXIT_OK
