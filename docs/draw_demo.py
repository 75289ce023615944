"""Runs the demonstration on a pseudo-terminal and stores its output.

Run: ``python -m docs.draw_demo``. It writes ``demo.svg``, one frame of the live view, and ``demo.txt``,
the table at the end, which ``python -m benchmarks.figures`` copies to docs/benchmarks.md.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from html import escape
from pathlib import Path

from benchmarks import harness

HERE = Path(__file__).parent
COMMAND = (sys.executable, "-m", "examples.demo")
TITLE = "Live view of the demonstration, at five times the capacity of the GPU"

Line = list[tuple[str, str]]
"""Runs of text, each with the number of its colour, empty for the usual one."""

_PART = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|(\n)|([^\x1b\n]+)")
_REJECTED = re.compile(r"^(?:high|mid|low) +\d+/s +\S+ +\d+/s +(\d+)/s +(\d+)/s", re.MULTILINE)
_FACTOR = re.compile(r"^factor +([\d.]+)", re.MULTILINE)
WIDE, HIGH = 8.4, 19
"""Pixels of a character and of a line at 14 px."""

STYLE = """
text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #1f2328; white-space: pre }
rect { fill: #f6f8fa; stroke: #d1d9e0 } .c32 { fill: #116329 } .c33 { fill: #7d4e00 } .c31 { fill: #a40e26 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } rect { fill: #0d1117; stroke: #3d444d }
  .c32 { fill: #56d364 } .c33 { fill: #e3b341 } .c31 { fill: #ff7b72 }
}
"""


def terminal_output(folder: str) -> str:
    """Run the demonstration and return its terminal output.

    Args:
        folder: for the report page.

    Raises:
        RuntimeError: the run found a problem.
    """
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 100, 0, 0))
    environment = {**os.environ, "TERM": "xterm"}
    environment["PYTHONPATH"] = str(HERE.parent)
    environment.pop("NO_COLOR", None)
    run = subprocess.Popen(COMMAND, stdin=its, stdout=its, env=environment, cwd=folder)  # noqa: S603 - our own module
    os.close(its)
    output = b"".join(_chunks(ours))
    os.close(ours)
    text = output.decode().replace("\r\n", "\n")
    if run.wait():
        raise RuntimeError(f"the demonstration ended with {run.returncode}:\n{text[-2000:]}")
    return text


def _chunks(terminal: int) -> Iterator[bytes]:
    try:
        while chunk := os.read(terminal, 65536):
            yield chunk
    except OSError as error:
        if error.errno != errno.EIO:  # Linux: the other end is closed
            raise


def screens(text: str) -> Iterator[list[Line]]:
    """Yield the screen before each redraw, and at the end."""
    lines: list[Line] = [[]]
    row, colour = 0, ""
    for code, letter, newline, words in _PART.findall(text):
        if newline:
            row += 1
            lines += [[]] * (row == len(lines))
        elif words:
            lines[row] = [*lines[row], (words, colour)]
        elif letter == "A":
            yield lines[:-1]
            row -= int(code)
        elif letter == "K":
            lines[row] = []
        elif letter == "m":
            colour = "" if code in {"", "0"} else code
    yield lines[:-1]


def plain(screen: list[Line]) -> str:
    """Return a screen without its colours."""
    return "\n".join("".join(words for words, _ in line) for line in screen).rstrip()


def most_rejections(all_screens: Iterator[list[Line]]) -> list[Line]:
    """Return the screen at five times the capacity with reduced rates and the most rejections of most kinds.

    Raises:
        ValueError: no screen of the phase shows reduced rates.
    """
    best, most = None, (0, 0)
    for screen in all_screens:
        text = plain(screen)
        factor = _FACTOR.search(text)
        if "phase 5x" in text and factor and 0.0 < float(factor[1]) < 1.0:
            rejected = [int(number) for numbers in _REJECTED.findall(text) for number in numbers]
            shown = sum(map(bool, rejected)), sum(rejected)
            if shown > most:
                best, most = screen, shown
    if best is None:
        raise ValueError("no screen of the phase 5x shows reduced rates")
    return best


def svg(screen: list[Line], title: str) -> str:
    """Draw a screen as SVG text, light or dark like the reader's system."""
    width = round(WIDE * max(sum(len(words) for words, _ in line) for line in screen)) + 40
    height = HIGH * len(screen) + 30
    rows = "".join(_text(line, 30 + HIGH * number) for number, line in enumerate(screen) if line)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n"
        f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6"/>\n{rows}</svg>\n'
    )


def _text(line: Line, y: int) -> str:
    """Draw a line, stretched to its width so that any font keeps the columns."""
    spans = "".join(
        f'<tspan class="c{colour}">{escape(words)}</tspan>' if colour else escape(words)
        for words, colour in line
    )
    width = WIDE * sum(len(words) for words, _ in line)
    return f'<text x="20" y="{y}" textLength="{width:.1f}" xml:space="preserve">{spans}</text>\n'


def main() -> None:
    """Run the demonstration; write the picture and the table."""
    with tempfile.TemporaryDirectory() as folder:
        text = terminal_output(folder)
    screen = most_rejections(screens(text))
    (HERE / "demo.svg").write_text(svg(screen, TITLE), encoding="utf-8")
    table = text[text.index("\nphase ") :]
    (HERE / "demo.txt").write_text(f"{harness.line(harness.machine())}\n{table}", encoding="utf-8")


if __name__ == "__main__":
    main()
