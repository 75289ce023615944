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
from autoglm_throttle.cli.gpu_reader import GpuReader, GpuReading
from autoglm_throttle.cli.gpu_table import as_document, as_text
from autoglm_throttle.cli.output import EXIT_OK, PROBLEM_FOUND, broken_pipe_ok, write, write_json
from autoglm_throttle.settings import ConfigError, Problem, Settings, settings_table

MIN_INTERVAL_S: Final = 0.2
"""Shortest interval. Drivers average over as much, so faster reads show the same values."""

_FAILED_STATES: Final = frozenset({"failing", "hanging", "crashed", "misconfigured"})
_CLEAR_SCREEN: Final = "\x1b[H\x1b[2J"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_sources(parser)
    parser.epilog = (
        "Exit status: 0 success, 1 a source fails, a device is lost or the settings have problems (with "
        "GPU_REQUIRED also if no GPU is found), 2 wrong usage."
    )
    parser.add_argument(
        "--watch",
        metavar="S",
        type=_seconds,
        help="repeat every S seconds until interrupted; with JSON, one line each time",
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
        reader = GpuReader(settings)
    except ValueError as error:
        raise ConfigError([Problem(settings_table()["gpu"].variable, str(error))]) from None
    if not reader.has_sources and args.format == "text":
        write("GPU=none: no GPU is read")
        return EXIT_OK
    with reader:
        with contextlib.suppress(KeyboardInterrupt), broken_pipe_ok():
            reader.wait_until_ready()
            if args.watch is not None:
                _repeat(reader, args.watch, as_lines=args.format == "json")
            elif args.format == "json":
                write_json(as_document(reader.snapshot()))
            else:
                write(as_text(reader.snapshot()))
        return EXIT_OK if _is_healthy(reader.snapshot(), settings) else PROBLEM_FOUND


def _repeat(reader: GpuReader, every_s: float, *, as_lines: bool) -> None:
    pause = Event()
    while True:
        reading, now = reader.snapshot(), datetime.now(UTC)
        if as_lines:
            write(json.dumps({"time": now.isoformat(timespec="milliseconds"), **as_document(reading)}))
        else:
            top = _CLEAR_SCREEN if sys.stdout.isatty() else ""
            write(f"{top}{now.astimezone():%H:%M:%S}\n{as_text(reading)}\n")
        sys.stdout.flush()
        pause.wait(every_s)


def _is_healthy(reading: GpuReading, settings: Settings) -> bool:
    bad = _FAILED_STATES | ({"no_source"} if settings.gpu.gpu_required else frozenset())
    devices = () if reading.view is None else reading.view.devices
    return not any(one.state in bad for one in reading.sources) and all(
        row.health != "lost" for row in devices
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not MIN_INTERVAL_S <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration of {MIN_INTERVAL_S:g} s or more")
    return seconds
