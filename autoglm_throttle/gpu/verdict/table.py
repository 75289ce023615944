"""The table of verdicts: classifies a device by signals of the device and of the service.

The first row of ``TABLE`` that matches is the condition; a signal that is not known does not match.
Utilization is a duty cycle: no row but ``idle``, ``working`` and ``unknown`` rests on it alone. Progress and
requests in flight are the service's as a whole: a hung device beside a working one shows as underfed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt
from typing import TYPE_CHECKING, Final

from autoglm_throttle.types import GpuCondition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autoglm_throttle.settings.groups.gpu import VerdictSettings

    Rule = Callable[["VerdictInput", VerdictSettings], bool]
    SignalCheck = tuple[str, Callable[[float, float], bool], float | str]

# Utilization from which a device reports itself busy, %: the first band of the default control table.
BUSY_PCT: Final = 85.0
# Utilization below which a device is not filled although work waits, %; chosen, below ``BUSY_PCT``.
FILLED_PCT: Final = 70.0
# Utilization below which a device with no work is idle, %; chosen: display and monitoring cost a few.
IDLE_PCT: Final = 10.0
# Power above idle, over its baseline, from which a device works; chosen: spinning takes little.
POWER_OF_BASELINE: Final = 0.25
# Share of multiprocessors with work, over its baseline, likewise; chosen: one block spins.
SM_OF_BASELINE: Final = 0.50
# Share of time with memory traffic from which it works ('memory-active' of KempnerPulse; peak 0.8).
DRAM_WORKING: Final = 0.40
# Share of time with work of the tensor cores from which it works ('tensor compute' of KempnerPulse).
TENSOR_WORKING: Final = 0.15
# Progress over its baseline, below which it collapsed: a degraded vLLM fell to 0.33 (Ingero).
DEGRADED_SHARE: Final = 0.50
THROTTLED_SHARE: Final = 0.20  # Share of time slowed down from which a device is throttled; chosen
# Clock over full speed from which a device at its limit is not throttled; chosen: work moves it by 0.1.
SLOW_CLOCK: Final = 0.85
# Power limit over the default from which being at it is no throttling; chosen: the report has noise.
LOWERED_LIMIT: Final = 0.95
# Power over the limit below which a capped device is held by another limit, that of its chassis; chosen.
HELD_SHARE: Final = 0.80
HOST_LOAD: Final = 0.80  # Processes that want a core, per core, from which the host is the bottleneck
# Share of the cores' time spent waiting for a disk, from which the host is the bottleneck.
HOST_IOWAIT: Final = 0.20
# Share of time in which a process waits for a core, from which the host is the bottleneck; chosen.
HOST_PRESSURE: Final = 0.25
# Share of periods in which the group uses up its cores; that of CPUThrottlingHigh (kubernetes-mixin).
HOST_THROTTLED: Final = 0.25


@dataclass(slots=True, kw_only=True)
class VerdictInput:
    """Every signal of one device at one moment, as a number; None: not known."""

    utilization_pct: float | None = None
    fullest_pct: float | None = None
    active: float = 0.0  # Number of other usable devices at work
    power_share: float | None = None  # Power over the limit, or between the device's own idle and busy power
    power_of_baseline: float | None = None  # Power over its baseline during progress, both above idle
    sm_active_ratio: float | None = None
    # Share of multiprocessors with work, over its baseline during progress.
    sm_of_baseline: float | None = None
    dram_active_ratio: float | None = None
    tensor_active_ratio: float | None = None
    fault_bits: float | None = None  # Number of heat or hardware reasons that slow the device down
    power_cap: float | None = None  # 1 if the device is at its power limit, else 0
    limit_share: float | None = None
    at_first_limit: float | None = None  # 1 if only the limit of the start, which the owner chose, slows it
    limit_used: float | None = None  # Power over the limit
    throttled_ratio: float | None = None
    clock_share: float | None = None
    progress_per_s: float | None = None
    # Seconds without progress with requests in flight, over the significant seconds; 1: no progress.
    silent_share: float = 0.0
    progress_share: float | None = None  # Progress over its baseline at this number of requests in flight
    in_flight: float = 0.0
    backlog: float = 0.0  # Requests in our queue; at least 1 while the concurrency limit is reached
    queued: float | None = None
    queue_target: float = math.inf  # Requests waiting in an engine above which it has enough to do
    latency_share: float | None = None  # 95th percentile of the latency over the objective
    host_load: float | None = None
    host_iowait: float | None = None
    host_pressure: float | None = None
    host_throttled: float | None = None


def _is(value: float | None, compare: Callable[[float, float], bool], bound: float) -> bool:
    return value is not None and compare(value, bound)


def _busy(it: VerdictInput) -> bool:
    return _is(it.utilization_pct, ge, BUSY_PCT)


def _makes_progress(it: VerdictInput) -> bool:
    return _is(it.progress_per_s, gt, 0.0)


def _is_working(it: VerdictInput) -> bool:
    return _is(it.dram_active_ratio, ge, DRAM_WORKING) or _is(it.tensor_active_ratio, ge, TENSOR_WORKING)


def _is_idle(it: VerdictInput) -> bool:
    return _is(it.utilization_pct, lt, IDLE_PCT) and (not it.in_flight or bool(it.active))


def _starved(it: VerdictInput) -> bool:
    unfilled = _is(it.utilization_pct, lt, FILLED_PCT) and _is(it.fullest_pct, lt, FILLED_PCT)
    return it.backlog > 0.0 and unfilled and _makes_progress(it) and not (it.active and _is_idle(it))


def _stalled(it: VerdictInput, settings: VerdictSettings) -> bool:
    silent = it.in_flight > 0.0 and it.progress_per_s == 0.0 and it.silent_share >= 1.0
    # Less activity than any work would show, and less than the device's own baseline.
    power = _is(it.power_share, lt, settings.power_stalled)
    sm = _is(it.sm_active_ratio, lt, settings.sm_stalled)
    weak = (power and not _is(it.power_of_baseline, ge, POWER_OF_BASELINE)) or (
        sm and not _is(it.sm_of_baseline, ge, SM_OF_BASELINE)
    )
    return _busy(it) and silent and weak and not _is_working(it)


def _throttled(it: VerdictInput) -> bool:
    """Return whether the device is slowed down; a power limit counts only if lowered, or possibly so."""
    by_cap = _is(it.power_cap, gt, 0.0)
    capped = by_cap or _is(it.throttled_ratio, gt, THROTTLED_SHARE)
    chosen = _is(it.limit_share, ge, LOWERED_LIMIT) or _is(it.at_first_limit, gt, 0.0)
    held = by_cap and _is(it.limit_used, lt, HELD_SHARE)
    slowed = (held or (capped and not chosen)) and not _is(it.clock_share, ge, SLOW_CLOCK)
    return _busy(it) and (_is(it.fault_bits, gt, 0.0) or slowed)


def _underfed(it: VerdictInput, settings: VerdictSettings) -> bool:
    full = _is(it.latency_share, gt, 1.0) or _is(it.queued, gt, it.queue_target)
    sm, power = settings.sm_underfed, settings.power_underfed
    weak = _is(it.sm_active_ratio, lt, sm) or _is(it.power_share, lt, power)
    return _busy(it) and _makes_progress(it) and not _is_working(it) and weak and not full


def _productive(it: VerdictInput, settings: VerdictSettings) -> bool:
    sm, power = settings.sm_underfed, settings.power_underfed
    used = _is(it.sm_active_ratio, ge, sm) or _is(it.power_share, ge, power) or _is_working(it)
    return _busy(it) and _makes_progress(it) and used


IMMEDIATE_RULES: Final[tuple[tuple[GpuCondition, Rule], ...]] = (
    (GpuCondition.UNKNOWN, lambda it, _: it.utilization_pct is None or _busy(it)),
    (GpuCondition.IDLE, lambda it, _: _is_idle(it)),
    (GpuCondition.WORKING, lambda *_: True),
)

# Rows in this order; ``lost`` comes before them and needs no signal.
TABLE: Final[tuple[tuple[GpuCondition, Rule], ...]] = (
    (GpuCondition.STARVED, lambda it, _: _starved(it)),
    (GpuCondition.STALLED, _stalled),
    (GpuCondition.THROTTLED, lambda it, _: _throttled(it)),
    (GpuCondition.DEGRADED, lambda it, _: _busy(it) and _is(it.progress_share, lt, DEGRADED_SHARE)),
    (GpuCondition.UNDERFED, _underfed),
    (GpuCondition.PRODUCTIVE, _productive),
    *IMMEDIATE_RULES,
)

# Signal of the input, comparison, and bound: a number, or the name of a setting or of another signal.
_BUSY: Final[SignalCheck] = ("utilization_pct", ge, BUSY_PCT)
_PROGRESS: Final[SignalCheck] = ("progress_per_s", gt, 0.0)
_IN_FLIGHT: Final[SignalCheck] = ("in_flight", gt, 0.0)
_SM_LOW: Final[SignalCheck] = ("sm_active_ratio", lt, "sm_underfed")
_POWER_LOW: Final[SignalCheck] = ("power_share", lt, "power_underfed")
_SM_USED: Final[SignalCheck] = ("sm_active_ratio", ge, "sm_underfed")
_POWER_USED: Final[SignalCheck] = ("power_share", ge, "power_underfed")

# Condition -> its signals, and the check by which each agrees: source of both evidence and confidence.
SIGNALS: Final[Mapping[GpuCondition, tuple[SignalCheck, ...]]] = {
    GpuCondition.LOST: (),
    GpuCondition.STARVED: (
        ("backlog", gt, 0.0),
        ("utilization_pct", lt, FILLED_PCT),
        _PROGRESS,
        ("host_load", ge, HOST_LOAD),
        ("host_iowait", gt, HOST_IOWAIT),
        ("host_pressure", ge, HOST_PRESSURE),
        ("host_throttled", ge, HOST_THROTTLED),
    ),
    GpuCondition.STALLED: (
        _BUSY,
        _IN_FLIGHT,
        ("progress_per_s", eq, 0.0),
        ("power_share", lt, "power_stalled"),
        ("sm_active_ratio", lt, "sm_stalled"),
    ),
    GpuCondition.THROTTLED: (
        _BUSY,
        ("fault_bits", gt, 0.0),
        ("power_cap", gt, 0.0),
        ("limit_share", lt, LOWERED_LIMIT),
        ("limit_used", lt, HELD_SHARE),
        ("throttled_ratio", gt, THROTTLED_SHARE),
        ("clock_share", lt, SLOW_CLOCK),
    ),
    GpuCondition.DEGRADED: (_BUSY, ("progress_share", lt, DEGRADED_SHARE), ("latency_share", gt, 1.0)),
    GpuCondition.UNDERFED: (
        _BUSY,
        _PROGRESS,
        _SM_LOW,
        _POWER_LOW,
        ("dram_active_ratio", lt, DRAM_WORKING),
        ("tensor_active_ratio", lt, TENSOR_WORKING),
        ("latency_share", le, 1.0),
        ("queued", le, "queue_target"),
    ),
    GpuCondition.PRODUCTIVE: (
        _BUSY,
        _PROGRESS,
        _SM_USED,
        _POWER_USED,
        ("dram_active_ratio", ge, DRAM_WORKING),
        ("tensor_active_ratio", ge, TENSOR_WORKING),
    ),
    GpuCondition.UNKNOWN: (_BUSY, _PROGRESS, _SM_USED, _POWER_USED),
    GpuCondition.IDLE: (("utilization_pct", lt, IDLE_PCT), ("in_flight", eq, 0.0), _SM_LOW, _POWER_LOW),
    GpuCondition.WORKING: (("utilization_pct", lt, BUSY_PCT), _IN_FLIGHT, _PROGRESS),
}


def classify(
    it: VerdictInput, settings: VerdictSettings, table: tuple[tuple[GpuCondition, Rule], ...] = TABLE
) -> GpuCondition:
    """Return the first condition of the table with a matching rule; the last rule always matches."""
    return next(condition for condition, matches in table if matches(it, settings))


def _number(bound: float | str, it: VerdictInput, settings: VerdictSettings) -> float:
    if not isinstance(bound, str):
        return bound
    return float(getattr(it if hasattr(it, bound) else settings, bound))


def confidence(
    condition: GpuCondition, it: VerdictInput, settings: VerdictSettings
) -> tuple[float, dict[str, float]]:
    """Compute the confidence of a condition, 0..1, and its evidence: the known signals by name.

    The confidence is the share of all signals of the condition that are known and agree; 1 for ``lost``.
    """
    signals = SIGNALS[condition]
    if not signals:
        return 1.0, {}
    values: dict[str, float | None] = {name: getattr(it, name) for name, _, _ in signals}
    agree = sum(_is(values[name], compare, _number(bound, it, settings)) for name, compare, bound in signals)
    return agree / len(signals), {name: value for name, value in values.items() if value is not None}
