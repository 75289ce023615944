"""The browser of the tests ends with its block; without a browser the tests are skipped with the reason."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.browser import chromium
from tests.browser.chromium import Chromium
from tests.project.report import REASONS

pytestmark = pytest.mark.slow


def test_missing_browser_skips_with_an_allowed_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(chromium, "APPLICATIONS", (str(tmp_path / "nothing"),))
    with pytest.raises(pytest.skip.Exception, match="no browser here") as skipped, Chromium(tmp_path):
        pass
    assert any(reason in str(skipped.value) for reason in REASONS)


def test_error_of_a_program_that_is_no_browser_shows_its_output(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "chromium"
    program.write_text("#!/bin/sh\necho no display today >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(RuntimeError, match=r"did not start:\nno display today"), Chromium(tmp_path):
        pass


@pytest.mark.server
def test_nothing_of_the_browser_outlives_its_block(tmp_path: Path) -> None:
    with Chromium(tmp_path) as browser:
        assert browser.value("1 + 1") == 2
        group = browser.group
        os.killpg(group, 0)
    with pytest.raises((ProcessLookupError, PermissionError)):
        os.killpg(group, signal.SIGKILL)
