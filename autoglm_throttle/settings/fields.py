"""Every setting there is: type, form, default, meaning, and where the default comes from.

This table is the source of the settings page, of ``autoglm-throttle show`` and of every message.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar, Final

from pydantic import SecretStr
from pydantic_settings import SettingsConfigDict

from autoglm_throttle.model import Aggregate, Priority, Unknown
from autoglm_throttle.settings.caller_forms import (
    HeaderName,
    IdentityForm,
    Proxy,
    RequestPath,
    Secret,
)
from autoglm_throttle.settings.device_forms import Device, FilePath, GpuSources, LabelMatchers, PressureTerm
from autoglm_throttle.settings.field import CHOSEN, CONVENTION, FOUNDING, Setting, setting, setting_of
from autoglm_throttle.settings.form import Choice, Flag, Listed, Number, PriorityName, Whole, WithNone
from autoglm_throttle.settings.store_fields import StoreFields
from autoglm_throttle.settings.tuning_fields import TuningFields


class HeaderTrust(StrEnum):
    """How far a client's priority header is believed."""

    LOWER = "lower"
    PROXY = "proxy"
    ANY = "any"
    OFF = "off"


class HeaderStyle(StrEnum):
    """Which rate limit headers answers carry."""

    AUTO = "auto"
    IETF = "ietf"
    LEGACY = "legacy"
    NONE = "none"


class UnknownNames(StrEnum):
    """What a name with our prefix that nobody knows leads to."""

    ERROR = "error"
    WARN = "warn"


class MetricsExport(StrEnum):
    """Where the counts go."""

    AUTO = "auto"
    PROMETHEUS = "prometheus"
    OFF = "off"


