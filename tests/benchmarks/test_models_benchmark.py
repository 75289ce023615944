"""The benchmark of the latency model and the leak tests: its record, and a run with one seed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks import harness, models


def test_the_record_keeps_its_bars() -> None:
    kept: dict[str, Any] = json.loads((harness.RESULTS / "models.json").read_text())
    bars = list(models.bars(kept))
    assert [str(bar) for bar in bars if not bar.met] == []
    assert [bar.record() for bar in bars] == kept["bars"]


@pytest.mark.slow
def test_one_seed_gives_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "LEAK_CASES", {"steady load": {}})
    found = {
        "seeds": 1,
        "latency": models.latency_rows(1),
        "leaks": models.leak_rows(1),
        "step_us": models.step_us(),
    }
    assert len(list(models.bars(found))) == 11
    machine = harness.machine()
    assert models.latency_part(found | {"machine": machine}).count("\n| ") == 9
    assert "| steady load, 200 MB/min | 1 | 1 | " in models.leak_part(found | {"machine": machine})
