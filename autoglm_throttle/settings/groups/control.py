"""Settings of admission: the policy, the rates, the concurrency limit and its queue, the tier table."""

from itertools import pairwise
from typing import Annotated, ClassVar, Final

from autoglm_throttle.settings import field_types as f
from autoglm_throttle.settings.field_types import (
    FieldType,
    FieldTypeError,
    choice,
    number,
    plain,
    whole,
    word,
)
from autoglm_throttle.settings.groups.base import Group
from autoglm_throttle.types import BorrowMode, Fairness, Policy, Signal, WebSocketMode

TIERS_AT_MOST: Final = 20  # rows; more are not distinguishable on a scale of 100
Tiers = tuple[tuple[float, float], ...]
"""Rows of (edge in percent, factor): above the edge, the rates are multiplied by the factor."""

_BUDGET: Final = number(0, 1, "share", above=True)  # of an objective: above 1 it would not be met
# Latency budget where the first token has an objective of its own: what waits in the engine waits for that.
# [simulated: an LLM engine keeps 0.99 of the goodput of the best constant limit, with 0.25 it keeps 0.95]
FIRST_TOKEN_BUDGET: Final = 0.3
_RATE: Final = number(0.001, 1_000_000, "requests/s")
_RESERVE: Final = number(0, 0.875, "share")  # the smallest budget holds eight requests: one must be left
_TIERS_EXAMPLE: Final = "85:0.7,90:0.4,95:0"


def _bounded(low: float, high: float, unit: str, text: object) -> float:
    value = number(low, high, unit).parse(text)
    if not low <= value <= high:
        raise FieldTypeError
    return float(value)


def _tiers(raw: object) -> Tiers:
    """Parse ``85:0.7,90:0.4``, with optional signs such as ``85%:70%``, or a sequence of pairs."""
    pairs = [part.partition(":")[::2] for part in raw.split(",")] if isinstance(raw, str) else raw
    if not isinstance(pairs, list | tuple):
        raise FieldTypeError
    if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        raise FieldTypeError
    if not 1 <= len(pairs) <= TIERS_AT_MOST:
        raise FieldTypeError(f"1 to {TIERS_AT_MOST} rows, for example {_TIERS_EXAMPLE}")
    try:
        rows = tuple((_bounded(0, 100, "%", edge), _bounded(0, 1, "share", factor)) for edge, factor in pairs)
    except ValueError as error:
        raise FieldTypeError(str(error) or f"for example {_TIERS_EXAMPLE}") from None
    for (edge, factor), (next_edge, next_factor) in pairwise(rows):
        if next_edge <= edge:
            raise FieldTypeError(f"edge {plain(next_edge)} does not rise above {plain(edge)}")
        if next_factor >= factor:
            raise FieldTypeError(f"factor {plain(next_factor)} does not fall below {plain(factor)}")
    return rows


TIER_TABLE: Final = FieldType(
    "percent:factor pairs, edges rising within 0..100, factors falling within 0..1",
    _TIERS_EXAMPLE,
    _tiers,
    unit="% : factor",
    text=lambda rows: ",".join(f"{plain(edge)}:{plain(factor)}" for edge, factor in rows),
)


# It stands in the configuration of nginx, where other characters would need quoting.
FLAGS_DIR: Final = word(
    r"/[A-Za-z0-9._/-]{1,200}",
    "the absolute path of a folder, of letters, digits, . _ - and /",
    "/run/autoglm-throttle",
)


