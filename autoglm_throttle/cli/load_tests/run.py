"""Runs one load with probes of the service and a progress display."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from autoglm_throttle.cli.load_tests.send_options import SendOptions
from autoglm_throttle.cli.load_tests.signal_guard import SignalGuard
from autoglm_throttle.cli.output import to_stderr
from autoglm_throttle.traffic.generator import Observer, UserSchedule, launch
from autoglm_throttle.traffic.probes import Probe, Prober
from autoglm_throttle.traffic.report import ProgressLine
from autoglm_throttle.traffic.request_source import RequestSource
from autoglm_throttle.traffic.result import Result


class Display:
    """Writes the progress of a run to standard error.

    Args:
        load: the load to send.
        quiet: write nothing.
    """

    def __init__(self, load: RequestSource | UserSchedule, *, quiet: bool) -> None:
        planned, duration_s = (0, load.ends_s[-1]) if isinstance(load, UserSchedule) else _extent(load)
        self._progress = ProgressLine(
            planned,
            duration_s,
            terminal=sys.stderr.isatty(),
            width=shutil.get_terminal_size().columns,
        )
        self._quiet = quiet
        self.observer: Observer | None = None if quiet else self._progress.record
        """Receives the results of requests."""
        self.start_s: float | None = None
        """Start of the run, monotonic; None: not known yet."""

    def beat(self, elapsed_s: float, launched: int, in_flight: int) -> None:
        """Update the progress; called about once per second."""
        if self.start_s is None:
            self.start_s = time.monotonic() - elapsed_s
        if not self._quiet:
            to_stderr(self._progress.line(elapsed_s, launched, in_flight))

    def end(self) -> None:
        """Finish the progress line."""
        if not self._quiet:
            to_stderr(self._progress.close())


def _extent(load: RequestSource) -> tuple[int, float]:
    return len(load.plan), load.plan.duration_s


def run_load(
    load: RequestSource | UserSchedule,
    send_options: SendOptions,
    probes: Sequence[Probe],
    *,
    quiet: bool,
    signal_guard: SignalGuard,
) -> Result:
    """Send the load and wait for the end.

    Errors of the probes are written to standard error.

    Args:
        load: the load to send.
        send_options: target and options.
        probes: sampled meanwhile.
        quiet: show no progress.
        signal_guard: holds a stop request from before the start.

    Raises:
        TrafficError: nothing could be sent.
        KeyboardInterrupt: stopped before the first request was due.
    """
    display = Display(load, quiet=quiet)

    def beat(elapsed_s: float, launched: int, in_flight: int) -> None:
        signal_guard.deliver()
        display.beat(elapsed_s, launched, in_flight)

    with Prober(probes) as watch:
        try:
            result = launch(
                load,
                send_options.target,
                send_options.options,
                observer=display.observer,
                on_progress=beat,
            )
        finally:
            display.end()
        elapsed_s = result.run_cost.elapsed_s
        start_s = time.monotonic() - elapsed_s if display.start_s is None else display.start_s
    for problem in watch.faults:
        to_stderr(f"not monitored: {problem}\n")
    effort = result.run_cost
    if send_options.options.spin:  # spinning uses a whole core: no sign of a slow generator
        effort = replace(effort, cpu_share=None)
    return replace(result, run_cost=effort, watched=watch.samples(start_s, start_s + elapsed_s))
