"""The benchmark of the micro-batcher: its record, and one simulated load."""

from __future__ import annotations

import json
from typing import Any

from benchmarks import batcher, harness


def test_the_record_keeps_its_bars() -> None:
    kept: dict[str, Any] = json.loads((harness.RESULTS / "batcher.json").read_text())
    bars = list(batcher.bars(kept))
    assert [str(bar) for bar in bars if not bar.met] == []
    assert [bar.record() for bar in bars] == kept["bars"]
    assert len(bars) == 2 * len(batcher.ENGINES) * len(batcher.SHAPES) + 1


def test_adaptive_size_is_near_the_best_fixed_one() -> None:
    results = [batcher.simulate(batcher.ENGINES["tight"], "step", 0, size) for size in (None, 1, 28)]
    adaptive, single, best = (one["goodput_per_s"] for one in results)
    assert adaptive >= batcher.GOODPUT * best
    assert single < 0.2 * best
