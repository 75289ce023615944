"""The table of verdicts: classifies a device by signals of the device and of the service.

The first row of ``TABLE`` that matches is the condition. A term with an unknown signal (None) does not match.
Utilization is a duty cycle, so no row but ``idle``, ``working`` and ``unknown`` rests on it alone.

Progress and requests in flight are the service's as a whole, because no source assigns answers to devices.
Each device's own power, multiprocessors and clock separate it from the others. If a group that computes
together hangs, every device that spins is stalled. A device that rests while another one works is idle,
not starved. A hung device beside a working one shows as underfed, since there is progress.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from autoglm_throttle.types import GpuCondition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Rule = Callable[["VerdictInput", "VerdictRules"], bool]
    SignalCheck = tuple[str, Callable[[float, "VerdictRules"], bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRules:
    """Thresholds of the table; ratios are 0..1."""

    busy_pct: float = 85.0
    """Utilization from which a device reports itself busy, %: the first band of the control table."""
    filled_pct: float = 70.0
    """Utilization below which a device is not filled although work waits, %; chosen, below ``busy_pct``."""
    idle_pct: float = 10.0
    """Utilization below which a device with no work is idle, %; chosen: display and monitoring cost a few."""
    power_stalled: float = 0.30
    """Power share below which a device without progress hangs; chosen. A hung collective drew about 70 W at
    100 % utilization (NVIDIA/nccl#968), which is 0.10..0.23 of limits of 700..300 W.
    """
    power_of_baseline: float = 0.25
    """Power above idle, over its baseline, from which a device without progress works as usual; chosen. A
    device that spins draws little more than one that idles with its clocks up.
    """
    sm_of_baseline: float = 0.50
    """Share of multiprocessors with work, over its baseline, with the same meaning; chosen. One block spins,
    many worked before.
    """
    power_underfed: float = 0.40
    """Power share below which a working device has little to do; chosen. A steady vLLM server drew 320 W,
    0.46 of the largest limit, 700 W.
    """
    sm_stalled: float = 0.05
    """Share of multiprocessors with work, below which a device without progress hangs; chosen: one of 132 is
    0.008.
    """
    sm_underfed: float = 0.25
    """Share of multiprocessors with work, below which a device is 'busy, low SM use' (KempnerPulse)."""
    dram_working: float = 0.40
    """Share of time in which the memory moves data, from which the device works, even with few
    multiprocessors ('memory-active' of KempnerPulse; the practical peak is 0.8).
    """
    tensor_working: float = 0.15
    """Share of time in which the tensor cores work, from which it does ('tensor compute' of KempnerPulse)."""
    degraded_share: float = 0.50
    """Progress over its baseline, below which it collapsed: a degraded vLLM fell to 0.33 (Ingero)."""
    throttled_share: float = 0.20
    """Share of time slowed down from which a device is throttled; chosen."""
    slow_clock: float = 0.85
    """Clock over full speed from which a device at its power limit is not throttled; chosen. A change of work
    moves the clock at one limit by a tenth.
    """
    lowered_limit: float = 0.95
    """Power limit over the default limit, from which being at it is no throttling; chosen. Some drivers
    report the limit with the sensor's noise.
    """
    queue_target: float = 5.0
    """Requests waiting in an engine above which it has enough to do (the control's own queue target)."""
    host_load: float = 0.80
    """Processes that want a core, per core, from which the host is the bottleneck."""
    host_iowait: float = 0.20
    """Share of the cores' time spent waiting for a disk, from which the host is the bottleneck."""
    stalled_s: float = 10.0
    """Seconds without progress that make a stall; more where answers take longer than that."""
    first_s: float = 600.0
    """Seconds without progress that make a stall of a device without a baseline; chosen. A first request may
    load, compile and capture a model: the device is then busy and draws little.
    """
    release_s: float = 10.0
    """Seconds without any request in flight after which a stall counts as over."""
    samples: int = 3
    """New samples that must agree to enter a finding, and to leave one: one odd sample is a hiccup."""
    span_s: float = 2.0
    """Seconds that these samples must span: three samples of 0.2 s are one measurement."""


@dataclass(slots=True, kw_only=True)
class VerdictInput:
    """Every signal of one device at one moment, as a number; None: not known."""

    utilization_pct: float | None = None
    """Utilization, or the share of time with any work on a MIG instance, %."""
    fullest_pct: float | None = None
    """Utilization of the busiest usable device, %."""
    others_active: float = 0.0
    """1 if another usable device is at work."""
    power_share: float | None = None
    """Power over the limit, or between the device's own idle and busy power."""
    power_of_baseline: float | None = None
    """Power over its baseline during progress, both above idle."""
    sm_active_ratio: float | None = None
    sm_of_baseline: float | None = None
    """Share of multiprocessors with work, over its baseline during progress."""
    dram_active_ratio: float | None = None
    tensor_active_ratio: float | None = None
    fault_bits: float | None = None
    """Number of heat or hardware reasons that slow the device down."""
    power_cap: float | None = None
    """1 if the device is at its power limit, else 0."""
    limit_share: float | None = None
    """Power limit over the device's default limit."""
    throttled_ratio: float | None = None
    clock_share: float | None = None
    """Clock over full speed."""
    progress_per_s: float | None = None
    silent_share: float = 0.0
    """Seconds without progress with requests in flight, over the significant seconds; 1: no progress."""
    progress_share: float | None = None
    """Progress over its baseline at this number of requests in flight."""
    in_flight: float = 0.0
    backlog: float = 0.0
    """Requests in our queue; at least 1 while the concurrency limit is reached."""
    queued: float | None = None
    """Requests waiting per engine."""
    latency_share: float | None = None
    """95th percentile of the latency over the objective."""
    host_load: float | None = None
    host_iowait: float | None = None


def _under(value: float | None, bound: float) -> bool:
    return value is not None and value < bound


def _over(value: float | None, bound: float) -> bool:
    return value is not None and value > bound


def _at_least(value: float | None, bound: float) -> bool:
    return value is not None and value >= bound


def _busy(it: VerdictInput, rules: VerdictRules) -> bool:
    return _at_least(it.utilization_pct, rules.busy_pct)


def _makes_progress(it: VerdictInput) -> bool:
    return _over(it.progress_per_s, 0.0)


def _is_working(it: VerdictInput, rules: VerdictRules) -> bool:
    """Return whether memory or tensor cores are at work, with any number of active multiprocessors."""
    return _at_least(it.dram_active_ratio, rules.dram_working) or _at_least(
        it.tensor_active_ratio, rules.tensor_working
    )


def _is_idle(it: VerdictInput, rules: VerdictRules) -> bool:
    """Return whether the device does nothing, and has nothing to do."""
    return _under(it.utilization_pct, rules.idle_pct) and (not it.in_flight or bool(it.others_active))


def _starved(it: VerdictInput, rules: VerdictRules) -> bool:
    unfilled = _under(it.utilization_pct, rules.filled_pct) and _under(it.fullest_pct, rules.filled_pct)
    return (
        it.backlog > 0.0
        and unfilled
        and _makes_progress(it)
        and not (it.others_active and _is_idle(it, rules))
    )


def _stalled(it: VerdictInput, rules: VerdictRules) -> bool:
    silent = it.in_flight > 0.0 and it.progress_per_s == 0.0 and it.silent_share >= 1.0
    return _busy(it, rules) and silent and _weak(it, rules) and not _is_working(it, rules)


def _weak(it: VerdictInput, rules: VerdictRules) -> bool:
    """Return whether the device shows less activity than any work would, and less than its own baseline."""
    power = _under(it.power_share, rules.power_stalled) and not _at_least(
        it.power_of_baseline, rules.power_of_baseline
    )
    sm = _under(it.sm_active_ratio, rules.sm_stalled) and not _at_least(
        it.sm_of_baseline, rules.sm_of_baseline
    )
    return power or sm


def _throttled(it: VerdictInput, rules: VerdictRules) -> bool:
    """Return whether the device is slowed down; a power limit counts only if lowered, or possibly so."""
    if not _busy(it, rules):
        return False
    if _over(it.fault_bits, 0.0):
        return True
    if _at_least(it.limit_share, rules.lowered_limit):
        return False
    capped = _over(it.power_cap, 0.0) or _over(it.throttled_ratio, rules.throttled_share)
    return capped and not _at_least(it.clock_share, rules.slow_clock)


def _degraded(it: VerdictInput, rules: VerdictRules) -> bool:
    return _busy(it, rules) and _under(it.progress_share, rules.degraded_share)


def _underfed(it: VerdictInput, rules: VerdictRules) -> bool:
    if not _busy(it, rules) or not _makes_progress(it) or _is_working(it, rules):
        return False
    full = _over(it.latency_share, 1.0) or _over(it.queued, rules.queue_target)
    weak = _under(it.sm_active_ratio, rules.sm_underfed) or _under(it.power_share, rules.power_underfed)
    return weak and not full


def _productive(it: VerdictInput, rules: VerdictRules) -> bool:
    if not _busy(it, rules) or not _makes_progress(it):
        return False
    strong = _at_least(it.sm_active_ratio, rules.sm_underfed) or _at_least(
        it.power_share, rules.power_underfed
    )
    return strong or _is_working(it, rules)


def _unknown(it: VerdictInput, rules: VerdictRules) -> bool:
    return it.utilization_pct is None or _busy(it, rules)


IMMEDIATE_RULES: Final[tuple[tuple[GpuCondition, Rule], ...]] = (
    (GpuCondition.UNKNOWN, _unknown),
    (GpuCondition.IDLE, _is_idle),
    (GpuCondition.WORKING, lambda _it, _rules: True),
)
"""Conditions that need no history."""

TABLE: Final[tuple[tuple[GpuCondition, Rule], ...]] = (
    (GpuCondition.STARVED, _starved),
    (GpuCondition.STALLED, _stalled),
    (GpuCondition.THROTTLED, _throttled),
    (GpuCondition.DEGRADED, _degraded),
    (GpuCondition.UNDERFED, _underfed),
    (GpuCondition.PRODUCTIVE, _productive),
    *IMMEDIATE_RULES,
)
"""Rows in this order; ``lost`` comes before them and needs no signal."""

# Names must be attributes of the input: confidence() reads them with getattr, and logs show them.
_BUSY: Final[SignalCheck] = ("utilization_pct", lambda value, rules: value >= rules.busy_pct)
_PROGRESS: Final[SignalCheck] = ("progress_per_s", lambda value, _: value > 0.0)
_SM_LOW: Final[SignalCheck] = ("sm_active_ratio", lambda value, rules: value < rules.sm_underfed)
_POWER_LOW: Final[SignalCheck] = ("power_share", lambda value, rules: value < rules.power_underfed)
_SM_USED: Final[SignalCheck] = ("sm_active_ratio", lambda value, rules: value >= rules.sm_underfed)
_POWER_USED: Final[SignalCheck] = ("power_share", lambda value, rules: value >= rules.power_underfed)

SIGNALS: Final[Mapping[GpuCondition, tuple[SignalCheck, ...]]] = {
    GpuCondition.LOST: (),
    GpuCondition.STARVED: (
        ("backlog", lambda value, _: value > 0.0),
        ("utilization_pct", lambda value, rules: value < rules.filled_pct),
        _PROGRESS,
        ("host_load", lambda value, rules: value >= rules.host_load),
        ("host_iowait", lambda value, rules: value > rules.host_iowait),
    ),
    GpuCondition.STALLED: (
        _BUSY,
        ("in_flight", lambda value, _: value > 0.0),
        ("progress_per_s", lambda value, _: value == 0.0),
        ("power_share", lambda value, rules: value < rules.power_stalled),
        ("sm_active_ratio", lambda value, rules: value < rules.sm_stalled),
    ),
    GpuCondition.THROTTLED: (
        _BUSY,
        ("fault_bits", lambda value, _: value > 0.0),
        ("power_cap", lambda value, _: value > 0.0),
        ("limit_share", lambda value, rules: value < rules.lowered_limit),
        ("throttled_ratio", lambda value, rules: value > rules.throttled_share),
        ("clock_share", lambda value, rules: value < rules.slow_clock),
    ),
    GpuCondition.DEGRADED: (
        _BUSY,
        ("progress_share", lambda value, rules: value < rules.degraded_share),
        ("latency_share", lambda value, _: value > 1.0),
    ),
    GpuCondition.UNDERFED: (
        _BUSY,
        _PROGRESS,
        _SM_LOW,
        _POWER_LOW,
        ("dram_active_ratio", lambda value, rules: value < rules.dram_working),
        ("tensor_active_ratio", lambda value, rules: value < rules.tensor_working),
        ("latency_share", lambda value, _: value <= 1.0),
        ("queued", lambda value, rules: value <= rules.queue_target),
    ),
    GpuCondition.PRODUCTIVE: (
        _BUSY,
        _PROGRESS,
        _SM_USED,
        _POWER_USED,
        ("dram_active_ratio", lambda value, rules: value >= rules.dram_working),
        ("tensor_active_ratio", lambda value, rules: value >= rules.tensor_working),
    ),
    GpuCondition.UNKNOWN: (_BUSY, _PROGRESS, _SM_USED, _POWER_USED),
    GpuCondition.IDLE: (
        ("utilization_pct", lambda value, rules: value < rules.idle_pct),
        ("in_flight", lambda value, _: value == 0.0),
        _SM_LOW,
        _POWER_LOW,
    ),
    GpuCondition.WORKING: (
        ("utilization_pct", lambda value, rules: value < rules.busy_pct),
        ("in_flight", lambda value, _: value > 0.0),
        _PROGRESS,
    ),
}
"""Condition -> its signals, and the check by which each agrees: source of both evidence and confidence."""


def classify(
    it: VerdictInput, rules: VerdictRules, table: tuple[tuple[GpuCondition, Rule], ...] = TABLE
) -> GpuCondition:
    """Classify one device.

    Args:
        it: its signals.
        rules: the thresholds.
        table: ``TABLE``, or ``IMMEDIATE_RULES`` for conditions that need no history.

    Returns:
        The first condition with a matching rule; the last rule always matches.
    """
    return next(condition for condition, matches in table if matches(it, rules))


def confidence(
    condition: GpuCondition, it: VerdictInput, rules: VerdictRules
) -> tuple[float, dict[str, float]]:
    """Compute the confidence of a condition, and its evidence.

    Args:
        condition: any.
        it: the device's signals.
        rules: the thresholds.

    Returns:
        The confidence, 0..1: of all signals of this condition, the share that is known and
        agrees; an unknown signal lowers it like one that disagrees. And the known ones by name.
        ``lost`` is no inference: 1.
    """
    signals = SIGNALS[condition]
    if not signals:
        return 1.0, {}
    evidence: dict[str, float] = {}
    agree = 0
    for name, agrees in signals:
        value: float | None = getattr(it, name)
        if value is not None:
            evidence[name] = value
            agree += agrees(value, rules)
    return agree / len(signals), evidence
