"""A fork with several sources, one of which hangs in the parent: the child reads all of them anew."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autoglm_throttle import Settings, Throttle
from tests.admission.forked import forked
from tests.gpu.sampler_doubles import Source, raising

ROOT = Path(__file__).parents[2]

SCRIPT = """
import os, signal, threading, time
from autoglm_throttle import Demand, Settings, TelemetryState, Throttle
from autoglm_throttle.gpu.sampler import THREAD
from autoglm_throttle.testing import FakeGpu

signal.alarm(240)

class Noting(FakeGpu):
    pids = None
    def read(self):
        self.pids.add(os.getpid())
        return super().read()

def source(name, devices, engines, blocks=False):
    one = Noting(devices, engines=engines, blocks=blocks)
    one.name, one.pids = name, set()
    return one

card, engine, hung = source("nvml", 2, 0), source("vllm:h:1", 0, 1), source("dcgm:h:2", 1, 0, blocks=True)
card.utilization_pct, engine.kv_used_ratio = 30.0, 0.5
throttle = Throttle(Settings(sample_interval_s=0.2), gpu=(card, engine, hung))

def until(what):
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline, (throttle.snapshot().sources, threading.enumerate())
        time.sleep(0.01)

def readers():
    return sorted(t.name for t in threading.enumerate() if t.name.startswith(THREAD))

names = [f"{THREAD}-{name}" for name in ("dcgm:h:2", "nvml", "vllm:h:1")]
throttle.start()
until(lambda: all(one.age_s is not None for one in throttle.snapshot().sources))
hung.hang()
until(lambda: throttle.control.monitor.samplers["dcgm:h:2"].status.reading_since_s is not None)
child = os.fork()
if child == 0:
    signal.alarm(120)
    pid = os.getpid()
    assert readers() == [], readers()
    hung.recover()
    assert throttle.try_admit(Demand()).admitted
    until(lambda: pid in card.pids and pid in engine.pids and pid in hung.pids)
    until(lambda: throttle.control_state().telemetry is TelemetryState.FRESH)
    assert readers() == names, readers()
    view = throttle.snapshot().view
    assert view.engines == 1 and view.capacity == 1.0, view
    throttle.stop()
    os._exit(0)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0
assert readers() == names, readers()
until(lambda: throttle.control_state().telemetry is TelemetryState.FRESH)
assert os.getpid() in card.pids and len(card.pids) == 1
hung.recover()
throttle.stop()
print("both read")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_child_reads_all_sources_for_itself() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout == "both read\n", done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_failing_source_leaves_the_others_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [Source() for _ in range(3)]
    for number, source in enumerate(sources):
        source.name = f"source-{number}"
    monkeypatch.setattr(sources[1], "reset_after_fork", raising(OSError("x")))
    throttle = Throttle(Settings(), gpu=sources, sampling="manual")
    throttle.tick()

    def check() -> None:
        assert [source.calls for source in sources] == [["read", "forget"], ["read"], ["read", "forget"]]
        throttle.tick()
        assert [source.calls[-1] for source in sources] == ["read"] * 3

    forked(check)