class ServiceFields(StoreFields):
    """The declarations of everything that is told about a service and its callers."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(defer_build=True)

    identity: Annotated[str, IdentityForm()] = setting(
        "address", "What tells callers apart.", CHOSEN, starred=True
    )
    key_secret: Annotated[SecretStr | None, WithNone(Secret())] = setting(
        None,
        "Key of the hash that stands for a caller, one for all processes; not set: each draws its own, or "
        "with a shared store a fixed one that everybody knows.",
        CHOSEN,
        starred=True,
    )
    trusted_proxies: Annotated[tuple[str, ...], Listed(Proxy())] = setting(
        (), "Peers whose X-Forwarded-For is believed; not set: no header is read.", CHOSEN, starred=True
    )
    ipv6_prefix: Annotated[int, Whole(32, 128, "bits")] = setting(
        64, "IPv6 callers with the same first bits are one caller.", "a subscriber usually holds a /64"
    )
    priority_default: Annotated[Priority, PriorityName()] = setting(
        Priority.MID, "The priority of a request that states none.", CHOSEN, starred=True
    )
    priority_header: Annotated[str, HeaderName()] = setting(
        "x-priority", "The header in which a client states a priority.", CONVENTION
    )
    priority_header_trust: Annotated[HeaderTrust, Choice(HeaderTrust)] = setting(
        HeaderTrust.LOWER,
        "lower: it may only lower; proxy: a trusted proxy may raise; any: everyone may; off: not read.",
        CHOSEN,
    )
    deadline_header: Annotated[str | None, WithNone(HeaderName())] = setting(
        None,
        "A header in which a client states how soon it needs the answer: seconds, 1.5, or 800ms; it may "
        "shorten the objective, never lengthen it. Not set: none is read.",
        CHOSEN,
    )
    exempt_paths: Annotated[tuple[str, ...], Listed(RequestPath())] = setting(
        ("/health", "/healthz", "/livez", "/readyz", "/metrics"),
        "Paths that are never charged nor refused, compared as received. A value replaces the whole list.",
        CONVENTION,
        starred=True,
    )
    headers: Annotated[HeaderStyle, Choice(HeaderStyle)] = setting(
        HeaderStyle.AUTO,
        "RateLimit headers of draft-ietf-httpapi-ratelimit-headers-11 (ietf, auto), "
        "those and X-RateLimit (legacy), or none.",
        CHOSEN,
    )
    retry_after_max_s: Annotated[float, Number(1, 31_536_000, "s")] = setting(
        120.0, "Longest Retry-After that is sent.", "client SDKs give up above 120 s"
    )
    retry_jitter: Annotated[float, Number(0, 1, "share")] = setting(
        0.1,
        "Share by which Retry-After is lengthened at random, so that refused callers do not return together.",
        CHOSEN,
    )
    gpu: Annotated[tuple[str, ...], GpuSources()] = setting(
        ("auto",),
        "Where telemetry comes from, joined if several: the NVIDIA driver (nvml), dcgm-exporter, a "
        "Prometheus server, the engines vLLM and SGLang, a replayed file, nowhere; auto tries nvml.",
        CHOSEN,
        starred=True,
    )
    gpu_devices: Annotated[tuple[str, ...], Listed(Device())] = setting(
        (), "Devices that count; not set: those of CUDA_VISIBLE_DEVICES, else all.", CONVENTION
    )
    gpu_selector: Annotated[str, LabelMatchers()] = setting(
        "", "Which series of a prometheus: source count; not set: every card that the server knows.", CHOSEN
    )
    gpu_required: Annotated[bool, Flag()] = setting(
        False, "Whether a start without a first sample fails.", CHOSEN
    )
    sample_interval_s: Annotated[float, Number(0.2, 60, "s")] = setting(
        1.0, "Time from one sample to the next.", FOUNDING, starred=True
    )
    gpu_aggregate: Annotated[Aggregate, Choice(Aggregate)] = setting(
        Aggregate.WEIGHTED,
        "How several devices become one number: weighted by memory, mean, or the hottest.",
        CHOSEN,
    )
    gpu_unknown: Annotated[Unknown, Choice(Unknown)] = setting(
        Unknown.OPEN,
        "What is assumed once samples stay away: full rates, the last factor, factor 0.7, or a closed door.",
        CHOSEN,
    )
    gpu_stale_after_s: Annotated[float | None, WithNone(Number(0.2, 86_400, "s"))] = setting(
        None, "Age from which a sample is believed less and less; not set: 3 intervals, at least 3 s.", CHOSEN
    )
    gpu_blind_after_s: Annotated[float, Number(0.4, 86_400, "s")] = setting(
        30.0, "Age from which it is not believed at all; at least twice the age above.", CHOSEN
    )
    gpu_memory_target: Annotated[float, Number(0.1, 1, "share")] = setting(
        0.92,
        "Share of device memory that may be full: the gate learns what a request needs and stays below it.",
        CHOSEN,
    )
    gpu_pressure_terms: Annotated[tuple[str, ...], Listed(PressureTerm())] = setting(
        ("memory", "latency"),
        "Loads of which the largest is the pressure: fullest device over GPU_MEMORY_TARGET, P95 over SLO_S.",
        CHOSEN,
    )
    metrics: Annotated[MetricsExport, Choice(MetricsExport)] = setting(
        MetricsExport.AUTO, "auto: to prometheus-client if it is installed.", CHOSEN, starred=True
    )
    log_refused_every_s: Annotated[float, Number(0.1, 86_400, "s")] = setting(
        10.0, "Refusals for one reason are logged at most once in this time.", CHOSEN
    )
    config_file: Annotated[Path | None, WithNone(FilePath())] = setting(
        None, "TOML with routes, plans, and any of these settings in lower case.", CHOSEN, starred=True
    )
    unknown_env: Annotated[UnknownNames, Choice(UnknownNames)] = setting(
        UnknownNames.ERROR,
        "What an unknown name with our prefix is: an error, or a warning for going back a version.",
        CHOSEN,
    )


class Fields(TuningFields, ServiceFields):
    """Every declaration, in the order of the settings page; ``Settings`` adds how values come in."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(defer_build=True)


SETTINGS: Final[Mapping[str, Setting]] = {
    name: setting_of(name, info) for name, info in Fields.model_fields.items()
}
"""Name -> setting, in the order of the settings page."""
