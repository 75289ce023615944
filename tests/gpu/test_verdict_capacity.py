"""A throttled device: when a limit, heat or a power cap is a finding, and how much capacity it leaves."""

from __future__ import annotations

from typing import Any

import pytest

from autoglm_throttle.types import GpuCondition
from tests.gpu.cases.replay_case import Phase, Player, labels
from tests.gpu.cases.table import (
    FULL,
    LOWERED,
    SERVING,
    SOLD,
    one,
)


def throttled(clock: float | None, **fields: Any) -> dict[str, Any]:
    return {**FULL, "throttle": frozenset({"hw_thermal"}), "sm_clock_mhz": clock, **fields}


def test_throttled_device_counts_by_clock_and_weight() -> None:
    devices = (throttled(990.0), FULL, FULL, {"health": "lost"})
    phase = Phase(5, devices, (), completed_per_s=10.0, work=SERVING)
    seen = Player().play(phase)
    assert labels(seen) == (
        GpuCondition.THROTTLED,
        GpuCondition.PRODUCTIVE,
        GpuCondition.PRODUCTIVE,
        GpuCondition.LOST,
    )
    assert seen.capacity == pytest.approx(0.75 - 0.25 * 0.5)


@pytest.mark.parametrize(
    ("clock", "left"), [(100.0, 0.2), (990.0, 0.5), (1980.0, 1.0), (2100.0, 1.0), (None, 1.0)]
)
def test_the_clock_share_stays_between_a_fifth_and_one(clock: float | None, left: float) -> None:
    seen = Player().play(one(5, throttled(clock), GpuCondition.THROTTLED, completed_per_s=10.0))
    assert labels(seen) == (GpuCondition.THROTTLED,)
    assert seen.capacity == pytest.approx(left)


def test_capacity_is_untouched_while_the_finding_is_not_sure() -> None:
    player = Player()
    seen = list(player.seconds(one(3, throttled(990.0), GpuCondition.THROTTLED, completed_per_s=10.0)))
    assert [each.capacity for each in seen] == [1.0, 1.0, 0.5]


@pytest.mark.parametrize("bits", [frozenset({"sw_power_cap"}), None], ids=["bit", "time alone"])
def test_device_at_default_power_limit_is_not_throttled(bits: frozenset[str] | None) -> None:
    device = {**SOLD, "throttle": bits, "throttled_ratio": 0.9}
    seen = list(Player().seconds(one(60, device, GpuCondition.PRODUCTIVE, completed_per_s=10.0)))
    assert [labels(each)[0] for each in seen] == [GpuCondition.UNKNOWN] * 3 + [
        GpuCondition.PRODUCTIVE
    ] * 57, "the first sample knows no rate yet, the next three agree"
    assert {each.capacity for each in seen} == {1.0}


def test_limit_lowered_before_the_start_is_the_owners() -> None:
    """FIELD 25: it was called throttled for ever."""
    player = Player()
    seen = player.play(one(900, {**SOLD, **LOWERED}, GpuCondition.PRODUCTIVE, completed_per_s=10.0))
    assert labels(seen) == (GpuCondition.PRODUCTIVE,)
    assert seen.capacity == 1.0
    hot = {**SOLD, **LOWERED, "throttle": frozenset({"sw_power_cap", "hw_thermal"})}
    assert player.play(one(5, hot, GpuCondition.THROTTLED, completed_per_s=10.0)).capacity == 0.5, (
        "heat is news"
    )


@pytest.mark.parametrize(
    ("per_s", "capacity"),
    [
        (2224.0, 1.0),  # 2 % more tokens at 0.67 of the clock
        (1744.0, 0.8),
        (1000.0, 990.0 / 1485.0),  # The clock at its own limit was seen before
    ],
)
def test_lowered_limit_counts_by_clock_or_progress(per_s: float, capacity: float) -> None:
    """FIELD 24: the clock alone counted, 0.68 although the tokens per second rose."""
    player = Player()
    player.play(one(120, SOLD, GpuCondition.PRODUCTIVE, chunks_per_s=2180.0))
    lowered = one(300, {**SOLD, **LOWERED}, GpuCondition.THROTTLED, chunks_per_s=per_s)
    seen = list(player.seconds(lowered))
    assert labels(seen[-1]) == (GpuCondition.THROTTLED,)
    # The slower throughput is learned for the seconds until the verdict.
    assert {round(each.capacity, 1) for each in seen[30:]} == {round(capacity, 1)}


def test_heat_counts_by_the_clock_whatever_the_progress() -> None:
    player = Player()
    player.play(one(120, SOLD, GpuCondition.PRODUCTIVE, chunks_per_s=2180.0))
    hot = {**SOLD, "throttle": frozenset({"sw_thermal"}), "sm_clock_mhz": 742.5}
    seen = player.play(one(30, hot, GpuCondition.THROTTLED, chunks_per_s=2180.0))
    assert seen.capacity == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("power_w", "bits", "finding"),
    [
        (420.0, frozenset({"sw_power_cap"}), GpuCondition.THROTTLED),
        (559.0, frozenset({"sw_power_cap"}), GpuCondition.THROTTLED),
        (561.0, frozenset({"sw_power_cap"}), GpuCondition.PRODUCTIVE),
        (420.0, frozenset[str](), GpuCondition.PRODUCTIVE),
    ],
)
def test_cap_far_below_the_limit_is_that_of_the_chassis(
    power_w: float, bits: frozenset[str], finding: GpuCondition
) -> None:
    """FIELD 25: a device at 0.6 of its limit with the cap bit was productive; its clock is not full speed."""
    player = Player()
    device = {**SOLD, "power_w": power_w, "throttle": bits, "sm_clock_mhz": 1188.0}
    seen = player.play(one(300, device, finding, completed_per_s=10.0))
    assert labels(seen) == (finding,)
    assert seen.capacity == pytest.approx(0.6 if finding is GpuCondition.THROTTLED else 1.0)
    if finding is GpuCondition.THROTTLED:
        (verdict,) = seen.verdicts.values()
        assert verdict.evidence["limit_used"] == pytest.approx(power_w / 700.0)


@pytest.mark.parametrize(
    ("limit_w", "finding"),
    [
        (None, GpuCondition.THROTTLED),
        (400.0, GpuCondition.THROTTLED),
        (664.0, GpuCondition.THROTTLED),
        (666.0, GpuCondition.PRODUCTIVE),
        (800.0, GpuCondition.PRODUCTIVE),
    ],
)
def test_a_limit_counts_as_lowered_from_a_twentieth_on(limit_w: float | None, finding: GpuCondition) -> None:
    player, device = Player(), {**SOLD, "power_limit_w": limit_w}
    if limit_w is not None:
        player.play(one(6, SOLD, GpuCondition.PRODUCTIVE, completed_per_s=10.0))
    assert labels(player.play(one(6, device, finding, completed_per_s=10.0))) == (finding,)


def test_full_speed_learned_under_load_gives_the_capacity_back() -> None:
    player = Player()
    device = {**FULL, "throttle": frozenset({"sw_power_cap"}), "sm_clock_mhz": 1386.0}
    seen = player.play(one(5, {**device, "power_limit_w": None}, GpuCondition.THROTTLED, completed_per_s=9.0))
    assert seen.capacity == pytest.approx(0.7)
    assert player.play(one(60, device, GpuCondition.PRODUCTIVE, completed_per_s=9.0)).capacity == 1.0
