"""Faults of telemetry at 93 % of load, each with its expected share: the admitted share rises in none.

FIELD 11 and 12: under ``tiers`` 14 of 21 such faults opened the door, and an engine that died beside its
devices did so under every ``GPU_UNKNOWN``. The table was written before the repair.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest

from autoglm_throttle import GpuSample, ProviderMisconfigured, ProviderUnavailable
from autoglm_throttle.testing import ManualClock
from tests.gpu.throttled_service import Named, Service

BEFORE = 0.4  # Factor of the table at 93 %
FAULT_S = 90  # Long enough to be blind, which a signal is after 30 s
AFTER_S = 10
UNREACHABLE = ProviderUnavailable("connection refused")
Change = Callable[[GpuSample], GpuSample | None]


class Faulty(Named):
    """A fake GPU whose rows pass through a change; ``every`` counts the reads of which one is answered."""

    change: Change = staticmethod(lambda row: row)
    every = 1
    reads = 0

    def read(self) -> Sequence[GpuSample]:
        self.reads += 1
        if self.reads % self.every:
            return ()
        return [row for one in super().read() if (row := self.change(one)) is not None]


class Rig:
    """A service with four devices, the first the hottest, or one engine beside devices at 60 %."""

    def __init__(self, policy: str, *, engine: bool) -> None:
        clock = ManualClock()
        self.devices = Faulty("nvml", clock, devices=4)
        self.engine = Faulty("vllm:host:8000", clock, devices=0, engines=1)
        self.devices.utilization_pct = 60.0 if engine else 92.0
        self.devices.set(0, utilization_pct=60.0 if engine else 96.0)
        self.engine.queued, self.engine.kv_used_ratio = 0, 0.744  # 93 % of the target
        self.source = self.engine if engine else self.devices
        sources = (self.devices, self.engine) if engine else (self.devices,)
        self.service = Service(sources, clock, policy=policy, inflight_max=4, queue_max=0)

    def shares(self, seconds: int) -> list[float]:
        """The admitted share of each second, while five times the work arrives that fits the limit."""
        found = []
        for _ in range(seconds):
            self.service.overload(1, rps=20.0, takes_s=1.0)
            found.append(self.service.throttle.control_state().factor)
        return found

    def recover(self) -> None:
        self.source.recover()
        self.source.change, self.source.every = lambda row: row, 1


def _fails(error: Exception) -> Callable[[Rig], None]:
    return lambda rig: rig.source.fail_with(error)


def _changes(change: Change) -> Callable[[Rig], None]:
    def begin(rig: Rig) -> None:
        rig.source.change = change

    return begin


def _loses(*indexes: int) -> Callable[[Rig], None]:
    def begin(rig: Rig) -> None:
        for index in indexes:
            rig.source.lose(index)

    return begin


def _answers_every(reads: int) -> Callable[[Rig], None]:
    def begin(rig: Rig) -> None:
        rig.source.every = reads

    return begin


def _hottest(change: Change) -> Callable[[Rig], None]:
    return _changes(lambda row: change(row) if row.index == 0 else row)


class Fault(NamedTuple):
    name: str
    begin: Callable[[Rig], None]
    expected: float = BEFORE  # Share at the end of the fault
    engine: bool = False


FAULTS = (
    Fault("driver hangs", lambda rig: rig.source.hang()),
    Fault("driver hangs for 20 s", lambda rig: rig.source.hang(20.0)),
    Fault("errors", _fails(ProviderUnavailable("NVML 999 unknown error"))),
    Fault("crash", _fails(RuntimeError("segment"))),
    Fault("driver lost its package", _fails(ProviderMisconfigured("no module"))),
    Fault("no rows", _changes(lambda _: None)),
    Fault("frozen time", lambda rig: rig.source.stale()),
    Fault("NaN", _changes(lambda row: replace(row, utilization_pct=math.nan))),
    Fault("infinite", _changes(lambda row: replace(row, utilization_pct=math.inf))),
    Fault("120 %", _changes(lambda row: replace(row, utilization_pct=120.0))),
    Fault("-1 %", _changes(lambda row: replace(row, utilization_pct=-1.0))),
    Fault("None", _changes(lambda row: replace(row, utilization_pct=None))),
    Fault("MIG without numbers", _changes(lambda row: replace(row, kind="mig", utilization_pct=None))),
    Fault("None of the hottest", _hottest(lambda row: replace(row, utilization_pct=None))),
    Fault("hottest is 40 s old", _hottest(lambda row: replace(row, age_s=40.0))),
    Fault("all are 40 s old", _changes(lambda row: replace(row, age_s=40.0))),
    Fault("taken in the future", _changes(lambda row: replace(row, taken_at_s=row.taken_at_s + 1e6))),
    Fault("one of four lost", _loses(3), 0.3),
    Fault("hottest lost", _loses(0), 0.3),
    Fault("three of four lost", _loses(0, 1, 2), 0.1),
    Fault("all of four lost", _loses(0, 1, 2, 3), 0.0),
    Fault("hottest not listed", _hottest(lambda _: None), 0.3),
    Fault("new names", _changes(lambda row: replace(row, device=f"{row.device}-new")), 0.2),
    Fault("slow reads", _answers_every(5)),
    Fault("very slow reads", _answers_every(40)),
    Fault("engine dies", _fails(UNREACHABLE), engine=True),
    Fault("engine hangs", lambda rig: rig.source.hang(), engine=True),
    Fault("engine renames its metrics", _fails(ProviderUnavailable("has no metric of vllm")), engine=True),
    Fault("engine renames its cache", _changes(lambda row: replace(row, kv_used_ratio=None)), engine=True),
    Fault(
        "engine has no numbers",
        _changes(lambda row: replace(row, kv_used_ratio=None, queued=None)),
        engine=True,
    ),
    Fault("cache of 120 %", _changes(lambda row: replace(row, kv_used_ratio=1.2)), engine=True),
    Fault("engine not listed", _changes(lambda _: None), engine=True),
    Fault("engine reads slowly", _answers_every(5), engine=True),
)


@pytest.mark.parametrize("policy", ["tiers", "adaptive"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "_"))
def test_fault_of_telemetry_raises_no_share(fault: Fault, policy: str) -> None:
    rig = Rig(policy, engine=fault.engine)
    assert rig.shares(6)[-1] == BEFORE
    fault.begin(rig)
    during = rig.shares(FAULT_S)
    assert max(during) <= BEFORE
    assert during[-1] == pytest.approx(fault.expected)
    rig.recover()
    assert max(rig.shares(AFTER_S)) <= BEFORE, "the load is as before"
