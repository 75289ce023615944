"""Published cases with their sources: hangs, power caps, MIG, time slicing, cold starts, long answers.

A source rarely gives all figures: power limit, clock, traffic and time are ours unless they are named.
"""

from __future__ import annotations

from typing import Any

from autoglm_throttle.types import GpuCondition as U
from tests.gpu.cases.replay_case import Case, Phase
from tests.gpu.cases.table import ALONE, FULL, H100, QUIET, REST, SERVING, SPIN, one

_CAP = frozenset({"sw_power_cap"})
_NONE: frozenset[str] = frozenset()
V100: dict[str, Any] = {"power_limit_w": 300.0, "sm_clock_max_mhz": 1530.0}
A100: dict[str, Any] = {"power_limit_w": 400.0, "sm_clock_max_mhz": 1410.0}
R3090: dict[str, Any] = {
    "power_limit_w": 315.0,
    "power_limit_default_w": 350.0,
    "sm_clock_max_mhz": 2100.0,
    "throttle": _CAP,
}
_MINUTE: dict[str, Any] = {**ALONE, "p95_s": 60.0, "slo_s": 120.0}
_WAITING: dict[str, Any] = {**H100, "utilization_pct": 0.0, "power_w": 90.0}


def group(seconds: int, devices: list[dict[str, Any]], labels: list[U], **rest: Any) -> Phase:
    return Phase(seconds, tuple(devices), tuple(labels), **{"work": SERVING, **rest})


def _v100(power_w: float, pct: float = 100.0, **rest: Any) -> dict[str, Any]:
    return {**V100, "utilization_pct": pct, "power_w": power_w, **rest}


def _a100(power_w: float, pct: float = 100.0, **rest: Any) -> dict[str, Any]:
    return {**A100, "utilization_pct": pct, "power_w": power_w, **rest}


_EIGHT_AT_WORK = group(60, [FULL] * 8, [U.PRODUCTIVE] * 8, completed_per_s=10.0)

HANGS = (
    Case(
        "one_spins_seven_wait",
        "NVIDIA/nccl#1550: one device of eight spins at 100 %, seven read 0 %",
        (_EIGHT_AT_WORK, group(40, [SPIN] + [_WAITING] * 7, [U.STALLED] + [U.IDLE] * 7)),
    ),
    Case(
        "some_spin_others_left",
        "NVIDIA/nccl#1033: some devices at 100 %, others at 0 %, no output until the time-out of NCCL",
        (
            group(60, [FULL] * 4, [U.PRODUCTIVE] * 4, completed_per_s=10.0),
            group(40, [SPIN, SPIN, _WAITING, _WAITING], [U.STALLED] * 2 + [U.IDLE] * 2),
        ),
    ),
    Case(
        "all_but_one_spin_at_idle_power",
        "Theano/libgpuarray#387: DGX-1, all at 100 % but one at 0 %, the power of all that of idle ones",
        (
            group(60, [_v100(250.0)] * 8, [U.PRODUCTIVE] * 8, completed_per_s=10.0),
            group(40, [_v100(45.0)] * 7 + [_v100(43.0, 0.0)], [U.STALLED] * 7 + [U.IDLE]),
        ),
    ),
    Case(
        "three_block_in_a_collective",
        "cupy/cupy#3557: three of four fully occupied and cool, since one process skipped the collective",
        (
            group(60, [FULL] * 4, [U.PRODUCTIVE] * 4, completed_per_s=10.0),
            group(40, [SPIN] * 3 + [REST], [U.STALLED] * 3 + [U.IDLE]),
        ),
    ),
    Case(
        "usage_constantly_100",
        "pytorch/pytorch#22671: frozen after some epochs, usage constantly 100 %, no error",
        (
            one(120, _v100(240.0), U.PRODUCTIVE, completed_per_s=8.0),
            one(120, _v100(62.0), U.STALLED),
        ),
    ),
    Case(
        "allreduce_on_a100",
        "NVIDIA/nccl#537: hang in ncclAllReduce on A100, utilization 100 %",
        (
            group(60, [_a100(330.0)] * 8, [U.PRODUCTIVE] * 8, completed_per_s=10.0),
            group(40, [_a100(88.0)] * 8, [U.STALLED] * 8),
        ),
    ),
    Case(
        "hang_on_a_device_that_never_rested",
        "FIELD 25: A100 at rest draws 13 to 18 % of its limit; at work here a quarter, in a hang 68 W",
        (
            one(60, _a100(100.0), U.UNDERFED, completed_per_s=5.0),
            one(40, _a100(68.0), U.STALLED, work=ALONE),
        ),
    ),
)

