"""The labelled set: traces whose verdict is known, made by us or rebuilt from published figures.

Where a publication gives no power limit, multiprocessor share or concurrency, the figure is ours and says so.
"""

from __future__ import annotations

from typing import Any

from autoglm_throttle.types import GpuCondition
from tests.gpu.cases.replay_case import Case, Phase

H100: dict[str, Any] = {"power_limit_w": 700.0, "sm_clock_max_mhz": 1980.0}
SERVING: dict[str, Any] = {"in_flight": 32, "p95_s": 1.0, "slo_s": 2.0}
QUIET: dict[str, Any] = {"slo_s": 2.0}
SPIN: dict[str, Any] = {**H100, "utilization_pct": 100.0, "power_w": 70.0}
FULL: dict[str, Any] = {**H100, "utilization_pct": 99.0, "power_w": 560.0, "sm_active_ratio": 0.8}
REST: dict[str, Any] = {**H100, "utilization_pct": 0.0, "power_w": 72.0, "sm_active_ratio": 0.0}

U = GpuCondition


def one(seconds: int, device: dict[str, Any], label: GpuCondition, **rest: Any) -> Phase:
    return Phase(seconds, (device,), (label,), **{"work": SERVING, **rest})


HEALTHY = one(30, FULL, U.PRODUCTIVE, completed_per_s=10.0)

PUBLISHED = (
    Case(
        "nccl_968",
        "NVIDIA/nccl#968: utilization 100 % at about 70 W in a hung collective; limit and traffic ours",
        (HEALTHY, one(20, SPIN, U.STALLED)),
    ),
    Case(
        "nccl_968_on_300_w",
        "the same on a card of 300 W",
        (
            one(30, {**FULL, "power_w": 250.0, "power_limit_w": 300.0}, U.PRODUCTIVE, completed_per_s=10.0),
            one(20, {**SPIN, "power_limit_w": 300.0}, U.STALLED),
        ),
    ),
    Case(
        "vllm_steady",
        "Ingero: a healthy vLLM server holds 320 W at 2180 tokens/s; limit ours",
        (
            one(
                120,
                {**H100, "utilization_pct": 98.0, "power_w": 320.0},
                U.PRODUCTIVE,
                engine={"tokens_per_s": 2180.0, "running": 32, "queued": 0},
            ),
        ),
    ),
    Case(
        "vllm_degraded",
        "Ingero: 320 W held while 2180 tokens/s fell to 730",
        (
            one(
                120,
                {**H100, "utilization_pct": 98.0, "power_w": 320.0},
                U.PRODUCTIVE,
                engine={"tokens_per_s": 2180.0, "running": 32, "queued": 0},
            ),
            one(
                180,
                {**H100, "utilization_pct": 98.0, "power_w": 320.0},
                U.DEGRADED,
                engine={"tokens_per_s": 730.0, "running": 32, "queued": 9},
            ),
            one(
                60,
                {**H100, "utilization_pct": 98.0, "power_w": 320.0},
                U.PRODUCTIVE,
                engine={"tokens_per_s": 2180.0, "running": 32, "queued": 0},
            ),
        ),
    ),
    Case(
        "vllm_degraded_by_our_own_count",
        "the same seen without the engine: streamed parts",
        (
            one(120, {**FULL, "power_w": 320.0}, U.PRODUCTIVE, chunks_per_s=2180.0),
            one(180, {**FULL, "power_w": 320.0}, U.DEGRADED, chunks_per_s=730.0),
        ),
    ),
    Case(
        "power_sweep_450_w",
        "a power sweep of vLLM on a 600 W card: 2696 MHz at 573 W, 2104 MHz at a cap of 450 W (MMBT, 2026)",
        (
            one(
                60,
                {
                    "utilization_pct": 99.0,
                    "power_w": 573.0,
                    "power_limit_w": 600.0,
                    "sm_clock_mhz": 2696.0,
                    "sm_clock_max_mhz": 2790.0,
                    "throttle": frozenset(),
                },
                U.PRODUCTIVE,
                completed_per_s=20.0,
            ),
            one(
                120,
                {
                    "utilization_pct": 99.0,
                    "power_w": 448.0,
                    "power_limit_w": 450.0,
                    "sm_clock_mhz": 2104.0,
                    "sm_clock_max_mhz": 2790.0,
                    "throttle": frozenset({"sw_power_cap"}),
                },
                U.THROTTLED,
                completed_per_s=20.0,
            ),
        ),
    ),
    Case(
        "thermal_equilibrium_h200",
        "an H200 NVL in a server with too little air: steady 1635 MHz with power and thermal slowdown",
        (
            one(
                90,
                {
                    "utilization_pct": 100.0,
                    "power_w": 590.0,
                    "power_limit_w": 600.0,
                    "sm_clock_mhz": 1635.0,
                    "sm_clock_max_mhz": 1785.0,
                    "throttle": frozenset({"sw_power_cap", "sw_thermal"}),
                },
                U.THROTTLED,
                completed_per_s=20.0,
            ),
        ),
    ),
)


