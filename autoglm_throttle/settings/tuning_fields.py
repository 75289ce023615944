"""Constants of the concurrency limiter, policy ``adaptive``, the store, verdicts and degradation.

They come from ``CONFIG_FILE`` and code, never the environment. Normal operation needs no changes to them.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic_settings import BaseSettings, SettingsConfigDict

from autoglm_throttle.settings.control_fields import BUDGET
from autoglm_throttle.settings.field import CHOSEN, SIMULATED, setting
from autoglm_throttle.settings.field_types import Number, Size, Whole
from autoglm_throttle.types import STALL_S

_RESERVE = Number(0, 0.875, "share")
"""The smallest budget holds eight requests; with more than seven of them reserved none could be taken."""

KEYS_AT_LEAST = 8
"""Maximum keys of one request: four limits of a user and four of its address."""


class TuningFields(BaseSettings):
    """Declarations of the constants."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(defer_build=True)

    inflight_start: Annotated[int, Whole(1, 1_000_000, "requests")] = setting(
        64,
        "Concurrency limit until the service has been measured, for all workers together.",
        "simulated in the design: 2 to 64 end alike; "
        "64 rejects no request in the first second of 3000 requests",
        tuning=True,
    )
    inflight_floor: Annotated[int, Whole(1, 10_000, "requests")] = setting(
        2,
        "Lower bound of the adaptive concurrency limit, however slow the service.",
        "simulated in the design: 16 would break slow services",
        tuning=True,
    )
    wait_budget: Annotated[float, BUDGET] = setting(
        0.25,
        "Share of the objective that a request may wait in the queue.",
        "simulated in the design: below the time of one batch high loses 44 %",
        tuning=True,
    )
    period_s: Annotated[float, Number(0.05, 60, "s")] = setting(
        0.5, "Shortest time over which the service is measured.", SIMULATED, tuning=True
    )
    period_completions: Annotated[int, Whole(1, 1000, "requests")] = setting(
        8, "Finished requests that a measurement needs, unless it has lasted long.", SIMULATED, tuning=True
    )
    adaptive_headroom: Annotated[float, Number(1, 10, "x service rate")] = setting(
        1.15,
        "Under adaptive no rate falls below this multiple of the throughput.",
        SIMULATED,
        tuning=True,
    )
    adaptive_release_samples: Annotated[int, Whole(1, 1000, "samples")] = setting(
        2, "Samples without queued requests before adaptive restores the rates.", SIMULATED, tuning=True
    )
    reserve_mid: Annotated[float, _RESERVE] = setting(
        0.3, "Share of the reduced budget that mid leaves to high.", SIMULATED, tuning=True
    )
    reserve_low: Annotated[float, _RESERVE] = setting(
        0.6, "Share of the reduced budget that low leaves to high and mid.", SIMULATED, tuning=True
    )
    redis_in_flight: Annotated[int, Whole(1, 64, "calls")] = setting(
        2,
        "Calls to the Redis that are in flight at once, in each event loop.",
        "measured: 1, 2 and 4 are equal on loopback; the second hides the network latency of the first",
        tuning=True,
    )
    redis_batch_keys: Annotated[int, Whole(KEYS_AT_LEAST, 4096, "keys")] = setting(
        128,
        "Keys in one call at most.",
        "measured: 128 keys are about 0.6 ms of one core of the Redis",
        tuning=True,
    )
    redis_queue: Annotated[int, Whole(1, 1_000_000, "decisions")] = setting(
        4096,
        "Decisions that may wait for the Redis in each event loop; REDIS_ON_ERROR decides those beyond.",
        CHOSEN,
        tuning=True,
    )
    refused_cache_s: Annotated[float, Number(0.01, 60, "s")] = setting(
        1.0,
        "Longest lifetime of an entry in the deny cache; after it a raised limit takes effect.",
        CHOSEN,
        tuning=True,
    )
    fleet_lease_s: Annotated[float, Number(0.1, 60, "s")] = setting(
        1.0,
        "How long a process of a fleet may keep tokens that it does not need.",
        SIMULATED,
        tuning=True,
    )
    fleet_heartbeat_s: Annotated[float, Number(0.5, 300, "s")] = setting(
        5.0,
        "Heartbeat interval of a process of a fleet; after three missing heartbeats it counts as lost.",
        CHOSEN,
        tuning=True,
    )
    gpu_forget_s: Annotated[float, Number(1, 86_400, "s")] = setting(
        300.0,
        "Time for which a device that a dcgm or prometheus source no longer lists counts as lost; "
        "then it is removed.",
        CHOSEN,
        tuning=True,
    )
    verdict_power_stalled: Annotated[float, Number(0, 1, "share")] = setting(
        0.30,
        "Power as a share of its limit below which a busy device without progress is stalled.",
        "a hung collective drew 70 W (NVIDIA/nccl#968); not yet calibrated on a device of ours",
        tuning=True,
    )
    verdict_power_underfed: Annotated[float, Number(0, 1, "share")] = setting(
        0.40,
        "Power as a share of its limit below which a busy device with progress is underfed.",
        "a steady vLLM drew 320 of 700 W; not yet calibrated on a device of ours",
        tuning=True,
    )
    verdict_sm_stalled: Annotated[float, Number(0, 1, "share")] = setting(
        0.05,
        "Share of the multiprocessors with work below which a busy device without progress is stalled.",
        "one block on 132 of them is 0.008",
        tuning=True,
    )
    verdict_sm_underfed: Annotated[float, Number(0, 1, "share")] = setting(
        0.25,
        "Share of the multiprocessors with work below which a busy device with progress is underfed.",
        "the class 'busy, low SM use' of KempnerPulse",
        tuning=True,
    )
    verdict_stalled_s: Annotated[float, Number(10, 3600, "s")] = setting(
        10.0,
        "Time without progress after which a busy device is stalled; more where responses take longer.",
        CHOSEN,
        tuning=True,
    )
    breaker_store_deadline_s: Annotated[float, Number(STALL_S, 10, "s")] = setting(
        0.05,
        "Longest wait of a call for the Redis under BREAKER_SHARED, then the process decides by itself.",
        "that of REDIS_DEADLINE_S",
        tuning=True,
    )
    breaker_max_names: Annotated[int, Whole(1, 1_000_000, "names")] = setting(
        1000,
        "Maximum of guards; beyond it, closed and idle guards are removed.",
        CHOSEN,
        tuning=True,
    )
    degrade_margin: Annotated[float, Number(0, 1, "share")] = setting(
        0.05, "How far the load must fall below a threshold before its step is left.", CHOSEN, tuning=True
    )
    degrade_samples: Annotated[int, Whole(1, 100, "samples")] = setting(
        3, "Samples in a row that must agree before a step is taken.", "that of TIER_SAMPLES", tuning=True
    )
    degrade_load_stale_s: Annotated[float, Number(0.1, 3600, "s")] = setting(
        3.0,
        "Time for which a step stays without a sample, then nothing is shed; not set: three "
        "SAMPLE_INTERVAL_S, at least 3 s.",
        "that of GPU_STALE_AFTER_S",
        tuning=True,
    )
    degrade_cache_entries: Annotated[int, Whole(1, 10_000_000, "answers")] = setting(
        1024,
        "Maximum of cached responses for one guard; the least recently used one is evicted.",
        CHOSEN,
        tuning=True,
    )
    degrade_cache_body_bytes: Annotated[int, Size(1, 1 << 30)] = setting(
        1 << 20, "Longest body of an HTTP response that is cached.", CHOSEN, tuning=True
    )
