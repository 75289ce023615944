"""``gpus``: shows the state of each device and engine, once or repeatedly."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
from datetime import UTC, datetime
from threading import Event
from typing import Final

from autoglm_throttle.cli.command import add_sources, load
from autoglm_throttle.cli.gpu_table import as_document, as_text
from autoglm_throttle.cli.gpu_watch import GpuWatch, Seen
from autoglm_throttle.cli.output import FINE, PROBLEM_FOUND, reader_may_leave, write, write_json
from autoglm_throttle.settings import SETTINGS, ConfigError, Problem, Settings

LEAST_S: Final = 0.2
"""Shortest interval. Drivers average over as much, so faster reads show the same values."""

_BAD: Final = frozenset({"failing", "hanging", "crashed", "misconfigured"})
_FROM_THE_TOP: Final = "\x1b[H\x1b[2J"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_sources(parser)
    parser.epilog = (
        "Exit status: 0 all is well, 1 a source fails, a card is lost or the settings have problems (with "
        "GPU_REQUIRED also if no GPU is found), 2 wrong usage."
    )
    parser.add_argument(
        "--json", dest="format", action="store_const", const="json", help="the same as --format json"
    )
    parser.add_argument(
        "--watch",
        metavar="S",
        type=_seconds,
        help="show it again every S seconds, until interrupted; as JSON one line each time",
    )


def run(args: argparse.Namespace) -> int:
    """Read for two seconds, so that rates and verdicts exist, and show the reading.

    Returns:
        1 if a configured source does not work, or a device is lost.

    Raises:
        ConfigError: the settings have problems.
    """
    settings = load(args)
    try:
        watch = GpuWatch(settings)
    except ValueError as error:
        raise ConfigError([Problem(SETTINGS["gpu"].variable, str(error))]) from None
    if not watch.anything and args.format == "text":
        write("GPU=none: nothing is read")
        return FINE
    with watch:
        with contextlib.suppress(KeyboardInterrupt), reader_may_leave():
            watch.settle()
            if args.watch is not None:
                _repeat(watch, args.watch, as_lines=args.format == "json")
            elif args.format == "json":
                write_json(as_document(watch.seen()))
            else:
                write(as_text(watch.seen()))
        return FINE if _well(watch.seen(), settings) else PROBLEM_FOUND


def _repeat(watch: GpuWatch, every_s: float, *, as_lines: bool) -> None:
    pause = Event()
    while True:
        seen, now = watch.seen(), datetime.now(UTC)
        if as_lines:
            write(json.dumps({"time": now.isoformat(timespec="milliseconds"), **as_document(seen)}))
        else:
            top = _FROM_THE_TOP if sys.stdout.isatty() else ""
            write(f"{top}{now.astimezone():%H:%M:%S}\n{as_text(seen)}\n")
        sys.stdout.flush()
        pause.wait(every_s)


def _well(seen: Seen, settings: Settings) -> bool:
    bad = _BAD | ({"no_source"} if settings.gpu_required else frozenset())
    devices = () if seen.view is None else seen.view.devices
    return not any(one.state in bad for one in seen.sources) and all(row.health != "lost" for row in devices)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not LEAST_S <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no time of {LEAST_S:g} s or more")
    return seconds
