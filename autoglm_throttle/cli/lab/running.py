"""One run: sending, looking at the service meanwhile, showing how it goes."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from autoglm_throttle.cli.lab.holding import Held
from autoglm_throttle.cli.lab.sending import Sending
from autoglm_throttle.cli.output import aside
from autoglm_throttle.traffic.generator import Observer, Roster, launch
from autoglm_throttle.traffic.load import Load
from autoglm_throttle.traffic.report import Progress
from autoglm_throttle.traffic.result import Result
from autoglm_throttle.traffic.watch import Look, Watch


class Display:
    """Writes how a run goes to standard error.

    Args:
        what: that is sent.
        quiet: write nothing.
    """

    def __init__(self, what: Load | Roster, *, quiet: bool) -> None:
        planned, duration_s = (0, what.ends_s[-1]) if isinstance(what, Roster) else _extent(what)
        self._progress = Progress(
            planned,
            duration_s,
            terminal=sys.stderr.isatty(),
            width=shutil.get_terminal_size().columns,
        )
        self._quiet = quiet
        self.observer: Observer | None = None if quiet else self._progress.note
        """Of the endings."""
        self.start_s: float | None = None
        """Of the run, monotonic; None: not known yet."""

    def beat(self, elapsed_s: float, launched: int, in_flight: int) -> None:
        """About a second has passed."""
        if self.start_s is None:
            self.start_s = time.monotonic() - elapsed_s
        if not self._quiet:
            aside(self._progress.line(elapsed_s, launched, in_flight))

    def end(self) -> None:
        """The run is over."""
        if not self._quiet:
            aside(self._progress.close())


def _extent(load: Load) -> tuple[int, float]:
    return len(load.plan), load.plan.duration_s


def carry_out(
    what: Load | Roster, sending: Sending, looks: Sequence[Look], *, quiet: bool, held: Held
) -> Result:
    """Send it and wait for the end.

    What could not be seen of the service is told on standard error.

    Args:
        what: is sent.
        sending: where to and how.
        looks: what is looked at meanwhile.
        quiet: show no progress.
        held: what was asked for before the start.

    Raises:
        TrafficError: nothing could be sent.
        KeyboardInterrupt: stopped before the first request was due.
    """
    display = Display(what, quiet=quiet)

    def beat(elapsed_s: float, launched: int, in_flight: int) -> None:
        held.pass_on()
        display.beat(elapsed_s, launched, in_flight)

    with Watch(looks) as watch:
        try:
            result = launch(
                what,
                sending.target,
                sending.options,
                processes=sending.processes,
                observer=display.observer,
                beat=beat,
            )
        finally:
            display.end()
        elapsed_s = result.effort.elapsed_s
        start_s = time.monotonic() - elapsed_s if display.start_s is None else display.start_s
    for fault in watch.faults:
        aside(f"not watched: {fault}\n")
    effort = result.effort
    if sending.options.spin:  # a whole core, as asked for: it says nothing of being too slow
        effort = replace(effort, cpu_share=None)
    return replace(result, effort=effort, watched=watch.seen(start_s, start_s + elapsed_s))
