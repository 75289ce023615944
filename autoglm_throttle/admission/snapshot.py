"""The immutable snapshot of a throttle for metrics, logs and pages."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autoglm_throttle.admission.counters import DurationHistogram
from autoglm_throttle.types import (
    BatcherView,
    ConcurrencyView,
    ControlState,
    DecisionLabel,
    GpuSample,
    GpuView,
    Outcome,
    Policy,
    Priority,
    Reason,
    decision_label,
)

if TYPE_CHECKING:
    from autoglm_throttle.admission.control_loop import ControlLoop
    from autoglm_throttle.admission.factory import AdmissionParts
    from autoglm_throttle.control.quota import QuotaView
    from autoglm_throttle.gpu.sampler import SourceView
    from autoglm_throttle.limiting.decisions import HasTokens
    from autoglm_throttle.limiting.token_limits import TokenCounts
    from autoglm_throttle.resilience.registry import GuardsView
    from autoglm_throttle.settings import Settings
    from autoglm_throttle.store.fleet import FleetView
    from autoglm_throttle.store.shared_limits import StoreView


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The throttle at one moment. Counters only grow, except across a fork, where a child starts at 0."""

    taken_at_s: float
    """Monotonic."""
    taken_at_wall_s: float
    """Unix time."""
    policy: Policy
    control: ControlState
    ready: bool
    """False while no usable device is left, or all usable devices are stalled, by telemetry that is still
    reliable; the same under every policy.
    """
    requests: Mapping[tuple[Priority, DecisionLabel, Reason], int]
    exempt: int
    active: Mapping[Priority, int]
    """Admitted and not yet settled."""
    outcomes: Mapping[tuple[Priority, Outcome], int]
    durations: Mapping[Priority, DurationHistogram]
    """Durations of admitted requests that did not end ``neutral``."""
    concurrency: ConcurrencyView | None
    """The concurrency limit and the queue; None where requests in flight are not limited."""
    queue_time: Mapping[Priority, DurationHistogram]
    """Queue time of all queued requests, admitted or not."""
    first_token: Mapping[Priority, DurationHistogram]
    """Times from arrival to the first event with data of an event stream; queue time is included."""
    inter_token: Mapping[Priority, DurationHistogram]
    """Times between two events with data of an event stream."""
    chunks: int
    """Response chunks streamed to clients; of two threads at once one may be lost."""
    pressure: Mapping[str, float]
    """Term -> load over its target, 1 at the target; only terms that are known."""
    replicas_ratio: float | None = None
    """Wanted replicas over the present ones, averaged over a minute; None: no term of it is known."""
    would_reject: Mapping[tuple[Priority, Reason], int]
    """Requests admitted only because of a dry run."""
    rejections: Mapping[tuple[str | None, str], int]
    """Rejections by the name of the route, None without one, and by that of the limit that decided."""
    dry_run: bool
    """Whether rejections are only counted."""
    rate_limit_rps: Mapping[Priority, float]
    """Refill rate now."""
    tokens: Mapping[Priority, float]
    users: int
    """Users in the in-memory table; with a shared store, users counted locally during its outage."""
    limited_users: tuple[str, ...]
    """Users of the newest rejections by a user limit, at most 1,000, the newest last."""
    fleet: FleetView | None
    """The fleet that shares the priority rates; None where rates are local to this process."""
    store: StoreView | None
    """The shared store of user limits; None where they are kept in memory."""
    view: GpuView | None
    """All devices and engines as one value, with a verdict for each device; None before the first sample."""
    sources: tuple[SourceView, ...]
    """The telemetry sources; empty with ``GPU=none``."""
    last_sample_wall_s: float | None
    """Unix time of the newest sample."""
    controller_errors: int
    """Failed or overdue reads, and implausible fields."""
    quota: QuotaView | None = None
    """Fill of the memory available to requests, and the quotas on it; None without ``QUOTAS``."""
    guards: GuardsView | None = None
    """Guarded outbound calls and degraded answers; None before the first guard."""
    batchers: tuple[BatcherView, ...] = ()
    """The micro-batchers that were given this throttle."""
    token_counts: TokenCounts | None = None
    """Tokens that were reserved and settled; None without limits in tokens."""
    stale_results: int
    """Permits settled a second time."""
    oddities: Mapping[str, int]
    """Handled oddities by name: unknown priorities, failing ``identify`` calls."""

    @property
    def devices(self) -> tuple[GpuSample, ...]:
        """Every known device and engine, lost ones included."""
        return () if self.view is None else self.view.devices


def take_snapshot(settings: Settings, parts: AdmissionParts, control: ControlLoop, now: float) -> Snapshot:
    """Put the views of all parts together, without the guards; called under the lock."""
    counters, limiter = parts.settlement.counters, parts.settlement.limiter
    state = control.current(now)
    buckets: Sequence[HasTokens] = parts.buckets.all
    by_class = list(zip(Priority, counters.classes, buckets, strict=True))
    requests: dict[tuple[Priority, DecisionLabel, Reason], int] = {
        (p, decision_label(Reason.OK), Reason.OK): row.admitted for p, row, _ in by_class
    }
    for p, row, _ in by_class:
        requests |= {(p, decision_label(reason), reason): n for reason, n in row.rejected.items()}
        requests |= {(p, "degraded", reason): n for reason, n in row.degraded.items()}
    return Snapshot(
        taken_at_s=now,
        taken_at_wall_s=time.time(),
        policy=settings.control.policy,
        control=state,
        ready=control.controller.tracker.is_ready(now),
        requests=requests,
        exempt=counters.exempt,
        active={p: row.active for p, row, _ in by_class},
        outcomes={(p, outcome): n for p, row, _ in by_class for outcome, n in row.outcomes.items()},
        durations={p: row.durations.copy() for p, row, _ in by_class},
        concurrency=limiter.view(now) if limiter.limit < math.inf else None,
        queue_time={p: row.queue_time.copy() for p, row, _ in by_class},
        first_token={p: row.first_token.copy() for p, row, _ in by_class},
        inter_token={p: row.inter_token.copy() for p, row, _ in by_class},
        chunks=counters.chunks,
        pressure=control.pressure(now),
        replicas_ratio=control.replicas_ratio(now),
        would_reject={(p, reason): n for p, row, _ in by_class for reason, n in row.would_reject.items()},
        rejections={
            (route, limit): count
            for route, limits in counters.rejections.items()
            for limit, count in limits.items()
        },
        dry_run=settings.control.dry_run,
        rate_limit_rps=dict(zip(Priority, parts.buckets.rates, strict=True)),
        tokens={p: bucket.tokens(now) for p, _, bucket in by_class},
        users=parts.user_limits.users,
        limited_users=tuple(counters.limited_users),
        fleet=parts.fleet.view() if parts.fleet is not None else None,
        store=parts.store.view() if parts.store is not None else None,
        view=control.gpu_view,
        sources=control.monitor.views(now),
        last_sample_wall_s=control.sampled_wall_s,
        controller_errors=control.monitor.error_count,
        quota=parts.quota.view(now) if parts.quota is not None else None,
        token_counts=parts.token_limits.counts.copy() if parts.token_limits is not None else None,
        stale_results=counters.stale_results,
        oddities=dict(counters.oddities),
    )
