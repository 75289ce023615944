"""``gateway``: serves a reverse proxy with the limits of the environment in front of other servers."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from importlib.util import find_spec
from typing import Final

from autoglm_throttle._runtime import how_to_install
from autoglm_throttle.cli.options import Option, add_options, run_command
from autoglm_throttle.cli.output import EXIT_OK
from autoglm_throttle.settings import ConfigError, Settings
from autoglm_throttle.traffic.errors import TrafficError

NEEDED: Final = ("httpx", "uvicorn")  # Packages of the extra

# Longer than the 60 s for which nginx keeps an idle connection: with a shorter time it would send requests on
# connections that are being closed here.
KEEP_ALIVE_S: Final = 75

EXAMPLES: Final = """\
examples:
  autoglm-throttle gateway --upstream http://127.0.0.1:8000
  AUTOGLM_THROTTLE_USER_LIMIT=60/minute autoglm-throttle gateway --host 0.0.0.0 --port 9000 \\
      --upstream http://10.0.0.7:8000 --upstream http://10.0.0.8:8000

exit status: 0 stopped, 2 an option or a setting is wrong, 3 the start failed
"""


def _between(least: int, most: int, unit: str = "") -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and least <= int(text[:18]) <= most):
            raise TrafficError(f"{text!r} must be a whole number from {least} to {most}{unit}")
        return int(text)

    return parse


def _host(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise TrafficError(f"{text!r} must be an address or a name of this machine, such as 0.0.0.0")
    return text.strip()


OPTIONS: Final = (
    Option("--upstream", "URL", "server for the requests, http://HOST:PORT; may be repeated", many=True),
    Option("--host", "ADDRESS", "address to listen on", _host, "127.0.0.1"),
    Option("--port", "PORT", "port to listen on, 1 to 65535", _between(1, 65_535), "9000"),
    # Below the 30 s that Kubernetes waits before it kills.
    Option(
        "--drain-s", "S", "time for streams to end after SIGTERM, 1 to 3600", _between(1, 3600, " s"), "25"
    ),
    Option("--env-file", "FILE", "a .env file, read with lower precedence than the environment"),
    Option("--config-file", "FILE", "the TOML file, instead of CONFIG_FILE"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options; the limits come from the environment, as in a service."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    add_options(parser, {"options": OPTIONS})


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    return run_command("gateway", lambda: _serve(args))


def _serve(args: argparse.Namespace) -> int:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise TrafficError(f"{' and '.join(missing)} must be installed: {how_to_install('gateway')}")
    import uvicorn

    from autoglm_throttle.gateway import Gateway
    from autoglm_throttle.resilience.httpx import parse_origins
    from autoglm_throttle.throttle import Throttle

    overrides = {} if args.config_file is None else {"config_file": args.config_file}
    settings = Settings()
    try:
        parse_origins("--upstream", args.upstream)
    except ConfigError as error:
        for problem in error.problems:
            args.problems.add(problem.variable, problem.message)
    try:
        settings = Settings.from_env(env_file=args.env_file, **overrides)
    except ConfigError as error:
        for problem in error.problems:
            args.problems.add(problem.variable, f"{problem.message}. {problem.hint}".removesuffix(". "))
    args.problems.raise_if_any()
    # Breakers that open and sources that are lost are lines of this package's log.
    logging.basicConfig(level=logging.INFO, format="%(levelname)s:     %(message)s")
    uvicorn.run(
        Gateway(args.upstream, throttle=Throttle(settings)),
        host=args.host,
        port=args.port,
        access_log=False,
        date_header=False,  # that of the upstream is forwarded
        server_header=False,
        proxy_headers=False,  # TRUSTED_PROXIES decides who may state a client's address
        ws="none",
        lifespan="on",
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=args.drain_s,
    )
    return EXIT_OK
