"""The verdict on a device: labelled cases, one verdict for each input, how long a finding takes and lasts."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.gpu.verdict.table import SIGNALS, TABLE, VerdictInput, classify, confidence
from autoglm_throttle.gpu.verdict.tracker import VerdictTracker
from autoglm_throttle.settings.groups.gpu import GpuSettings, VerdictSettings
from autoglm_throttle.types import GpuCondition, ServiceStats
from tests.gpu.cases.replay_case import Case, Phase, Player, labels, row, view
from tests.gpu.cases.table import (
    CASES,
    FULL,
    H100,
    HEALTHY,
    QUIET,
    REST,
    SERVING,
    SPIN,
    one,
)

THRESHOLDS = VerdictSettings()


SILENT = VerdictInput(utilization_pct=100.0, progress_per_s=0.0, silent_share=1.0, in_flight=1.0)


MOVING = VerdictInput(utilization_pct=100.0, progress_per_s=4.0)


UNKNOWN, PRODUCTIVE = GpuCondition.UNKNOWN, GpuCondition.PRODUCTIVE


PLAIN = {GpuCondition.IDLE, GpuCondition.WORKING, GpuCondition.UNKNOWN}


RATIO = st.none() | st.floats(0.0, 1.0)


COUNT = st.integers(0, 50)


ALWAYS_KNOWN = {"utilization_pct", "active", "silent_share", "in_flight", "backlog", "queue_target"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_labelled_case(case: Case) -> None:
    player = Player()
    for number, phase in enumerate(case.phases):
        seen = player.play(phase)
        assert labels(seen) == phase.labels, f"{case.origin}, phase {number}: {seen.verdicts}"


def test_the_set_names_each_finding_and_each_name_once() -> None:
    assert {label for case in CASES for phase in case.phases for label in phase.labels} == set(GpuCondition)
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", [case for case in CASES if case.seconds <= 70], ids=lambda case: case.name)
def test_labelled_case_at_five_samples_a_second(case: Case) -> None:
    player = Player()
    for phase in case.phases:
        if phase.seconds > 1:
            assert labels(player.play(phase, step_s=0.2)) == phase.labels


@given(
    devices=st.lists(
        st.fixed_dictionaries(
            {
                "health": st.sampled_from(["ok", "degraded", "lost"]),
                "utilization_pct": st.none() | st.floats(0.0, 100.0),
                "graphics_active_ratio": RATIO,
                "power_w": st.none() | st.floats(0.0, 800.0),
                "power_limit_w": st.none() | st.floats(1.0, 800.0),
                "power_limit_default_w": st.none() | st.floats(1.0, 800.0),
                "sm_active_ratio": RATIO,
                "dram_active_ratio": RATIO,
                "tensor_active_ratio": RATIO,
                "throttled_ratio": RATIO,
                "sm_clock_mhz": st.none() | st.floats(0.0, 3000.0),
                "sm_clock_max_mhz": st.none() | st.floats(1.0, 3000.0),
                "throttle": st.none() | st.frozensets(st.sampled_from(["sw_power_cap", "hw_thermal"])),
            }
        ),
        min_size=1,
        max_size=3,
    ),
    per_s=st.sampled_from([0.0, 0.3, 20.0]),
    work=st.fixed_dictionaries(
        {
            "in_flight": COUNT,
            "waiting": COUNT,
            "at_limit": st.booleans(),
            "p95_s": st.none() | st.floats(0.0, 100.0),
            "slo_s": st.none() | st.floats(0.1, 10.0),
        }
    ),
    seconds=st.integers(1, 15),
)
def test_every_input_has_exactly_one_verdict(
    devices: list[dict[str, Any]], per_s: float, work: dict[str, Any], seconds: int
) -> None:
    player = Player()
    for seen in player.seconds(Phase(seconds, tuple(devices), (), completed_per_s=per_s, work=work)):
        keys = [(each.host, each.device) for each in seen.devices]
        assert list(seen.verdicts) == keys
        report = sum(each.health != "lost" for each in seen.devices) / len(devices)
        assert 0.0 <= seen.capacity <= report + 1e-12
        for each, verdict in zip(seen.devices, seen.verdicts.values(), strict=True):
            assert 0.0 <= verdict.confidence <= 1.0
            assert (verdict.condition is GpuCondition.LOST) == (each.health == "lost")
            assert verdict.since_s <= player.now


@given(
    percent=st.none() | st.floats(0.0, 100.0),
    others=st.lists(st.none() | st.floats(0.0, 100.0), max_size=2),
    seconds=st.integers(1, 40),
    in_flight=COUNT,
)
def test_utilization_alone_gives_only_plain_verdicts(
    percent: float | None, others: list[float | None], seconds: int, in_flight: int
) -> None:
    devices = tuple({"utilization_pct": pct} for pct in (percent, *others))
    for seen in Player().seconds(
        Phase(seconds, devices, (), work={"in_flight": in_flight, "waiting": in_flight})
    ):
        assert set(labels(seen)) <= PLAIN


@given(
    reading=st.builds(
        VerdictInput,
        **{
            each.name: st.none() | st.floats(0.0, 2.0)
            for each in fields(VerdictInput)
            if each.name not in ALWAYS_KNOWN
        },
        utilization_pct=st.floats(0.0, 100.0),
        active=st.sampled_from([0.0, 1.0]),
        silent_share=st.floats(0.0, 2.0),
        in_flight=st.floats(0.0, 2.0),
        backlog=st.floats(0.0, 2.0),
        queue_target=st.floats(0.0, 2.0),
    )
)
def test_the_first_row_that_matches_wins(reading: VerdictInput) -> None:
    found = classify(reading, THRESHOLDS)
    order = [finding for finding, _ in TABLE]
    earlier = TABLE[: order.index(found)]
    assert not any(matches(reading, THRESHOLDS) for _, matches in earlier)
    share, evidence = confidence(found, reading, THRESHOLDS)
    assert 0.0 < share <= 1.0, "what matches rests on at least one signal that agrees"
    assert None not in evidence.values()


def test_nothing_of_ours_in_flight_is_no_stall() -> None:
    it = VerdictInput(
        utilization_pct=100.0, power_share=0.1, progress_per_s=0.0, silent_share=1.0, in_flight=1.0
    )
    assert classify(it, THRESHOLDS) is GpuCondition.STALLED
    assert classify(replace(it, in_flight=0.0), THRESHOLDS) is GpuCondition.UNKNOWN


def test_lost_device_is_no_working_device() -> None:
    devices = ({**FULL, "utilization_pct": 45.0}, {"health": "lost", "utilization_pct": 99.0})
    phase = Phase(10, devices, (), completed_per_s=9.0, work={**SERVING, "waiting": 3})
    assert labels(Player().play(phase)) == (GpuCondition.STARVED, GpuCondition.LOST)


def test_the_queue_is_counted_for_each_engine() -> None:
    def found(queued: int) -> GpuCondition:
        tracker, low = VerdictTracker(THRESHOLDS, GpuSettings()), {**FULL, "sm_active_ratio": 0.1}
        for tick in range(6):
            now = 1000.0 + tick
            engines = tuple(
                row(number, now, kind="engine", queued=queued, running=4, tokens_per_s=50.0)
                for number in (1, 2)
            )
            seen = tracker.update(view((row(0, now, **low), *engines)), ServiceStats(in_flight=8), now)
        return labels(seen)[0]

    assert found(5) is GpuCondition.UNDERFED
    assert found(6) is GpuCondition.PRODUCTIVE


def test_two_samples_or_two_seconds_are_not_enough() -> None:
    player = Player()
    seen = [labels(each)[0] for each in player.seconds(replace(HEALTHY, seconds=4))]
    assert seen == [GpuCondition.UNKNOWN] * 3 + [GpuCondition.PRODUCTIVE], (
        "the first sample knows no rate yet"
    )
    quick = [labels(each)[0] for each in Player().seconds(replace(HEALTHY, seconds=2), step_s=0.2)]
    assert quick == [GpuCondition.UNKNOWN] * 10


def test_two_samples_far_apart_are_not_enough() -> None:
    device = one(6, {**FULL, "throttle": frozenset({"hw_thermal"})}, GpuCondition.THROTTLED)
    assert [labels(each)[0] for each in Player().seconds(device, step_s=3.0)] == [GpuCondition.UNKNOWN] * 2
    assert labels(Player().play(replace(device, seconds=9), step_s=3.0)) == (GpuCondition.THROTTLED,)


def test_verdict_ends_after_three_samples_over_two_seconds() -> None:
    player = Player()
    player.play(HEALTHY)
    odd = one(1, {**FULL, "utilization_pct": 50.0}, GpuCondition.WORKING, completed_per_s=10.0)
    for _ in range(5):
        assert labels(player.play(odd)) == (GpuCondition.PRODUCTIVE,)
        assert labels(player.play(replace(HEALTHY, seconds=1))) == (GpuCondition.PRODUCTIVE,)
    left = [labels(each)[0] for each in player.seconds(replace(odd, seconds=3))]
    assert left == [GpuCondition.PRODUCTIVE, GpuCondition.PRODUCTIVE, GpuCondition.WORKING]


def test_a_finding_that_is_young_is_left_by_three_samples_too() -> None:
    player = Player()
    player.play(HEALTHY)
    odd = one(1, {**FULL, "utilization_pct": 50.0}, GpuCondition.WORKING, completed_per_s=10.0)
    entered = [labels(each)[0] for each in player.seconds(replace(odd, seconds=3))]
    assert entered[-1] is GpuCondition.WORKING
    left = [labels(each)[0] for each in player.seconds(replace(HEALTHY, seconds=3))]
    assert left == [GpuCondition.WORKING, GpuCondition.WORKING, GpuCondition.PRODUCTIVE]


def test_unstable_conditions_report_only_the_plain_one() -> None:
    player = Player()
    player.play(HEALTHY)
    working = one(1, {**FULL, "utilization_pct": 50.0}, GpuCondition.WORKING, completed_per_s=10.0)
    underfed = one(1, {**FULL, "sm_active_ratio": 0.1}, GpuCondition.UNDERFED, completed_per_s=10.0)
    found = [labels(player.play(phase))[0] for phase in (underfed, working, underfed, working, underfed)]
    held = GpuCondition.PRODUCTIVE
    assert found == [held, held, GpuCondition.UNKNOWN, GpuCondition.WORKING, GpuCondition.UNKNOWN]


def test_the_same_measurement_again_and_again_counts_once() -> None:
    tracker = VerdictTracker(THRESHOLDS, GpuSettings())
    seen: list[GpuCondition] = []
    for tick in range(90):
        now, repeats = 1000.0 + tick, tick % 30
        device = row(
            0, now, age_s=repeats * (1.0 - 1e-5), **FULL
        )  # worked out anew each time, so never quite equal
        work = ServiceStats(in_flight=9, completed_total=9 * tick)
        seen += labels(tracker.update(view((device,)), work, now))
    assert seen[:60] == [GpuCondition.UNKNOWN] * 60, "two measurements prove nothing"
    again = row(0, 1090.0, **FULL)
    seen += labels(tracker.update(view((again,)), ServiceStats(in_flight=9, completed_total=810), 1090.0))
    assert seen[-1] is GpuCondition.PRODUCTIVE, "the first one knew no rate, three did"


def test_lost_is_reported_and_cleared_at_once() -> None:
    player = Player()
    player.play(HEALTHY)
    lost = player.play(one(1, {"health": "lost"}, GpuCondition.LOST))
    (verdict,) = lost.verdicts.values()
    assert (verdict.condition, verdict.since_s, verdict.confidence) == (GpuCondition.LOST, player.now, 1.0)
    again = player.play(one(1, {"health": "lost"}, GpuCondition.LOST))
    assert next(iter(again.verdicts.values())).since_s == player.now - 1.0
    assert labels(player.play(replace(HEALTHY, seconds=1))) == (GpuCondition.UNKNOWN,)


def test_a_stall_needs_ten_seconds_and_names_its_evidence() -> None:
    player = Player()
    player.play(HEALTHY)
    found = [labels(each)[0] for each in player.seconds(one(14, SPIN, GpuCondition.STALLED))]
    assert found.index(GpuCondition.STALLED) == 11, (
        "ten seconds, of which the last gives the first of three samples"
    )
    seen = player.play(one(1, SPIN, GpuCondition.STALLED))
    (verdict,) = seen.verdicts.values()
    assert verdict.evidence == {
        "utilization_pct": 100.0,
        "in_flight": 32,
        "progress_per_s": 0.0,
        "power_share": 0.1,
    }
    assert verdict.confidence == 4 / 5
    assert seen.fake_busy


def test_a_first_request_may_load_and_compile_a_model() -> None:
    player = Player()
    probes = one(30, REST, GpuCondition.IDLE, completed_per_s=1.0, work=QUIET)
    assert labels(player.play(probes)) == (GpuCondition.IDLE,)
    loading = one(590, {**SPIN, "power_w": 180.0}, GpuCondition.UNKNOWN)
    assert (GpuCondition.STALLED,) not in {labels(each) for each in player.seconds(loading)}
    assert labels(player.play(one(20, SPIN, GpuCondition.STALLED))) == (GpuCondition.STALLED,), (
        "but not for ever"
    )


def test_own_stream_chunks_prevent_and_end_a_stall() -> None:
    player = Player()
    player.play(HEALTHY)
    late = {"tokens_per_s": 0.0, "running": 1}
    streams = one(40, SPIN, GpuCondition.UNKNOWN, chunks_per_s=20.0, engine=late)
    assert GpuCondition.STALLED not in {labels(each)[0] for each in player.seconds(streams)}
    assert labels(player.play(one(20, SPIN, GpuCondition.STALLED, engine=late))) == (GpuCondition.STALLED,)
    assert labels(player.play(replace(streams, seconds=5))) != (GpuCondition.STALLED,)


def test_a_stall_takes_longer_if_so_wished() -> None:
    player = Player(stalled_s=20.0)
    player.play(HEALTHY)
    assert labels(player.play(one(18, SPIN, GpuCondition.UNKNOWN))) != (GpuCondition.STALLED,)
    assert labels(player.play(one(6, SPIN, GpuCondition.STALLED))) == (GpuCondition.STALLED,)


def test_stall_of_silent_device_ends_with_own_progress() -> None:
    player = Player()
    player.play(HEALTHY)
    player.play(one(20, SPIN, GpuCondition.STALLED))
    at_s = player.now
    device = row(0, at_s, **SPIN)

    def later(seconds: float, completed: int) -> GpuCondition:
        work = ServiceStats(in_flight=9, completed_total=completed)
        return labels(player.tracker.update(view((device,)), work, at_s + seconds))[0]

    assert later(1.0, 300) is GpuCondition.STALLED
    assert later(30.0, 300) is GpuCondition.STALLED, "silence is no recovery"
    assert later(31.0, 320) is GpuCondition.UNKNOWN
    assert later(60.0, 320) is GpuCondition.UNKNOWN


def test_stalled_device_late_by_its_period_is_not_silent() -> None:
    player = Player()
    player.play(HEALTHY)
    player.play(one(20, {**SPIN, "period_s": 30.0}, GpuCondition.STALLED))
    device = row(0, player.now, **SPIN, period_s=30.0)
    seen = player.tracker.update(
        view((device,)), ServiceStats(in_flight=9, completed_total=999), player.now + 60.0
    )
    assert labels(seen) == (GpuCondition.STALLED,)


def test_unknown_device_is_removed_and_engines_get_no_verdict() -> None:
    tracker = VerdictTracker(THRESHOLDS, GpuSettings())
    engine = row(1, 1000.0, kind="engine", tokens_per_s=5.0)
    tracker.update(view((row(0, 1000.0, **FULL), engine)), ServiceStats(), 1000.0)
    assert len(tracker._devices) == 1
    seen = tracker.update(view((engine,)), ServiceStats(), 1001.0)
    assert seen.verdicts == {}
    assert seen.capacity == 1.0
    assert not tracker._devices


@pytest.mark.parametrize(
    ("changed", "it", "default", "expected"),
    [
        ({"power_stalled": 0.4}, replace(SILENT, power_share=0.35), UNKNOWN, GpuCondition.STALLED),
        ({"sm_stalled": 0.2}, replace(SILENT, sm_active_ratio=0.1), UNKNOWN, GpuCondition.STALLED),
        ({"power_underfed": 0.5}, replace(MOVING, power_share=0.45), PRODUCTIVE, GpuCondition.UNDERFED),
        ({"sm_underfed": 0.4}, replace(MOVING, sm_active_ratio=0.3), PRODUCTIVE, GpuCondition.UNDERFED),
    ],
)
def test_each_threshold_is_a_setting(
    changed: dict[str, float], it: VerdictInput, default: GpuCondition, expected: GpuCondition
) -> None:
    settings = VerdictSettings(**changed)
    assert classify(it, THRESHOLDS) is default
    assert classify(it, settings) is expected
    assert confidence(expected, it, settings)[0] > confidence(expected, it, THRESHOLDS)[0]


def test_confidence_is_share_of_signals_that_agree() -> None:
    it = VerdictInput(utilization_pct=99.0, progress_per_s=4.0, sm_active_ratio=0.1, power_share=0.5)
    share, evidence = confidence(GpuCondition.UNDERFED, it, THRESHOLDS)
    assert share == 3 / 8, "utilization, progress and multiprocessors agree, power does not, four are unknown"
    assert set(evidence) == {"utilization_pct", "progress_per_s", "sm_active_ratio", "power_share"}
    it.dram_active_ratio = 0.1
    assert confidence(GpuCondition.UNDERFED, it, THRESHOLDS)[0] == 4 / 8
    assert confidence(GpuCondition.LOST, it, THRESHOLDS) == (1.0, {})


def test_every_condition_has_existing_signals() -> None:
    assert set(SIGNALS) == set(GpuCondition)
    names = {each.name for each in fields(VerdictInput)}
    for signals in SIGNALS.values():
        assert {name for name, _, _ in signals} <= names
        assert len({name for name, _, _ in signals}) == len(signals)
        bounds = {bound for _, _, bound in signals if isinstance(bound, str)}
        assert bounds <= names | set(VerdictSettings.model_fields)


def worked() -> Player:
    """A tracker that has observed its device at work."""
    player = Player()
    player.play(HEALTHY)
    return player


def test_a_signal_more_that_agrees_makes_a_finding_surer() -> None:
    alone = worked().play(one(20, {**SPIN, **H100, "sm_active_ratio": None}, GpuCondition.STALLED))
    both = worked().play(one(20, {**SPIN, "sm_active_ratio": 0.01}, GpuCondition.STALLED))
    assert [each.confidence for each in (*alone.verdicts.values(), *both.verdicts.values())] == [4 / 5, 1.0]


def test_learned_power_range_finds_hang_below_limit() -> None:
    device = {"power_limit_w": 300.0, "utilization_pct": 100.0}
    idle = one(400, {**device, "utilization_pct": 0.0, "power_w": 90.0}, GpuCondition.IDLE, work=QUIET)
    busy = one(300, {**device, "power_w": 250.0}, GpuCondition.PRODUCTIVE, completed_per_s=10.0)
    hung = one(20, {**device, "power_w": 95.0}, GpuCondition.STALLED)
    fresh, settled = Player(), Player()
    assert labels(fresh.play(hung)) == (GpuCondition.UNKNOWN,), "95 W are a third of the limit"
    for phase in (idle, busy, hung):
        assert labels(settled.play(phase)) == phase.labels


def test_a_mean_of_power_is_believed_before_a_moment_of_it() -> None:
    device = {
        **REST,
        "utilization_pct": 100.0,
        "sm_active_ratio": None,
        "power_w": 650.0,
        "power_mean_w": 100.0,
    }
    assert labels(worked().play(one(20, device, GpuCondition.STALLED))) == (GpuCondition.STALLED,)


def test_a_measurement_from_the_future_does_not_end_the_judging() -> None:
    """`Throttle.observe` accepts rows with the time of another clock."""
    player = Player()
    ahead = view((row(0, player.now + 3600.0, **FULL),))
    player.tracker.update(ahead, ServiceStats(), player.now)
    assert labels(player.play(HEALTHY)) == (GpuCondition.PRODUCTIVE,)
