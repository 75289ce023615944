"""The benchmark of the cost of observation: its record, and a short run."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from benchmarks import harness, observed
from benchmarks.callgrind import ROOT
from benchmarks.instructions import count
from benchmarks.instructions_driver import TRACED


def test_the_record_keeps_its_bars() -> None:
    kept: dict[str, Any] = json.loads((harness.RESULTS / "observed.json").read_text())
    bars = list(observed.bars(kept))
    assert len(bars) == 4
    assert [str(bar) for bar in bars if not bar.met] == []
    assert [bar.record() for bar in bars] == kept["bars"]


@pytest.mark.slow
def test_a_short_block_observes_and_serves() -> None:
    found = observed.everything(pairs=1, rate_rps=50, length_s=5.0)
    assert len(found["shares"]) == 1
    assert found["of_steps_and_scrapes"] > 0.0
    service = observed.Service(is_observed=True)
    service.block(50, 5.0)
    assert sum(service.throttle.snapshot().requests.values()) == 250


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed on this machine")
def test_instructions_of_a_traced_request_are_counted() -> None:
    assert count(ROOT, TRACED, ["refused"])["refused"] > 1000.0
