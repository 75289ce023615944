"""Classifies each GPU (idle, productive, stalled ...) from several signals, not utilization alone.

A condition is entered, and left, only after three new samples that span two seconds. Until then only idle,
working and unknown are possible. A stall ends with progress, or after ten seconds without a request in
flight, not because utilization falls: rejected requests look like recovery.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from functools import partial
from typing import Final

from autoglm_throttle.gpu.aggregate import BELIEVED_PERIODS, load_pct, power_w, ratio
from autoglm_throttle.gpu.verdict import table
from autoglm_throttle.gpu.verdict.baselines import CAPPED, ClockBaseline, PowerBaseline, WorkBaseline
from autoglm_throttle.gpu.verdict.table import BUSY_PCT, IDLE_PCT, VerdictInput
from autoglm_throttle.gpu.verdict.throughput import Throughput, ThroughputTracker
from autoglm_throttle.settings.groups.gpu import GpuSettings, VerdictSettings, stale_at_least_s
from autoglm_throttle.types import DeviceKey, GpuCondition, GpuSample, GpuVerdict, GpuView, ServiceStats

# New samples that must agree to enter a condition, and to leave one: one odd sample is a hiccup.
SAMPLES: Final = 3
SPAN_S: Final = 2.0  # Seconds that these samples must span: three samples of 0.2 s are one measurement
# Seconds without progress that make a stall without a baseline; chosen: a first request compiles a model.
FIRST_S: Final = 600.0
RELEASE_S: Final = 10.0  # Seconds without any request in flight after which a stall counts as over
_SAME_S: Final = 1e-3  # a source recomputes its age each time: less is rounding, not a new measurement
_AS_REPORTED: Final = ("sm_active_ratio", "dram_active_ratio", "tensor_active_ratio", "throttled_ratio")
_IDLE_SHARE: Final = 0.15  # of the limit, if never seen idle: V100 and A100 13 to 18 %, H100 10 %


class VerdictTracker:
    """Tracks the verdict of each device; for one listener, which calls it in the order of time."""

    def __init__(
        self, settings: VerdictSettings, gpu: GpuSettings, *, span_s: float = SPAN_S, first_s: float = FIRST_S
    ) -> None:
        self._queue_target = gpu.gpu_queue_target
        self._new_history = partial(_DeviceHistory, settings, span_s, first_s)
        self._throughput = ThroughputTracker()
        self._devices: dict[DeviceKey, _DeviceHistory] = {}

    def update(self, view: GpuView, work: ServiceStats, now: float) -> GpuView:
        """Update the verdicts of all devices (engines get none); a repeated measurement changes nothing.

        In the capacity a throttled device counts by its clock over its full speed, the mean of its last
        samples. At a lowered power limit the progress of the service counts if that is more; at the limit of
        the start the device counts whole.
        """
        # The throughput of slowed devices is no baseline for it.
        learns = all(
            device.verdict.condition is not GpuCondition.THROTTLED for device in self._devices.values()
        )
        throughput = self._throughput.update(view, work, now, learns=learns)
        common = _common_input(view, work, throughput, self._queue_target)
        rows = {(row.host, row.device): row for row in view.devices if row.kind != "engine"}
        for key in self._devices.keys() - rows.keys():
            del self._devices[key]
        for key, row in rows.items():
            device = self._devices.get(key)
            if device is None:
                device = self._devices[key] = self._new_history(now)
            device.evaluate(row, common, throughput, view.interval_s or 0.0, now)
        verdicts = {key: self._devices[key].verdict for key in rows}
        slow = [key for key in rows if verdicts[key].condition is GpuCondition.THROTTLED]
        # A throttled device stays usable; only the lost share of its speed leaves the capacity.
        by_limit, by_fault = (
            math.fsum(
                view.weights.get(key, 0.0) * (1.0 - self._devices[key].speed_share)
                for key in slow
                if (rows[key].throttle == CAPPED) is is_limit
            )
            for is_limit in (True, False)
        )
        if throughput.share is not None:
            # At a lower power limit a clock may fall without any loss of progress.
            by_limit = min(by_limit, max(0.0, 1.0 - throughput.share))
        missing = by_limit + by_fault
        return replace(view, verdicts=verdicts, capacity=max(0.0, view.capacity - missing))


def _common_input(
    view: GpuView, work: ServiceStats, throughput: Throughput, queue_target: float
) -> VerdictInput:
    values = [
        pct
        for row in view.devices
        if row.kind != "engine" and row.health != "lost" and (pct := load_pct(row)) is not None
    ]
    return VerdictInput(
        fullest_pct=max(values, default=None),
        active=sum(pct >= IDLE_PCT for pct in values),
        progress_per_s=throughput.per_s,
        progress_share=throughput.share,
        in_flight=work.in_flight,
        backlog=max(work.waiting, int(work.at_limit)),
        queued=ratio(view.queued, view.engines),
        queue_target=queue_target,
        latency_share=ratio(work.p95_s, work.slo_s),
        host_load=work.host_load,
        host_iowait=work.host_iowait,
        host_pressure=work.host_pressure,
        host_throttled=work.host_throttled,
    )


class _Hysteresis:
    """Delays a change of the condition until several samples in a row agree."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._candidate = GpuCondition.UNKNOWN
        # Times of the first samples of each streak.
        self._agreeing, self._disagreeing, self._observed = list[float](), list[float](), list[float]()

    def next(self, current: GpuCondition, condition: GpuCondition, at_s: float) -> GpuCondition | None:
        """Return the condition in force after a new sample; None: too few samples agree."""
        if condition is not self._candidate:
            self._candidate = condition
            self._agreeing.clear()
        streaks = [self._agreeing, self._observed]
        if condition is current:
            self._disagreeing.clear()
        else:
            streaks.append(self._disagreeing)
        for streak in streaks:
            if len(streak) < SAMPLES:
                streak.append(at_s)
        if self._holds(self._agreeing, at_s):
            self._disagreeing.clear()  # the samples that led here do not count against it
            return condition
        settled = self._holds(self._observed, at_s) and not self._holds(self._disagreeing, at_s)
        return current if settled else None

    def _holds(self, streak: list[float], at_s: float) -> bool:
        return len(streak) >= SAMPLES and at_s - streak[0] >= self._span_s


