"""The benchmark of the host's reading and of the agent: its record, and a short run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks import agent, harness
from tests.fake_nvml.build import COMPILER


def test_the_record_keeps_its_bars() -> None:
    kept: dict[str, Any] = json.loads((harness.RESULTS / "agent.json").read_text())
    bars = list(agent.bars(kept))
    assert len(bars) == 11
    assert [str(bar) for bar in bars if not bar.met] == []
    assert [bar.record() for bar in bars] == kept["bars"]


def test_a_reading_takes_time() -> None:
    found = agent.reading(rounds=40, pause_s=0.0)
    assert 0.0 < found["least_ms"] <= found["paused_ms"]


def test_a_load_moves_the_figure_of_its_resource() -> None:
    found = agent.loads(0.3)
    assert all(row["done"] > 0.0 for row in found.values())
    assert len(list(agent.bars({"loads": found}))) == 7
    found["disk"]["disk"] = 0.0
    (bar,) = (bar for bar in agent.bars({"loads": found}) if bar.text == "load of disk: shown over done")
    assert not bar.met


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="no C compiler (cc) to build the fake NVIDIA library with")
def test_the_agent_takes_time_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "WARM_UP_S", 0.0)
    found = agent.agent(2.0)
    assert found["share"] > 0.0
    assert found["mb"] > 1.0
