"""``agent``: reads the GPUs of this host, publishes them to its fleet, and serves their metrics; no app."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Callable
from importlib.util import find_spec
from typing import Final

from autoglm_throttle._runtime import how_to_install
from autoglm_throttle.cli.output import EXIT_OK, write
from autoglm_throttle.settings import Settings
from autoglm_throttle.types import ThrottleError

MOST_PORT: Final = 65_535

EXAMPLES: Final = """\
examples:
  autoglm-throttle agent
  AUTOGLM_THROTTLE_FLEET_GPU=true AUTOGLM_THROTTLE_REDIS_URL=redis://10.0.0.5:6379/0 autoglm-throttle agent

With FLEET_GPU the samples reach all hosts on the Redis. If the agent ends, they count as lost, never as idle.
exit status: 0 stopped, 1 a setting is wrong, or the port is taken
"""


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:6]) <= MOST_PORT):
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number from 0 to {MOST_PORT}")
    return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options; the sources of telemetry come from the environment, as in a service."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.add_argument("--host", default="127.0.0.1", help="address of /metrics (default: 127.0.0.1)")
    parser.add_argument("--port", type=_port, default=9405, help="its port; 0: any free one (default: 9405)")


def run(args: argparse.Namespace) -> int:
    """Sample until SIGTERM or Ctrl-C."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    # An agent admits no requests: it needs no connection for the limits of users.
    settings = Settings.from_env(user_limit="off", dry_run=False, fleet=False)
    serve(settings, args.host, args.port, stopped.wait)
    return EXIT_OK


def serve(settings: Settings, host: str, port: int, wait: Callable[[], object]) -> None:
    """Read the GPUs and serve ``/metrics`` until ``wait`` returns.

    Raises:
        ThrottleError: prometheus-client is not installed, or the address is taken.
    """
    if find_spec("prometheus_client") is None:
        raise ThrottleError(f"prometheus-client is not installed: {how_to_install('prometheus')}")
    from prometheus_client import CollectorRegistry, start_http_server

    from autoglm_throttle.observe import collector
    from autoglm_throttle.throttle import Throttle

    throttle, registry = Throttle(settings), CollectorRegistry()
    registry.register(collector(throttle))
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise ThrottleError(f"{host}:{port}: {error.strerror}") from error
    write(f"metrics of this host on http://{host}:{server.server_port}/metrics")
    sys.stdout.flush()  # a pipe, as that of a service manager, would get the line when the process ends
    throttle.start()
    try:
        wait()
    finally:
        throttle.stop()
        server.shutdown()
        server.server_close()
        thread.join()