def kempner(
    name: str, label: GpuCondition, *, util: float = 97.0, per_s: float = 10.0, **ratios: float
) -> Case:
    fields = {f"{what}_ratio": value for what, value in ratios.items()}
    device = {"utilization_pct": util, **fields}
    phase = one(20, device, label, completed_per_s=per_s, work=SERVING if per_s else QUIET)
    return Case(f"kempner_{name}", f"KempnerPulse, docs/classification.md: {name}", (phase,))


KEMPNER = (
    kempner("idle", U.IDLE, util=0.0, per_s=0.0, sm_active=0.0, dram_active=0.01, tensor_active=0.0),
    kempner("tensor_heavy", U.PRODUCTIVE, sm_active=0.85, tensor_active=0.6, dram_active=0.4),
    kempner("tensor", U.PRODUCTIVE, sm_active=0.45, tensor_active=0.2, dram_active=0.2),
    kempner("fp64", U.PRODUCTIVE, sm_active=0.6, tensor_active=0.0, dram_active=0.2),
    kempner("io_or_data_loading", U.UNDERFED, sm_active=0.2, tensor_active=0.02, dram_active=0.1),
    kempner("memory_bound", U.PRODUCTIVE, sm_active=0.35, tensor_active=0.05, dram_active=0.7),
    kempner("memory_bound_few_sm", U.PRODUCTIVE, sm_active=0.2, tensor_active=0.05, dram_active=0.55),
    kempner("compute_heavy", U.PRODUCTIVE, sm_active=0.9, tensor_active=0.05, dram_active=0.2),
    kempner("compute_active", U.PRODUCTIVE, sm_active=0.55, tensor_active=0.05, dram_active=0.2),
    kempner("memory_active", U.PRODUCTIVE, sm_active=0.3, tensor_active=0.05, dram_active=0.45),
    kempner("busy_low_sm", U.UNDERFED, sm_active=0.15, tensor_active=0.02, dram_active=0.1),
    kempner("busy_low_sm_not_called_busy", U.WORKING, util=50.0, sm_active=0.15, dram_active=0.1),
    kempner("low_utilization", U.WORKING, util=12.0, per_s=1.0, sm_active=0.1, dram_active=0.1),
    kempner("mixed", U.WORKING, util=60.0, sm_active=0.4, dram_active=0.3, tensor_active=0.1),
)

CAPPED: dict[str, Any] = {**FULL, "power_w": 690.0, "throttle": frozenset({"sw_power_cap"})}
SOLD: dict[str, Any] = {**CAPPED, "sm_clock_mhz": 1485.0, "power_limit_default_w": 700.0}
"""A device at its default power limit and three quarters of the highest clock."""
LOWERED: dict[str, Any] = {"sm_clock_mhz": 990.0, "power_w": 395.0, "power_limit_w": 400.0}
MIG: dict[str, Any] = {"kind": "mig", "graphics_active_ratio": 0.99}
TINY: dict[str, Any] = {**H100, "utilization_pct": 100.0, "power_w": 125.0, "sm_active_ratio": 0.01}

SMALL: dict[str, Any] = {**H100, "utilization_pct": 100.0, "power_w": 170.0}
ALONE: dict[str, Any] = {"in_flight": 1, "p95_s": 0.5, "slo_s": 2.0}