class ControlSettings(Group):
    """Settings of the control loop and the tier table."""

    environment: ClassVar[str] = "POLICY* SIGNAL DRY_RUN* TIERS* TIER_SAMPLES NGINX_FLAGS_DIR"

    policy: Annotated[Policy, choice(Policy, gate=Policy.CONCURRENCY)] = Policy.ADAPTIVE
    """tiers: the table of TIERS scales the rates, with or without traffic. concurrency: an adaptive
    concurrency limit with a queue; needs no GPU. adaptive: the concurrency limit, and the table while
    requests are queued. fixed: the rates alone."""
    signal: Annotated[Signal, choice(Signal)] = Signal.AUTO
    """Signal that the edges of TIERS apply to: utilization, or pressure, which is 100 % at the targets of
    gpu_pressure_terms. auto: utilization unless a source reports the queue of an engine."""
    dry_run: Annotated[bool, f.FLAG] = False
    """Whether rejections are only counted; no request is queued. Requests that would be rejected still load
    the service, so lasting overload is overstated."""
    tiers: Annotated[Tiers, TIER_TABLE] = ((85.0, 0.7), (90.0, 0.4), (95.0, 0.0))
    """Above each edge of the signal, rates are multiplied by the factor; 0 rejects all new requests, under
    adaptive those above the throughput. [founding figure]"""
    tier_samples: Annotated[int, whole(1, 100, "samples")] = 3
    """Consecutive samples above the first edge before the table acts. [founding figure]"""
    tier_release_samples: Annotated[int, whole(1, 1000, "samples")] = 1
    """Consecutive calmer samples before the factor rises again. [founding figure, taken literally]"""
    tier_release_margin_pct: Annotated[float, number(0, 100, "%")] = 0.0
    """How far below an edge a sample must be to count as calmer. [founding figure, taken literally]"""
    tier_recovery_step: Annotated[float, number(0, 1, "share", above=True)] = 1.0
    """How much the factor may rise with one sample. [founding figure, taken literally]"""
    adaptive_headroom: Annotated[float, number(1, 10, "x service rate")] = 1.15
    """Under adaptive no rate falls below this multiple of the throughput. [simulated]"""
    adaptive_release_samples: Annotated[int, whole(1, 1000, "samples")] = 2
    """Samples without queued requests before adaptive restores the rates. [simulated]"""
    nginx_flags_dir: Annotated[str, FLAGS_DIR] | None = None
    """Folder of the flag files by which nginx as a second tier knows the factor in force; it is made, and its
    parent must exist. Not set: no flag is written."""


class RateSettings(Group):
    """Settings of the priority token buckets."""

    environment: ClassVar[str] = "RATE_HIGH_RPS* RATE_MID_RPS* RATE_LOW_RPS* BURST_S WORKERS*"

    rate_high_rps: Annotated[float, _RATE] = 1000.0
    """Requests of priority high admitted per second, by all workers together. [founding figure]"""
    rate_mid_rps: Annotated[float, _RATE] = 500.0
    """The same for priority mid. [founding figure]"""
    rate_low_rps: Annotated[float, _RATE] = 100.0
    """The same for priority low. [founding figure]"""
    burst_s: Annotated[float, number(0.001, 3600, "s")] = 1.0
    """Seconds of its rate that a bucket can hold, at least one request. [simulated]"""
    workers: Annotated[int, whole(1, 10_000, "processes")] = 1
    """Processes that share the priority rates; each gets its part. Not set: the number in WEB_CONCURRENCY,
    else 1. User limits are divided only while a shared store is unavailable."""
    borrow: Annotated[BorrowMode, choice(BorrowMode)] = BorrowMode.OFF
    """Buckets from which a class may take tokens when its own is short: those of less important classes
    (down), any."""
    reserve_mid: Annotated[float, _RESERVE] = 0.3
    """Share of the reduced budget that mid leaves to high. [simulated]"""
    reserve_low: Annotated[float, _RESERVE] = 0.6
    """Share of the reduced budget that low leaves to high and mid. [simulated]"""

    @property
    def rates_rps(self) -> tuple[float, float, float]:
        """Requests per second for high, mid and low, for all workers together."""
        return (self.rate_high_rps, self.rate_mid_rps, self.rate_low_rps)


