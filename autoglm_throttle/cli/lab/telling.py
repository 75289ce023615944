"""Output of a finished run: to standard output and to files."""

from __future__ import annotations

from collections.abc import Sequence

from autoglm_throttle.cli.lab.about import about
from autoglm_throttle.cli.lab.faults import USAGE
from autoglm_throttle.cli.lab.judging import Judging
from autoglm_throttle.cli.lab.sending import Sending
from autoglm_throttle.cli.output import aside, reader_may_leave, write
from autoglm_throttle.traffic.report import Document, Facts, dumps, lines
from autoglm_throttle.traffic.report.page import render


def facts(judging: Judging, sending: Sending, shape: str, command: str, loop: str) -> Facts:
    """Return the part of a report that is known beside the run itself."""
    return Facts(
        title=judging.title or f"{sending.target.address}, {shape}",
        shape=shape,
        limits_s=judging.limits_s,
        objectives=judging.objectives,
        about=about(command, loop),
    )


def tell(report: Document, judging: Judging, more: Sequence[str] = ()) -> int:
    """Write a report to its files, then print it; a reader of the output may close it early.

    Args:
        report: of the run.
        judging: its destinations.
        more: lines that follow it as text.

    Returns:
        The exit status.
    """
    status = report["verdict"]["status"]
    text = dumps(report)
    for path, content in ((judging.json, text), (judging.html, render(report) if judging.html else "")):
        if path is not None:
            try:
                path.write_text(content, "utf-8")
                if not judging.quiet:
                    aside(f"{path} is written\n")
            except OSError as error:
                aside(f"{path} cannot be written: {error.strerror}\n")
                status = USAGE
    # Files first: a closed pipe must not lose them.
    with reader_may_leave():
        write(text if judging.as_json else "\n".join([*lines(report), *more]))
    return status
