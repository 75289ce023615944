"""Settings of admission: the policy, the rates, the concurrency limit and its queue, the tier table."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic_settings import BaseSettings, SettingsConfigDict

from autoglm_throttle.settings.device_field_types import Tiers, TierTableType
from autoglm_throttle.settings.field import CHOSEN, FOUNDING, SIMULATED, setting
from autoglm_throttle.settings.field_types import ChoiceType, Flag, Number, Whole
from autoglm_throttle.types import BorrowMode, Policy, Signal, WebSocketMode

_RATE = Number(0.001, 1_000_000, "requests/s")

BUDGET = Number(0, 1, "share", above=True)
"""A share of an objective: at 0 no request could run, above 1 the objective would not be met."""

OBJECTIVE = Number(0.001, 86_400, "s")
"""An objective for one response."""


class ControlSettings(BaseSettings):
    """Declarations of the settings of policy, rates, concurrency limit and tier table."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(defer_build=True)

    policy: Annotated[Policy, ChoiceType(Policy, renamed={"gate": Policy.CONCURRENCY})] = setting(
        Policy.ADAPTIVE,
        "tiers: the table of TIERS scales the rates, with or without traffic. concurrency: an adaptive "
        "concurrency limit with a queue; needs no GPU. adaptive: the concurrency limit, and the table "
        "while requests are queued. fixed: the rates alone.",
        CHOSEN,
        starred=True,
    )
    signal: Annotated[Signal, ChoiceType(Signal)] = setting(
        Signal.AUTO,
        "Signal that the edges of TIERS apply to: utilization, or pressure, which is 100 % at the targets "
        "of GPU_PRESSURE_TERMS. auto: utilization unless a source reports the queue of an engine.",
        CHOSEN,
    )
    dry_run: Annotated[bool, Flag()] = setting(
        False,
        "Whether rejections are only counted; no request is queued. Requests that would be rejected still "
        "load the service, so lasting overload is overstated.",
        CHOSEN,
        starred=True,
    )
    rate_high_rps: Annotated[float, _RATE] = setting(
        1000.0,
        "Requests of priority high admitted per second, by all workers together.",
        FOUNDING,
        starred=True,
    )
    rate_mid_rps: Annotated[float, _RATE] = setting(
        500.0, "The same for priority mid.", FOUNDING, starred=True
    )
    rate_low_rps: Annotated[float, _RATE] = setting(
        100.0, "The same for priority low.", FOUNDING, starred=True
    )
    burst_s: Annotated[float, Number(0.001, 3600, "s")] = setting(
        1.0, "Seconds of its rate that a bucket can hold, at least one request.", SIMULATED
    )
    borrow: Annotated[BorrowMode, ChoiceType(BorrowMode)] = setting(
        BorrowMode.OFF,
        "Buckets from which a class may take tokens when its own is short: "
        "those of less important classes (down), any.",
        CHOSEN,
    )
    workers: Annotated[int, Whole(1, 10_000, "processes")] = setting(
        1,
        "Processes that share the priority rates; each gets its part. User limits are divided only while "
        "a shared store is unavailable.",
        CHOSEN,
        starred=True,
    )
    slo_s: Annotated[float, OBJECTIVE] = setting(
        2.0,
        "Target time for a complete response, queueing included. LLM responses take longer: set it.",
        "founding figure: P95 above 2 s is an alert",
        starred=True,
    )
    latency_budget: Annotated[float, BUDGET] = setting(
        0.2,
        "Share of SLO_S that a request may spend inside the service. Less: shorter times for priority high; "
        "more: fuller batches.",
        "measured by benchmarks.closed_loop: goodput is almost equal from 0.12 to 0.6, "
        "less means shorter times",
    )
    inflight_max: Annotated[int, Whole(0, 1_000_000, "requests")] = setting(
        0,
        "Maximum of requests in flight in each process under every policy; it caps the adaptive limit. 0: "
        "no maximum.",
        CHOSEN,
        starred=True,
    )
    queue_max: Annotated[int, Whole(0, 1_000_000, "requests")] = setting(
        1024, "Requests of one priority that may be queued; 0: no queue.", CHOSEN
    )
    min_share: Annotated[float, Number(0, 0.2, "share")] = setting(
        0.02,
        "Share of the throughput reserved for mid and low together, however large the demand of high.",
        "simulated in the design: costs high 1.8 % at ten times the capacity",
    )
    websockets: Annotated[WebSocketMode, ChoiceType(WebSocketMode)] = setting(
        WebSocketMode.RATE,
        "rate: a websocket is charged when it connects; slot: it is also in flight as long as it is open.",
        CHOSEN,
    )
    tiers: Annotated[Tiers, TierTableType()] = setting(
        ((85.0, 0.7), (90.0, 0.4), (95.0, 0.0)),
        "Above each edge of the signal, rates are multiplied by the factor; 0 rejects all new requests, "
        "under adaptive those above the throughput.",
        FOUNDING,
        starred=True,
    )
    tier_samples: Annotated[int, Whole(1, 100, "samples")] = setting(
        3, "Consecutive samples above the first edge before the table acts.", FOUNDING
    )
    tier_release_samples: Annotated[int, Whole(1, 1000, "samples")] = setting(
        1, "Consecutive calmer samples before the factor rises again.", "founding figure, taken literally"
    )
    tier_release_margin_pct: Annotated[float, Number(0, 100, "%")] = setting(
        0.0, "How far below an edge a sample must be to count as calmer.", "founding figure, taken literally"
    )
    tier_recovery_step: Annotated[float, Number(0, 1, "share", above=True)] = setting(
        1.0, "How much the factor may rise with one sample.", "founding figure, taken literally"
    )
