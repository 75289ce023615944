"""Makes the pictures of docs/live-page.md from the page of a real run of the demonstration.

Run: ``python -m docs.draw_live_page``, about a minute; it needs Chromium. It writes ``live-page-light.png``
and ``live-page-dark.png``, taken while the load is five times the capacity.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.browser.chromium import Chromium

HERE = Path(__file__).parent
COMMAND: Final = ("-m", "examples.demo", "--policy", "tiers", "--seconds", "75")
MOMENT: Final = "5x"
STEPS_S: Final = 7.0
"""Seconds after the beginning of the phase: at least one step of the page."""


def url_of(lines: Iterable[str]) -> str:
    """Return the URL of the page from the output of the demonstration."""
    for line in lines:
        if found := re.fullmatch(r"  live page: (\S+)\n", line):
            return found[1]
    raise ValueError("the demonstration printed no URL of its page")


def wait_for(phase: str, lines: Iterable[str]) -> None:
    """Read the output until a phase is shown."""
    if not any(phase in line for line in lines):
        raise ValueError(f"the demonstration ended before the phase {phase}")


def main() -> None:
    """Run the demonstration and take the pictures."""
    with ExitStack() as opened:
        folder = opened.enter_context(tempfile.TemporaryDirectory())
        browser = opened.enter_context(Chromium(Path(folder)))
        command = [sys.executable, *COMMAND, "--report", f"{folder}/report.html"]
        demo = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own module
        opened.enter_context(demo)
        output = demo.stdout or ()
        url = url_of(output)
        wait_for(MOMENT, output)
        time.sleep(STEPS_S)
        for scheme in ("light", "dark"):
            browser.visit(url, scheme=scheme)
            time.sleep(1.0)
            browser.draw(HERE / f"live-page-{scheme}.png", whole=False)
        for _ in output:  # until its end: it stops its service
            pass


if __name__ == "__main__":
    main()
