"""What is left of a run when its reader leaves, when it is stopped, or when its service is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from autoglm_throttle.cli.lab import running
from autoglm_throttle.traffic.ending import Ending
from autoglm_throttle.traffic.load import Load
from autoglm_throttle.traffic.result import Effort, Result
from autoglm_throttle.traffic.sheet import Sheet
from tests.cli.lab.conftest import finished, process

URL = "http://127.0.0.1:9"
SOON = ("load", URL, "--shape", "fixed:5:1s", "--quiet", "--json", "r.json", "--html", "r.html")

Launch = Callable[..., Result]


def answered(load: Load, *_: object, **__: object) -> Result:
    """Instead of sending: everything was answered within 2 ms."""
    sheet = Sheet(len(load.plan))
    for index in range(len(load.plan)):
        sheet.close(index, Ending.OK, 0.002)
        sheet.lag_s[index] = 0.0
        sheet.service_s[index] = sheet.first_byte_s[index] = 0.002
        sheet.statuses[index] = 200
    return Result(load, sheet, Effort(elapsed_s=load.plan.duration_s))


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> Callable[[Launch], None]:
    """Puts this in the place of the generator."""
    return lambda act: monkeypatch.setattr(running, "launch", act)


FAKED = """
from autoglm_throttle.cli.lab import running
from tests.cli.lab.test_lab_ends import answered
running.launch = answered
"""


@pytest.mark.parametrize("gone", ["stdout", "stderr"])
def test_a_reader_who_leaves_costs_no_file_and_no_verdict(gone: str, tmp_path: Path) -> None:
    """As with `load ... | head -0`; standard error may go the same way."""
    close = (
        f"import os\nread, write = os.pipe()\nos.dup2(write, {1 if gone == 'stdout' else 2})\nos.close(read)"
    )
    words = [word for word in SOON if word != "--quiet"]
    done = finished(
        process(*words, "--slo", "p99<1us", code=f"{close}\nos.close(write)\n{FAKED}", cwd=tmp_path)
    )
    assert done.status == 1
    assert json.loads((tmp_path / "r.json").read_text())["verdict"]["status"] == 1
    assert "<svg" in (tmp_path / "r.html").read_text()
    assert ("p99<1us" in done.out) is (gone == "stderr")
    assert "Traceback" not in done.err
