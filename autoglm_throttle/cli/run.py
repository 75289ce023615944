"""Runs one load: sends it with probes and a progress display, and writes its report."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from autoglm_throttle.cli.output import WRONG_USAGE, broken_pipe_ok, to_stderr, write
from autoglm_throttle.cli.run_options import RunOptions
from autoglm_throttle.traffic.generator import Observer, UserSchedule, launch
from autoglm_throttle.traffic.generator.launch import on_stop_signal
from autoglm_throttle.traffic.probes import MetricsProbe, Prober
from autoglm_throttle.traffic.report import Document, ProgressLine, RunInfo, dumps, lines
from autoglm_throttle.traffic.report.page import render
from autoglm_throttle.traffic.report.schema import About
from autoglm_throttle.traffic.request_source import RequestSource
from autoglm_throttle.traffic.results import Result
from autoglm_throttle.version import __version__


class SignalGuard:
    """Records a stop request that cannot be executed at once."""

    def __init__(self) -> None:
        self.stop_requested: bool = False  # Whether a stop was requested while nothing was being sent

    def request_stop(self) -> None:
        """Record the request."""
        self.stop_requested = True

    def deliver(self) -> None:
        """Deliver a deferred signal to the sender that runs by now."""
        if self.stop_requested:
            self.stop_requested = False
            signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def defer_signals() -> Iterator[SignalGuard]:
    """Defer Ctrl-C and SIGTERM. A run, which handles them itself, may begin and end meanwhile.

    Without this, a signal between the run's last response and the end of its report would lose the report.
    """
    signal_guard = SignalGuard()
    with on_stop_signal(signal_guard.request_stop):
        yield signal_guard


class Display:
    """Writes the progress of a run to standard error, unless it is quiet."""

    def __init__(self, load: RequestSource | UserSchedule, *, quiet: bool) -> None:
        planned, duration_s = 0, 0.0
        if isinstance(load, UserSchedule):
            duration_s = load.ends_s[-1]
        else:
            planned, duration_s = len(load.plan), load.plan.duration_s
        self._progress = ProgressLine(
            planned,
            duration_s,
            terminal=sys.stderr.isatty(),
            width=shutil.get_terminal_size().columns,
        )
        self._quiet = quiet
        # Receives the results of requests.
        self.observer: Observer | None = None if quiet else self._progress.record
        self.start_s: float | None = None  # Start of the run, monotonic; None: not known yet

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


def check_probes(options: RunOptions) -> None:
    """Sample once the probes that may be misconfigured, before anything is sent."""
    for probe in options.probes:
        if isinstance(probe, MetricsProbe):
            probe.check()


def run_load(load: RequestSource | UserSchedule, options: RunOptions, signal_guard: SignalGuard) -> Result:
    """Send the load and wait for the end. Errors of the probes are written to standard error."""
    display = Display(load, quiet=options.quiet)

    def beat(elapsed_s: float, launched: int, in_flight: int) -> None:
        signal_guard.deliver()
        display.beat(elapsed_s, launched, in_flight)

    with Prober(options.probes) as watch:
        try:
            result = launch(
                load,
                options.target,
                options.client,
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
    if options.client.spin:  # spinning uses a whole core: no sign of a slow generator
        effort = replace(effort, cpu_share=None)
    return replace(result, run_cost=effort, watched=watch.samples(start_s, start_s + elapsed_s))


def run_info(options: RunOptions, shape: str, loop: str) -> RunInfo:
    """Return what a report holds beside the run itself; ``loop`` is the event loop that sent."""
    return RunInfo(
        title=options.title or f"{options.target.address}, {shape}",
        shape=shape,
        limits_s=options.limits_s,
        objectives=options.objectives,
        about=_environment(options.command, loop),
    )


def _environment(command: str, loop: str) -> About:
    """Describe this machine and these versions; they are never compared."""
    return {
        "library": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": processor(),
        "cores": os.cpu_count() or 1,
        "loop": loop,
        "httptools": package_version("httptools"),
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def processor() -> str:
    """Return the processor's name, or its architecture if the name is unknown."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(  # noqa: S603 - fixed words
            command, capture_output=True, text=True, check=False, timeout=2.0
        )
        return done.stdout.strip() or platform.machine()
    return platform.machine()


def package_version(package: str) -> str:
    """Return the version of a package; empty if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def write_report(report: Document, options: RunOptions, more: Sequence[str] = ()) -> int:
    """Write a report to its files, then print it; a reader of the output may close it early."""
    status = report["verdict"]["status"]
    text = dumps(report)
    for path, content in ((options.json, text), (options.html, render(report) if options.html else "")):
        if path is not None:
            try:
                path.write_text(content, "utf-8")
                if not options.quiet:
                    to_stderr(f"{path} is written\n")
            except OSError as error:
                to_stderr(f"{path} cannot be written: {error.strerror}\n")
                status = WRONG_USAGE
    # Files first: a closed pipe must not lose them.
    with broken_pipe_ok():
        write(text if options.as_json else "\n".join([*lines(report), *more]))
    return status


def preview(options: RunOptions, clients: int) -> list[str]:
    """Return the lines of ``--dry-run`` on target, objectives and callers."""
    target = options.target
    terms = ", ".join(term.text for term in options.objectives.terms)
    return [
        f"nothing is sent; the target would be {target.scheme}://{target.address}{target.base}",
        f"objectives: {terms}" if terms else "no objectives: set them with --slo",
        clients_text(clients, options),
    ]


def clients_text(count: int, options: RunOptions) -> str:
    """Return the number of callers, and whether the service can distinguish them."""
    name = options.target.identity_header
    distinction = (
        f"distinguished by {name}"
        if name
        else "which the service cannot distinguish without --identity-header"
    )
    return "1 client" if count == 1 else f"{count} clients, {distinction}"
