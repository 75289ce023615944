"""Settings of GPU telemetry: sources, sampling intervals, and targets."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic_settings import SettingsConfigDict

from autoglm_throttle.settings.caller_fields import CallerSettings
from autoglm_throttle.settings.device_field_types import Device, GpuSources, LabelMatchers, PressureTerm
from autoglm_throttle.settings.field import CHOSEN, CONVENTION, FOUNDING, setting
from autoglm_throttle.settings.field_types import ChoiceType, Flag, Listed, Number, Whole, WithNone
from autoglm_throttle.types import AggregateMode, MissingTelemetryMode

GIE: Final = "the utilization detector of the Gateway API inference extension"


class GpuSettings(CallerSettings):
    """Declarations of the settings of GPU telemetry."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(defer_build=True)

    gpu: Annotated[tuple[str, ...], GpuSources()] = setting(
        ("auto",),
        "Where telemetry comes from, joined if several: the NVIDIA driver (nvml), dcgm-exporter, a "
        "Prometheus server, the engines vLLM and SGLang, a replayed file, nowhere; auto tries nvml.",
        CHOSEN,
        starred=True,
    )
    gpu_devices: Annotated[tuple[str, ...], Listed(Device())] = setting(
        (),
        "Devices of the NVIDIA driver (auto, nvml) that count; not set: those of CUDA_VISIBLE_DEVICES, "
        "else all. Scraped or replayed sources report all their devices.",
        CONVENTION,
    )
    gpu_selector: Annotated[str, LabelMatchers()] = setting(
        "", "Series of a prometheus: source that count; not set: every device that the server knows.", CHOSEN
    )
    gpu_required: Annotated[bool, Flag()] = setting(
        False, "Whether a start fails unless each source that GPU names delivers data within 5 s.", CHOSEN
    )
    sample_interval_s: Annotated[float, Number(0.2, 60, "s")] = setting(
        1.0, "Time from one sample to the next.", FOUNDING, starred=True
    )
    sample_adaptive: Annotated[bool, Flag()] = setting(
        False,
        "Whether an idle service is sampled less often: 10 times the interval below 30 % load, 5 times below "
        "70 %, at most every SAMPLE_INTERVAL_MAX_S.",
        FOUNDING,
    )
    sample_interval_max_s: Annotated[float, Number(0.2, 600, "s")] = setting(
        10.0, "Longest time from one sample to the next with SAMPLE_ADAPTIVE.", FOUNDING
    )
    gpu_aggregate: Annotated[AggregateMode, ChoiceType(AggregateMode)] = setting(
        AggregateMode.WEIGHTED,
        "How several devices become one number: weighted by memory, mean, or the hottest.",
        CHOSEN,
    )
    gpu_unknown: Annotated[MissingTelemetryMode, ChoiceType(MissingTelemetryMode)] = setting(
        MissingTelemetryMode.OPEN,
        "Assumption once samples are missing: full rates, the last factor, factor 0.7, or factor 0.",
        CHOSEN,
    )
    gpu_stale_after_s: Annotated[float | None, WithNone(Number(0.2, 86_400, "s"))] = setting(
        None, "Age from which a sample counts less and less; not set: 3 intervals, at least 3 s.", CHOSEN
    )
    gpu_blind_after_s: Annotated[float, Number(0.4, 86_400, "s")] = setting(
        30.0, "Age from which a sample is ignored; at least twice the stale age.", CHOSEN
    )
    gpu_memory_target: Annotated[float, Number(0.1, 1, "share")] = setting(
        0.92,
        "Share of device memory that may be full: "
        "the concurrency limiter learns the memory of a request and stays below it.",
        CHOSEN,
    )
    gpu_queue_target: Annotated[int, Whole(1, 100_000, "requests")] = setting(
        5, "Requests waiting inside each engine that count as a full load.", GIE
    )
    gpu_kv_target: Annotated[float, Number(0.01, 1, "share")] = setting(
        0.8, "Fill of the engines' key-value caches that counts as a full load.", GIE
    )
    gpu_pressure_terms: Annotated[tuple[str, ...], Listed(PressureTerm())] = setting(
        ("queue", "kv", "memory", "latency"),
        "Loads of which the largest is the pressure: requests waiting in the engines over GPU_QUEUE_TARGET, "
        "their caches over GPU_KV_TARGET, without engines the fullest device over GPU_MEMORY_TARGET, P95 "
        "over SLO_S; compute is for models with batches of a fixed size.",
        CHOSEN,
    )