CAPS = (
    Case(
        "a100_capped_at_240_of_400_w",
        "l4rz/reverse-engineering-dell-idrac#3: A100 of 400 W in a Dell T550: SW Power Cap at 240 W",
        (one(120, _a100(240.0, throttle=_CAP, sm_clock_mhz=1005.0), U.THROTTLED, completed_per_s=10.0),),
    ),
    Case(
        "v100_capped_at_150_of_300_w",
        "the same thread: one of four V100 is capped to 150 W of 300 W",
        (
            group(
                120,
                [_v100(150.0, throttle=_CAP, sm_clock_mhz=900.0)]
                + [_v100(280.0, throttle=_NONE, sm_clock_mhz=1500.0)] * 3,
                [U.THROTTLED] + [U.PRODUCTIVE] * 3,
                completed_per_s=10.0,
            ),
        ),
    ),
    Case(
        "rtx_4000_capped_at_60_percent",
        "ollama/ollama#16048: sw_power_cap at about 60 % of the TDP of an RTX 4000; no clock known",
        (
            one(
                60,
                {"utilization_pct": 96.0, "power_w": 78.0, "power_limit_w": 130.0, "throttle": _CAP},
                U.THROTTLED,
                completed_per_s=3.0,
            ),
        ),
    ),
    Case(
        "rtx_3090_at_its_owners_315_w",
        "ashalliants/ninfer-3090#72: 314 W at a limit of 315 W, the cap bit always set, 1500 MHz, since boot",
        (
            one(
                300,
                {
                    **R3090,
                    "utilization_pct": 99.0,
                    "power_w": 314.0,
                    "throttle": _CAP,
                    "sm_clock_mhz": 1500.0,
                },
                U.PRODUCTIVE,
                chunks_per_s=40.0,
            ),
        ),
    ),
    Case(
        "power_sweep_down_and_up",
        "MMBT 2026, a sweep of vLLM: 573 W of 600 W, 450 W, and back; 2696, 2104 and 2696 MHz",
        tuple(
            one(
                90,
                {
                    "utilization_pct": 99.0,
                    "power_w": power_w,
                    "power_limit_w": limit_w,
                    "sm_clock_mhz": clock_mhz,
                    "sm_clock_max_mhz": 2790.0,
                    "throttle": _CAP if power_w == limit_w else _NONE,
                },
                label,
                chunks_per_s=900.0,
            )
            for power_w, limit_w, clock_mhz, label in (
                (573.0, 600.0, 2696.0, U.PRODUCTIVE),
                (450.0, 450.0, 2104.0, U.THROTTLED),
                (573.0, 600.0, 2696.0, U.PRODUCTIVE),
            )
        ),
    ),
)

NO_HANGS = (
    Case(
        "rests_known_before_the_first_request",
        "FIELD 25: a device of 40 W at rest, known from three samples, answers for minutes at 62 W",
        (
            one(3, _a100(40.0, 0.0), U.IDLE, work=QUIET),
            one(60, _a100(100.0), U.UNDERFED, completed_per_s=5.0),
            one(300, _a100(62.0), U.UNKNOWN, work=ALONE),
        ),
    ),
    Case(
        "works_below_the_assumed_rest",
        "a service at 14 % of the limit: long answers at that power are its work",
        (
            one(60, {**H100, "utilization_pct": 99.0, "power_w": 98.0}, U.UNDERFED, completed_per_s=5.0),
            one(300, {**H100, "utilization_pct": 99.0, "power_w": 95.0}, U.UNKNOWN, work=ALONE),
        ),
    ),
    Case(
        "cold_start_compiles",
        "vLLM's torch.compile and CUDA graph capture: minutes at 100 % and little power in a first request",
        (
            one(300, {**SPIN, "power_w": 120.0}, U.UNKNOWN, work={"in_flight": 1, "slo_s": 2.0}),
            one(30, FULL, U.PRODUCTIVE, completed_per_s=10.0),
        ),
    ),
    Case(
        "model_load",
        "a model is loaded while requests wait: copies keep the device below 10 %, then bursts of kernels",
        (
            one(120, {**REST, "utilization_pct": 3.0, "power_w": 95.0}, U.WORKING, work=ALONE),
            one(60, {**REST, "utilization_pct": 97.0, "power_w": 110.0}, U.UNKNOWN, work=ALONE),
            one(30, FULL, U.PRODUCTIVE, completed_per_s=10.0),
        ),
    ),
    Case(
        "answers_of_60_s",
        "FIELD: image and video models answer after a minute, at full power and without parts",
        (
            one(240, FULL, U.PRODUCTIVE, completed_per_s=1 / 60, work=_MINUTE),
            one(58, FULL, U.PRODUCTIVE, work=_MINUTE),
        ),
    ),
    Case(
        "mig_reports_no_utilization",
        "NVIDIA MIG user guide: no utilization of an instance, the share of active time by DCGM",
        (
            group(
                60,
                [
                    {"kind": "mig", "graphics_active_ratio": 0.95},
                    {"kind": "mig", "graphics_active_ratio": 0.02},
                    {"kind": "mig"},
                ],
                [U.UNKNOWN, U.IDLE, U.UNKNOWN],
                work=ALONE,
            ),
        ),
    ),
    Case(
        "time_slicing_with_a_foreign_pod",
        "NVIDIA k8s-device-plugin, time slicing: a neighbour fills the device while ours waits its turn",
        (
            one(60, {**FULL, "utilization_pct": 100.0}, U.PRODUCTIVE, completed_per_s=4.0),
            one(60, {**FULL, "utilization_pct": 100.0}, U.UNKNOWN, work=ALONE),
            one(60, {**FULL, "utilization_pct": 100.0}, U.UNKNOWN, work=QUIET),
        ),
    ),
    Case(
        "one_replica_of_eight_works",
        "eight replicas at little load: one long answer on one device at full power, seven rest",
        (_EIGHT_AT_WORK, group(60, [FULL] + [REST] * 7, [U.UNKNOWN] + [U.IDLE] * 7, work=ALONE)),
    ),
)

PUBLISHED_CASES = HANGS + CAPS + NO_HANGS