class ConcurrencySettings(Group):
    """Settings of the concurrency limit and its queue."""

    environment: ClassVar[str] = (
        "SLO_S* SLO_TTFT_S SLO_TTFT_HIGH_S SLO_TTFT_MID_S SLO_TTFT_LOW_S INFLIGHT_MAX* QUEUE_MAX WEBSOCKETS"
    )

    slo_s: Annotated[float, f.OBJECTIVE] | None = None
    """Objective: target time for a complete response, queueing included. Not set: each work class learns its
    own, four times the 95th percentile of its responses without load, at least 2 s; if you know it, set it.
    [founding figure: P95 above 2 s is an alert]"""
    slo_ttft_s: Annotated[float, f.OBJECTIVE] | None = None
    """Objective: target time to the first token of a stream, queueing included. A request whose first token
    is predicted to come later is rejected on arrival. Not set: no rejection for that."""
    slo_ttft_high_s: Annotated[float, f.OBJECTIVE] | None = None
    """Replaces SLO_TTFT_S for requests of priority high."""
    slo_ttft_mid_s: Annotated[float, f.OBJECTIVE] | None = None
    """Replaces SLO_TTFT_S for requests of priority mid."""
    slo_ttft_low_s: Annotated[float, f.OBJECTIVE] | None = None
    """Replaces SLO_TTFT_S for requests of priority low."""
    inflight_max: Annotated[int, whole(0, 1_000_000, "requests")] = 0
    """Maximum of requests in flight in each process under every policy; it caps the adaptive limit. 0: no
    maximum."""
    queue_max: Annotated[int, whole(0, 1_000_000, "requests")] = 1024
    """Requests of one priority that may be queued; 0: no queue."""
    websockets: Annotated[WebSocketMode, choice(WebSocketMode)] = WebSocketMode.RATE
    """rate: a websocket is charged when it connects; slot: it is also in flight as long as it is open."""
    latency_budget: Annotated[float, _BUDGET] = 0.25
    """Share of SLO_S that a request may spend inside the service. Less: shorter times for priority high;
    more: fuller batches. [simulated: of 160 random services a tenth keeps less than 0.959 of the goodput at
    0.2, than 0.973 at 0.25, than 0.977 at 0.3]"""
    wait_budget: Annotated[float, _BUDGET] = 0.25
    """Share of the objective that a request may wait in the queue. [simulated in the design: below the time
    of one batch high loses 44 %]"""
    min_share: Annotated[float, number(0, 0.2, "share")] = 0.02
    """Share of the throughput reserved for mid and low together, however large the demand of high. [simulated
    in the design: costs high 1.8 % at ten times the capacity]"""
    inflight_start: Annotated[int, whole(1, 1_000_000, "requests")] = 16
    """Concurrency limit until the first measurement, divided between the workers. 64 if neither this nor
    SLO_S is set. [simulated in the design: with 64 a small service begins with seconds of backlog]"""
    inflight_floor: Annotated[int, whole(1, 10_000, "requests")] = 2
    """Lower bound of the adaptive concurrency limit, however slow the service. [simulated in the design: 16
    would break slow services]"""
    slot_idle_s: Annotated[float, number(0.05, 3600, "s")] = 0.8
    """Seconds after which a request that waits for its client gives its slot back: for the rest of a body,
    for a slow reader, or as an event stream without a new part. It takes the slot again at once when the app
    works on. [measured over real sockets: a second after a hundred idle streams all others are served]"""
    body_timeout_s: Annotated[float, number(0.1, 86_400, "s")] = 30.0
    """Seconds that a request may wait for its body, plus one for each 500 bytes that have arrived; then 408,
    or a disconnect for the app if its response has begun. A reader of a response has the same time; then the
    response ends. [chosen in the design; the least rate is that of mod_reqtimeout of Apache]"""
    paused_max: Annotated[int, whole(1, 1_000_000, "requests")] = 1024
    """Requests without their slot at a time, in each process: as many paused ones, and as many whose body is
    under way. Beyond that new requests are rejected with queue:paused, since each of these keeps memory."""
    fairness: Annotated[Fairness, choice(Fairness)] = Fairness.USER
    """Order of the queued requests of one priority. user: the user with the least cost served so far is next.
    fifo: order of arrival. [simulated: beside one user with half of the load at 2x, the others get 0.94
    instead of 0.50]"""
    period_s: Annotated[float, number(0.05, 60, "s")] = 0.5
    """Shortest time over which the service is measured. [simulated]"""
    period_completions: Annotated[int, whole(1, 1000, "requests")] = 8
    """Finished requests that a measurement needs, unless it has lasted long. [simulated]"""

    @property
    def first_token_slos(self) -> tuple[float | None, ...]:
        """Objectives of the first token in seconds, for high, mid and low; None: there is none."""
        own = (self.slo_ttft_high_s, self.slo_ttft_mid_s, self.slo_ttft_low_s)
        return tuple(self.slo_ttft_s if one is None else one for one in own)

    @property
    def service_share(self) -> float:
        """Share of the objective that a request may spend inside the service."""
        is_default = "latency_budget" not in self.model_fields_set
        return FIRST_TOKEN_BUDGET if is_default and any(self.first_token_slos) else self.latency_budget
