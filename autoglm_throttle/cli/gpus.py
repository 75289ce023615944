"""``gpus``: shows the state of each device and engine, once or repeatedly.

The service's own requests are unknown here. Verdicts that need them, above all a stall, appear only in
the service's metrics and log.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from threading import Event
from typing import Final

from autoglm_throttle.cli import output
from autoglm_throttle.cli.gpu_table import GpuReading, GpuSource, as_document, as_text
from autoglm_throttle.cli.output import EXIT_OK, PROBLEM_FOUND, add_sources, load, write
from autoglm_throttle.gpu.aggregate import Aggregator
from autoglm_throttle.gpu.monitor import stop_all
from autoglm_throttle.gpu.sampler import Sampler, SourceState
from autoglm_throttle.gpu.select import providers
from autoglm_throttle.gpu.verdict.tracker import VerdictTracker
from autoglm_throttle.settings import ConfigError, Problem, Settings, settings_table
from autoglm_throttle.types import GpuProvider, GpuSample, GpuView, ServiceStats

INTERVAL_S: Final = 0.7  # Seconds between two readings, or less if configured; a server is read once a second
# Time between the first and the last reading: rates and GPM need two, a verdict needs three that span 2 s.
MIN_SPAN_S: Final = 2.05
FIRST_READ_TIMEOUT_S: Final = 10.0  # Opening a driver can take seconds if nothing keeps it loaded
HANG_AFTER_S: Final = 3.0  # Duration after which a reading counts as hanging; a scrape is aborted after 2 s
MIN_INTERVAL_S: Final = 0.2  # Drivers average over as much, so faster reads show the same values
_STEP_S: Final = 0.02

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
    """Read for two seconds, so that rates and verdicts exist, and show the reading."""
    settings = load(args)
    with gpu_problems():
        reader = GpuReader(settings)
    if not reader.has_sources and args.format == "text":
        write("GPU=none: no GPU is read")
        return EXIT_OK
    with reader:
        with contextlib.suppress(KeyboardInterrupt), output.broken_pipe_ok():
            reader.wait_until_ready()
            if args.watch is not None:
                _repeat(reader, args.watch, as_lines=args.format == "json")
            elif args.format == "json":
                output.write_json(as_document(reader.snapshot()))
            else:
                write(as_text(reader.snapshot()))
        reading = reader.snapshot()
    bad = _FAILED_STATES | ({"no_source"} if settings.gpu.gpu_required else frozenset())
    devices = () if reading.view is None else reading.view.devices
    is_lost = any(row.health == "lost" for row in devices)
    is_failing = any(state in bad for _, state, _ in reading.sources)
    return PROBLEM_FOUND if is_lost or is_failing else EXIT_OK


@contextlib.contextmanager
def gpu_problems() -> Iterator[None]:
    """Report the error of a source that cannot be made as a problem of the setting ``GPU``."""
    try:
        yield
    except ValueError as error:
        raise ConfigError([Problem(settings_table()["gpu"].variable, str(error))]) from None


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


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not MIN_INTERVAL_S <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration of {MIN_INTERVAL_S:g} s or more")
    return seconds


class GpuReader:
    """Reads all configured sources, each on a thread of its own, until the context ends."""

    def __init__(self, settings: Settings) -> None:
        sources = providers(settings.gpu)
        self._aggregator = Aggregator(settings.gpu, [source.name for source in sources])
        self._verdict_tracker = VerdictTracker(settings.verdict, settings.gpu)
        self._lock = threading.Lock()
        self._view: GpuView | None = None
        self._first_s: dict[str, float] = {}
        self._started_s = time.monotonic()
        interval_s = min(INTERVAL_S, settings.gpu.sample_interval_s)
        self._samplers = {source.name: self._sampler(source, interval_s) for source in sources}
        self.has_sources: bool = bool(sources)

    def __enter__(self) -> GpuReader:
        """Start reading."""
        self._started_s = time.monotonic()
        for sampler in self._samplers.values():
            sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop reading; a thread in a hung read is left behind."""
        stop_all(self._samplers.values())

    def wait_until_ready(self) -> None:
        """Wait until each source has enough readings or an error."""
        until_s = self._started_s + FIRST_READ_TIMEOUT_S
        while (now := time.monotonic()) < until_s:
            with self._lock:
                if all(self._is_ready(name, sampler, now) for name, sampler in self._samplers.items()):
                    return
            time.sleep(_STEP_S)

    def snapshot(self) -> GpuReading:
        """Return the current reading."""
        now = time.monotonic()
        with self._lock:
            sources = tuple(self._source(name, sampler, now) for name, sampler in self._samplers.items())
            return GpuReading(now, self._view, sources)

    def _is_ready(self, name: str, sampler: Sampler, now: float) -> bool:
        status = sampler.status
        # The thread counts a failure before it keeps the text.
        is_failing = sampler.schedule.consecutive_failures > 0 and status.last_error is not None
        if is_failing or status.misconfigured or status.no_source or sampler.has_crashed:
            return True
        first_s, last_s = self._first_s.get(name), status.last_read_s
        if first_s is None or last_s is None:  # it hangs, or it responds without devices
            return status.reading_since_s is None and now - self._started_s >= MIN_SPAN_S
        return last_s - first_s >= MIN_SPAN_S

    def _source(self, name: str, sampler: Sampler, now: float) -> GpuSource:
        status, last_error = sampler.status, sampler.status.last_error or ""
        hung_s = 0.0 if status.reading_since_s is None else now - status.reading_since_s
        states: tuple[tuple[bool, SourceState, str], ...] = (
            (status.misconfigured is not None, "misconfigured", status.misconfigured or ""),
            (sampler.has_crashed, "crashed", last_error),
            (status.no_source is not None, "no_source", status.no_source or ""),
            (hung_s >= HANG_AFTER_S, "hanging", f"it has not answered for {hung_s:.0f} s"),
            (sampler.schedule.consecutive_failures > 0, "failing", last_error),
            (name not in self._first_s, "starting", "it reports no device"),
        )
        state, error = next(((state, error) for holds, state, error in states if holds), ("reading", ""))
        return (sampler.name, state, error)

    def _sampler(self, source: GpuProvider, interval_s: float) -> Sampler:
        name = source.name  # an automatic source changes its name after its choice

        def on_rows(rows: Sequence[GpuSample]) -> None:
            now = time.monotonic()
            with self._lock:
                self._first_s.setdefault(name, now)
                every_s = self._samplers[name].interval_s
                view = self._aggregator.update(rows, now, source=name, interval_s=every_s)
                self._view = self._verdict_tracker.update(view, ServiceStats(), now)

        return Sampler(source, on_rows, interval_s=interval_s)