class _DeviceHistory:
    """History and verdict of one device."""

    def __init__(self, settings: VerdictSettings, span_s: float, first_s: float, now: float) -> None:
        self._settings = settings
        self._span_s = span_s
        self._first_s = first_s
        self._power = PowerBaseline()
        self._clock = ClockBaseline()
        self._at_initial_limit = False
        self._work_w, self._work_sm = WorkBaseline(), WorkBaseline()
        self.verdict = GpuVerdict(GpuCondition.UNKNOWN, now, 0.0)
        self._restart()

    @property
    def speed_share(self) -> float:
        """Clock over full speed, 0.2..1; 1 where it is not known, or as slow as since the start."""
        if not self._clocks or self._at_initial_limit:
            return 1.0
        return math.fsum(self._clocks) / len(self._clocks)

    def _restart(self) -> None:
        """Reset the history of samples; the baselines of power and clock remain."""
        self._measured_s = -math.inf
        self._clocks: deque[float] = deque(maxlen=SAMPLES)
        self._hysteresis = _Hysteresis(self._span_s)

    def evaluate(
        self, row: GpuSample, common: VerdictInput, throughput: Throughput, interval_s: float, now: float
    ) -> None:
        """Update the verdict."""
        # A timestamp in the future would make all later samples look old.
        at_s = min(row.taken_at_s - row.age_s, now)
        if row.health == "lost":
            self._restart()
            self._set_verdict(GpuCondition.LOST, VerdictInput(), now)
        elif at_s > self._measured_s + _SAME_S:
            self._measured_s = at_s
            inputs = self._build_input(row, common, throughput, at_s)
            current, condition = self.verdict.condition, table.classify(inputs, self._settings)
            if current is GpuCondition.STALLED and not self._stall_is_over(throughput):
                condition = current
            # Entering and leaving a condition takes several agreeing samples.
            settled = self._hysteresis.next(current, condition, at_s)
            if settled is None:
                settled = table.classify(inputs, self._settings, table.IMMEDIATE_RULES)
            self._set_verdict(settled, inputs, now)
        elif self.verdict.condition is GpuCondition.STALLED and self._stall_is_over(throughput):
            # Our own requests end the stall of a device with outdated telemetry.
            stale_s = max(stale_at_least_s(interval_s), BELIEVED_PERIODS * (row.period_s or 0.0))
            if now - self._measured_s > stale_s:
                self._set_verdict(GpuCondition.UNKNOWN, VerdictInput(), now)

    def _set_verdict(self, condition: GpuCondition, inputs: VerdictInput, now: float) -> None:
        since_s = self.verdict.since_s if self.verdict.condition is condition else now
        self.verdict = GpuVerdict(condition, since_s, *table.confidence(condition, inputs, self._settings))

    def _stall_is_over(self, throughput: Throughput) -> bool:
        progressed = throughput.progressed_s is not None and throughput.progressed_s > self.verdict.since_s
        return progressed or throughput.no_request_s >= RELEASE_S

    def _build_input(
        self, row: GpuSample, common: VerdictInput, throughput: Throughput, at_s: float
    ) -> VerdictInput:
        percent = load_pct(row)
        busy = percent is not None and percent >= BUSY_PCT
        active = percent is not None and percent >= IDLE_PCT
        self._clock.learn(row, at_s, busy=busy)
        self._at_initial_limit = self._clock.at_initial_limit(row)
        clock = self._clock.share(row)
        if clock is not None:
            self._clocks.append(clock)
        bits, drawn_w, power_share = row.throttle, power_w(row), None
        if drawn_w is not None and row.power_limit_w is not None:
            self._power.learn(drawn_w, at_s, idle=percent is not None and not active, busy=busy)
            power_share = self._power.share(drawn_w, row.power_limit_w, at_s)
        in_flight, progressed_s = common.in_flight > 0, throughput.progressed_s
        for baseline, value in ((self._work_w, drawn_w), (self._work_sm, row.sm_active_ratio)):
            baseline.learn(value, at_s, active=active, in_flight=in_flight, progressed_s=progressed_s)
        has_baseline = self._work_w.mean is not None or self._work_sm.mean is not None
        # Seconds without progress that make a stall of this service on this device.
        first_s = 0.0 if has_baseline else self._first_s
        stall_after_s = max(self._settings.stalled_s, throughput.window_s, first_s)
        return replace(
            common,
            utilization_pct=percent,
            active=common.active - active,
            power_share=power_share,
            power_of_baseline=self._power_of_baseline(row),
            sm_of_baseline=ratio(row.sm_active_ratio, self._work_sm.mean),
            fault_bits=None if bits is None else float(len(bits - {"sw_power_cap"})),
            power_cap=None if bits is None else float("sw_power_cap" in bits),
            limit_share=ratio(row.power_limit_w, row.power_limit_default_w),
            at_first_limit=float(self._at_initial_limit),
            limit_used=ratio(drawn_w, row.power_limit_w),
            clock_share=clock,
            silent_share=throughput.silent_s / stall_after_s,
            **{name: getattr(row, name) for name in _AS_REPORTED},
        )

    def _power_of_baseline(self, row: GpuSample) -> float | None:
        """Return power over the baseline at work, both above idle power."""
        drawn_w, baseline_w, idle_w = power_w(row), self._work_w.mean, self._power.idle_w
        if idle_w is None:
            idle_w = self._power.rest_w
        if idle_w is None and baseline_w is not None:
            idle_w = _IDLE_SHARE * (row.power_limit_w or 0.0)
            # A device that works at less rests at less, too.
            idle_w = idle_w if idle_w < baseline_w else 0.0
        if idle_w is None:
            return None
        if drawn_w is None or baseline_w is None or baseline_w <= idle_w:
            return None
        return max(0.0, drawn_w - idle_w) / (baseline_w - idle_w)
