"""Output of a finished run: to standard output and to files."""

from __future__ import annotations

from collections.abc import Sequence

from autoglm_throttle.cli.load_tests.problems import USAGE
from autoglm_throttle.cli.load_tests.report_options import ReportOptions
from autoglm_throttle.cli.load_tests.run_environment import environment_info
from autoglm_throttle.cli.load_tests.send_options import SendOptions
from autoglm_throttle.cli.output import broken_pipe_ok, to_stderr, write
from autoglm_throttle.traffic.report import Document, RunInfo, dumps, lines
from autoglm_throttle.traffic.report.page import render


def run_info(
    report_options: ReportOptions, send_options: SendOptions, shape: str, command: str, loop: str
) -> RunInfo:
    """Return the part of a report that is known beside the run itself."""
    return RunInfo(
        title=report_options.title or f"{send_options.target.address}, {shape}",
        shape=shape,
        limits_s=report_options.limits_s,
        objectives=report_options.objectives,
        about=environment_info(command, loop),
    )


def write_report(report: Document, report_options: ReportOptions, more: Sequence[str] = ()) -> int:
    """Write a report to its files, then print it; a reader of the output may close it early.

    Args:
        report: of the run.
        report_options: its destinations.
        more: lines that follow it as text.

    Returns:
        The exit status.
    """
    status = report["verdict"]["status"]
    text = dumps(report)
    for path, content in (
        (report_options.json, text),
        (report_options.html, render(report) if report_options.html else ""),
    ):
        if path is not None:
            try:
                path.write_text(content, "utf-8")
                if not report_options.quiet:
                    to_stderr(f"{path} is written\n")
            except OSError as error:
                to_stderr(f"{path} cannot be written: {error.strerror}\n")
                status = USAGE
    # Files first: a closed pipe must not lose them.
    with broken_pipe_ok():
        write(text if report_options.as_json else "\n".join([*lines(report), *more]))
    return status
