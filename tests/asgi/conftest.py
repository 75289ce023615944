"""Fixtures of all ASGI tests."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import pytest

from autoglm_throttle.admission import verdicts


@pytest.fixture(autouse=True)
def keen_ears(monkeypatch: pytest.MonkeyPatch) -> None:
    """Detect disconnects from the start of a wait: these tests let no time pass."""
    monkeypatch.setattr(verdicts, "DISCONNECT_WATCH_DELAY_S", 0.0)


@pytest.fixture
def quiet_loop(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing is complained about: asyncio logs a forgotten task or error when it is collected."""
    gc.freeze()  # what was there before is not looked at: a test takes a tenth of the time
    yield
    gc.collect()
    gc.unfreeze()
    said = [record for record in caplog.records if record.name == "asyncio"]
    assert not [record.message for record in said if record.levelno >= logging.WARNING]
