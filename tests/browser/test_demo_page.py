"""The page of a real demonstration in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.demo.command import main
from tests.browser import visible_text
from tests.browser.chromium import Chromium

pytestmark = [pytest.mark.server, pytest.mark.slow]


def test_demo_page_opens_without_console_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "demo.html"
    with Chromium(tmp_path) as browser:
        assert main(["--seconds", "4", "--report", str(path)]) == 0
        assert f"Report page: {path}" in capsys.readouterr().out.splitlines()
        browser.open(path)
        assert visible_text.faults(browser, path.as_uri()) == []
        drawn = browser.accessible("image")
    watched = next(name for name in drawn if name.startswith("Throttle and GPU. "))
    assert "Factor on the rates" in watched
    assert "GPU utilization" in watched
