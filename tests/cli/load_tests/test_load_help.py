"""Help texts of the load-test commands, compared with golden files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autoglm_throttle.cli import main

GOLDEN = Path(__file__).parents[1] / "golden"


COMMANDS = ("load", "replay", "record", "record info", "record convert")


@pytest.mark.parametrize("words", COMMANDS)
def test_help_is_as_agreed(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """To agree to a change: UPDATE_GOLDEN=1 pytest tests/cli, then read the diff."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    with pytest.raises(SystemExit) as caught:
        main([*words.split(), "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    golden = GOLDEN / f"help_{words.replace(' ', '_')}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(out, "utf-8")
    assert out == golden.read_text("utf-8")