SYNTHETIC = (
    Case(
        "memory_bound_decode",
        "one stream of a large model: memory at its practical peak, multiprocessors half used",
        (
            one(
                30,
                {**FULL, "power_w": 300.0, "sm_active_ratio": 0.45, "dram_active_ratio": 0.75},
                U.PRODUCTIVE,
                chunks_per_s=60.0,
            ),
        ),
    ),
    Case(
        "memory_bound_decode_at_little_power",
        "the same on a card that draws a third of its limit then",
        (
            one(
                30,
                {**FULL, "power_w": 230.0, "sm_active_ratio": 0.2, "dram_active_ratio": 0.75},
                U.PRODUCTIVE,
                chunks_per_s=60.0,
            ),
        ),
    ),
    Case(
        "saturated_but_healthy_vllm",
        "100 % with an empty queue",
        (
            one(
                120,
                {**FULL, "utilization_pct": 100.0, "throttle": frozenset(), "sm_clock_mhz": 1750.0},
                U.PRODUCTIVE,
                engine={"tokens_per_s": 5200.0, "running": 64, "queued": 1, "kv_used_ratio": 0.6},
            ),
        ),
    ),
    Case(
        "below_the_boost_clock_without_a_reason",
        "a healthy card under dense work clocks low and no bit or time says that it is slowed down",
        (
            one(
                60,
                {**FULL, "sm_clock_mhz": 1300.0, "throttle": frozenset(), "throttled_ratio": 0.0},
                U.PRODUCTIVE,
                completed_per_s=10.0,
            ),
        ),
    ),
    Case(
        "at_its_power_limit_every_day",
        "slow against the boost clock, at the limit of the start; then that limit is lowered",
        (
            one(20, {**CAPPED, "sm_clock_mhz": 1400.0}, U.PRODUCTIVE, completed_per_s=10.0),
            one(60, {**CAPPED, "sm_clock_mhz": 1400.0}, U.PRODUCTIVE, completed_per_s=10.0),
            one(30, {**CAPPED, "sm_clock_mhz": 1290.0}, U.PRODUCTIVE, completed_per_s=10.0),
            one(
                90,
                {**CAPPED, "sm_clock_mhz": 990.0, "power_w": 395.0, "power_limit_w": 400.0},
                U.THROTTLED,
                completed_per_s=10.0,
            ),
        ),
    ),
    Case(
        "at_the_limit_it_was_sold_with",
        "a healthy card under dense work; then its limit is lowered, then it is hot at its own limit",
        (
            one(4, SOLD, U.PRODUCTIVE, completed_per_s=10.0),
            one(90, SOLD, U.PRODUCTIVE, completed_per_s=10.0),
            one(90, {**SOLD, **LOWERED}, U.THROTTLED, completed_per_s=10.0),
            one(30, SOLD, U.PRODUCTIVE, completed_per_s=10.0),
            one(
                90,
                {**SOLD, "throttle": frozenset({"sw_power_cap", "sw_thermal"})},
                U.THROTTLED,
                completed_per_s=10.0,
            ),
        ),
    ),
    Case(
        "limited_from_the_start",
        "its limit was lowered before the start: a cap of the owner is no slowdown",
        (one(300, {**SOLD, **LOWERED}, U.PRODUCTIVE, completed_per_s=10.0),),
    ),
    Case(
        "limited_by_a_source_that_tells_no_default",
        "the limit of the start counts, whatever the default is",
        (
            one(20, {**SOLD, **LOWERED, "power_limit_default_w": None}, U.PRODUCTIVE, completed_per_s=10.0),
            one(60, {**SOLD, **LOWERED, "power_limit_default_w": None}, U.PRODUCTIVE, completed_per_s=10.0),
        ),
    ),
    Case(
        "slowed_down_by_heat",
        "the bits alone, no clock known",
        (one(10, {**FULL, "throttle": frozenset({"hw_thermal"})}, U.THROTTLED, completed_per_s=10.0),),
    ),
    Case(
        "slowed_down_by_the_time_it_took",
        "an exporter that tells no bits",
        (one(10, {**FULL, "throttled_ratio": 0.6}, U.THROTTLED, completed_per_s=10.0),),
    ),
    Case(
        "starved_by_the_host",
        "work waits, the card is half full, the host is busy",
        (
            one(
                20,
                {**FULL, "utilization_pct": 45.0},
                U.STARVED,
                completed_per_s=10.0,
                work={**SERVING, "waiting": 12, "host_load": 1.3, "host_iowait": 0.02},
            ),
        ),
    ),
    Case(
        "starved_at_the_limit_in_flight",
        "nobody stands in line, for the limit is what holds the work back",
        (
            one(
                20,
                {**FULL, "utilization_pct": 45.0},
                U.STARVED,
                completed_per_s=10.0,
                work={**SERVING, "at_limit": True},
            ),
        ),
    ),
    Case("mig_with_graphics_active_only", "no other signal", (one(20, MIG, U.UNKNOWN, completed_per_s=9.0),)),
    Case(
        "mig_with_gpm",
        "multiprocessors are told, power is not",
        (one(20, {**MIG, "sm_active_ratio": 0.1}, U.UNDERFED, completed_per_s=9.0),),
    ),
    Case(
        "one_tiny_kernel",
        "one block in a loop: every sample finds a kernel, one of 132 multiprocessors has work",
        (one(20, TINY, U.UNDERFED, completed_per_s=3.0),),
    ),
    Case(
        "one_tiny_kernel_rare_answers",
        "one answer every four seconds is progress",
        (one(40, TINY, U.UNDERFED, completed_per_s=0.25, work={**SERVING, "p95_s": 4.0, "slo_s": 9.0}),),
    ),
    Case(
        "one_tiny_kernel_slow_answers",
        "an answer takes 35 s, so 20 s of silence is nothing",
        (
            one(
                120,
                TINY,
                U.UNDERFED,
                completed_per_s=1 / 30,
                work={"in_flight": 1, "p95_s": 35.0, "slo_s": 60.0},
            ),
            one(20, TINY, U.UNDERFED, work={"in_flight": 1, "p95_s": 35.0, "slo_s": 60.0}),
            one(40, TINY, U.UNKNOWN, work={"in_flight": 1, "p95_s": 35.0, "slo_s": 60.0}),
            one(
                20, {**SPIN, "power_w": 25.0}, U.STALLED, work={"in_flight": 1, "p95_s": 35.0, "slo_s": 60.0}
            ),
        ),
    ),
    Case(
        "long_answer_of_a_small_model",
        "170 W of 700 W is what this card draws at work: an answer of five minutes is no hang, 75 W are",
        (
            one(60, SMALL, U.UNDERFED, completed_per_s=5.0),
            one(300, SMALL, U.UNKNOWN, work=ALONE),
            one(20, SMALL, U.UNDERFED, completed_per_s=5.0),
            one(20, {**SMALL, "power_w": 40.0}, U.STALLED, work=ALONE),
        ),
    ),
    Case(
        "only_long_answers",
        "answers of 100 s, one by one: what the card drew for the first is known to be work once it is there",
        (
            one(100, SMALL, U.UNKNOWN, completed_per_s=1 / 100, work=ALONE),
            one(10, {**SMALL, "utilization_pct": 0.0, "power_w": 75.0}, U.IDLE, work=QUIET),
            one(99, SMALL, U.UNKNOWN, work=ALONE),
        ),
    ),
    Case(
        "few_multiprocessors_at_work",
        "one stream of a tiny model uses 3 % of the multiprocessors, and 1 % while it hangs",
        (
            one(60, {**SMALL, "sm_active_ratio": 0.03}, U.UNDERFED, completed_per_s=5.0),
            one(60, {**SMALL, "sm_active_ratio": 0.025}, U.UNKNOWN, work=ALONE),
            one(20, {**SMALL, "sm_active_ratio": 0.01}, U.STALLED, work=ALONE),
        ),
    ),
    Case(
        "silent_and_the_memory_works",
        "a silent card whose memory moves data half of the time computes, however little it draws",
        (one(60, {**SPIN, "dram_active_ratio": 0.5}, U.UNKNOWN, work=ALONE),),
    ),
    Case(
        "low_use_but_late",
        "more requests at once would not help a service that is late already",
        (one(20, TINY, U.UNKNOWN, completed_per_s=3.0, work={**SERVING, "p95_s": 4.0}),),
    ),
    Case(
        "foreign_process",
        "100 %, and nothing of ours in flight: never a stall of ours",
        (one(60, {**SPIN, "sm_active_ratio": 0.01}, U.UNKNOWN, work=QUIET),),
    ),
    Case(
        "foreign_process_then_our_first_request",
        "ours has just begun: silence before it is not its silence",
        (
            one(60, SPIN, U.UNKNOWN, work=QUIET),
            one(8, SPIN, U.UNKNOWN, work={"in_flight": 1, "slo_s": 2.0}),
        ),
    ),
    Case(
        "slow_answers_after_a_quiet_hour",
        "the first request for long is not late before it has taken what answers take",
        (
            HEALTHY,
            one(90, SPIN, U.UNKNOWN, work={"p95_s": 35.0, "slo_s": 60.0}),
            one(30, SPIN, U.UNKNOWN, work={"in_flight": 1, "p95_s": 35.0, "slo_s": 60.0}),
            one(15, SPIN, U.STALLED, work={"in_flight": 1, "p95_s": 35.0, "slo_s": 60.0}),
        ),
    ),
    Case(
        "long_computation",
        "nothing comes out for a minute, and the power says that it computes",
        (one(60, {**FULL, "power_w": 500.0}, U.UNKNOWN, work={"in_flight": 1, "slo_s": 2.0}),),
    ),
    Case(
        "stall_and_recovery",
        "it ends when something comes out, not because utilization falls",
        (
            HEALTHY,
            one(20, SPIN, U.STALLED),
            one(9, REST, U.STALLED),
            one(15, FULL, U.PRODUCTIVE, completed_per_s=10.0),
        ),
    ),
    Case(
        "stall_and_everybody_left",
        "nothing in flight for ten seconds ends it, too",
        (
            HEALTHY,
            one(20, SPIN, U.STALLED),
            one(9, SPIN, U.STALLED, work=QUIET),
            one(6, SPIN, U.UNKNOWN, work=QUIET),
        ),
    ),
    Case(
        "engine_hangs",
        "its page answers, its tokens stand still",
        (
            one(60, FULL, U.PRODUCTIVE, engine={"tokens_per_s": 900.0, "running": 8}),
            one(25, SPIN, U.STALLED, engine={"tokens_per_s": 0.0, "running": 8}),
        ),
    ),
    Case("idle", "nothing to do", (one(20, REST, U.IDLE, work=QUIET),)),
    Case("working", "neither", (one(20, {**FULL, "utilization_pct": 40.0}, U.WORKING, completed_per_s=5.0),)),
    Case("nothing_known", "a card that tells nothing", (one(20, {}, U.UNKNOWN),)),
    Case(
        "lost_and_back",
        "at once",
        (HEALTHY, one(1, {"health": "lost"}, U.LOST), one(5, FULL, U.PRODUCTIVE, completed_per_s=10.0)),
    ),
    Case(
        "tensor_parallel_hang",
        "one rank died and rests, the others wait for it at 100 %",
        (
            Phase(30, (FULL, FULL, FULL, FULL), (U.PRODUCTIVE,) * 4, chunks_per_s=900.0, work=SERVING),
            Phase(25, (SPIN, SPIN, REST, SPIN), (U.STALLED, U.STALLED, U.IDLE, U.STALLED), work=SERVING),
        ),
    ),
    Case(
        "one_card_is_not_ours",
        "a card rests while another works: idle, though requests wait",
        (
            Phase(
                20,
                (FULL, REST),
                (U.PRODUCTIVE, U.IDLE),
                completed_per_s=9.0,
                work={**SERVING, "waiting": 5},
            ),
            Phase(
                20,
                ({**FULL, "utilization_pct": 50.0}, REST),
                (U.STARVED, U.IDLE),
                completed_per_s=9.0,
                work={**SERVING, "waiting": 5},
            ),
        ),
    ),
    Case(
        "one_replica_is_full",
        "requests wait for the full one: the other is badly balanced, not starved by the host",
        (
            Phase(
                20,
                (FULL, {**FULL, "utilization_pct": 40.0}),
                (U.PRODUCTIVE, U.WORKING),
                completed_per_s=9.0,
                work={**SERVING, "waiting": 5},
            ),
        ),
    ),
    Case(
        "replica_hangs_beside_one_that_works",
        "something comes out, so it is no stall by our counters; it shows as underfed",
        (Phase(40, (FULL, SPIN), (U.PRODUCTIVE, U.UNDERFED), completed_per_s=9.0, work=SERVING),),
    ),
)

CASES = (*PUBLISHED, *KEMPNER, *SYNTHETIC)
