"""Classifies each GPU (idle, productive, stalled ...) from several signals, not utilization alone.

The rules are those of ``verdict_table``; this module applies them over time. A condition is entered, and
left, only after three new samples that span two seconds. A lost device is lost at once and starts anew when
it recovers. With fewer samples, or between two conditions, only idle, working and unknown are possible.
A stall ends with progress, or after ten seconds without a request in flight. It does not end because
utilization falls: rejected requests look like recovery.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from autoglm_throttle.gpu.at_work import AtWork
from autoglm_throttle.gpu.full_speed import FullSpeed
from autoglm_throttle.gpu.power_range import PowerRange
from autoglm_throttle.gpu.progress import Progress
from autoglm_throttle.gpu.verdict_table import PLAIN, Reading, VerdictRules, find, weigh
from autoglm_throttle.model import Finding, Verdict

if TYPE_CHECKING:
    from autoglm_throttle.gpu.progress import Movement
    from autoglm_throttle.model import DeviceKey, GpuSample, GpuView, Work

__all__ = ["Judge", "VerdictRules"]

_SAME_S: Final = 1e-3  # a source recomputes its age each time: less is rounding, not a new measurement
_IDLE_SHARE: Final = 0.1  # of the limit, if never seen idle: 70 of 700 W, 50 of 400 W, 15 of 72 W
_STALE_S: Final = 3.0
_STALE_INTERVALS: Final = 3.0
_STALE_PERIODS: Final = 2.5  # the three limits of control/staleness


class Judge:
    """Tracks the verdict of each device; for one listener, which calls it in the order of time.

    Args:
        rules: the thresholds.
    """

    __slots__ = ("_cards", "_progress", "_rules")

    def __init__(self, rules: VerdictRules | None = None) -> None:
        self._rules = rules or VerdictRules()
        self._progress = Progress()
        self._cards: dict[DeviceKey, _Card] = {}

    def __repr__(self) -> str:
        found = ", ".join(f"{key[1]}: {card.verdict.finding}" for key, card in self._cards.items())
        return f"Judge({found})"

    def update(self, view: GpuView, work: Work, now: float) -> GpuView:
        """Update the verdicts of all devices.

        Args:
            view: all devices; a repeated measurement of a device changes nothing.
            work: statistics of our own requests.
            now: monotonic seconds, not before that of the call before.

        Returns:
            The same view with ``verdicts`` of all devices (engines get none), and with a capacity in which a
            throttled device counts by its clock over its full speed, the mean of its last three samples; one
            that is only held to the power limit it has had since the start counts whole.
        """
        around = _around(view, work, self._progress.update(view, work, now), self._rules)
        rows = {(row.host, row.device): row for row in view.devices if row.kind != "engine"}
        for key in self._cards.keys() - rows.keys():
            del self._cards[key]
        missing = 0.0
        for key, row in rows.items():
            card = self._cards.get(key)
            if card is None:
                card = self._cards[key] = _Card(self._rules, now)
            card.judge(row, around, now)
            if card.verdict.finding is Finding.THROTTLED:
                # A throttled device stays usable; only the lost share of its speed leaves the capacity.
                missing += view.weights.get(key, 0.0) * (1.0 - card.speed_share)
        verdicts = {key: self._cards[key].verdict for key in rows}
        return replace(view, verdicts=verdicts, capacity=max(0.0, view.capacity - missing))


@dataclass(frozen=True, slots=True)
class _Around:
    """Inputs that are common to all devices of one update."""

    work: Work
    movement: Movement
    interval_s: float
    fullest_pct: float | None
    active: int
    queued: float | None
    latency_share: float | None


def _around(view: GpuView, work: Work, movement: Movement, rules: VerdictRules) -> _Around:
    told = [
        pct
        for row in view.devices
        if row.kind != "engine" and row.health != "lost" and (pct := _utilization(row)) is not None
    ]
    return _Around(
        work=work,
        movement=movement,
        interval_s=view.interval_s or 0.0,
        fullest_pct=max(told, default=None),
        active=sum(pct >= rules.idle_pct for pct in told),
        queued=view.queued / view.engines if view.queued is not None and view.engines else None,
        latency_share=work.p95_s / work.slo_s if work.p95_s is not None and work.slo_s else None,
    )


class _Streak:
    """Counts new samples in a row and the time that they span."""

    __slots__ = ("_count", "_started_s")

    def __init__(self) -> None:
        self._count = 0
        self._started_s = 0.0

    def add(self, at_s: float) -> None:
        if not self._count:
            self._started_s = at_s
        self._count += 1

    def restart(self) -> None:
        self._count = 0

    def holds(self, at_s: float, rules: VerdictRules) -> bool:
        return self._count >= rules.samples and at_s - self._started_s >= rules.span_s


class _Card:
    """History and verdict of one device."""

    __slots__ = (
        "_as_given",
        "_clocks",
        "_coming",
        "_for",
        "_measured_s",
        "_power",
        "_rules",
        "_seen",
        "_speed",
        "_without",
        "_work_sm",
        "_work_w",
        "verdict",
    )

    def __init__(self, rules: VerdictRules, now: float) -> None:
        self._rules = rules
        self._power = PowerRange()
        self._speed = FullSpeed()
        self._as_given = False
        self._work_w, self._work_sm = AtWork(), AtWork()
        self.verdict = Verdict(Finding.UNKNOWN, now, 0.0)
        self._restart()

    @property
    def speed_share(self) -> float:
        """Clock over full speed, 0.2..1; 1 where it is not known, or as slow as since the start."""
        return math.fsum(self._clocks) / len(self._clocks) if self._clocks and not self._as_given else 1.0

    def _restart(self) -> None:
        """Reset the history of samples; the baselines of power and clock remain."""
        self._measured_s = -math.inf
        self._clocks: deque[float] = deque(maxlen=self._rules.samples)
        self._coming = Finding.UNKNOWN
        self._for, self._without, self._seen = _Streak(), _Streak(), _Streak()

    def judge(self, row: GpuSample, around: _Around, now: float) -> None:
        """Update the verdict."""
        # A timestamp in the future would make all later samples look old.
        at_s = min(row.taken_at_s - row.age_s, now)
        if row.health == "lost":
            self._restart()
            self._say(Finding.LOST, Reading(), now)
        elif at_s > self._measured_s + _SAME_S:
            self._measured_s = at_s
            reading = self._read(row, around, at_s)
            self._say(self._follow(reading, around.movement, at_s), reading, now)
        elif self._disproved(row, around, now):
            self._say(Finding.UNKNOWN, Reading(), now)

    def _say(self, finding: Finding, reading: Reading, now: float) -> None:
        held = self.verdict
        confidence, evidence = weigh(finding, reading, self._rules)
        self.verdict = Verdict(
            finding, held.since_s if held.finding is finding else now, confidence, evidence
        )

    def _follow(self, reading: Reading, movement: Movement, at_s: float) -> Finding:
        """Return the next condition; entering and leaving one takes several agreeing samples."""
        held, found = self.verdict.finding, find(reading, self._rules)
        if held is Finding.STALLED and not self._released(movement):
            found = held
        if found is not self._coming:
            self._coming = found
            self._for.restart()
        if found is held:
            self._without.restart()
        else:
            self._without.add(at_s)
        self._for.add(at_s)
        self._seen.add(at_s)
        if self._for.holds(at_s, self._rules):
            self._without.restart()  # the samples that led here do not count against it
            return found
        settled = self._seen.holds(at_s, self._rules) and not self._without.holds(at_s, self._rules)
        return held if settled else find(reading, self._rules, PLAIN)

    def _released(self, movement: Movement) -> bool:
        moved = movement.moved_s is not None and movement.moved_s > self.verdict.since_s
        return moved or movement.unused_s >= self._rules.release_s

    def _disproved(self, row: GpuSample, around: _Around, now: float) -> bool:
        """Return whether our own requests end the stall of a device with outdated telemetry."""
        stale_s = max(_STALE_S, _STALE_INTERVALS * around.interval_s, _STALE_PERIODS * (row.period_s or 0.0))
        silent = now - self._measured_s > stale_s
        return silent and self.verdict.finding is Finding.STALLED and self._released(around.movement)

    def _read(self, row: GpuSample, around: _Around, at_s: float) -> Reading:
        rules, work, movement = self._rules, around.work, around.movement
        percent = _utilization(row)
        busy = percent is not None and percent >= rules.busy_pct
        active = percent is not None and percent >= rules.idle_pct
        self._speed.learn(row, at_s, busy=busy)
        self._as_given = self._speed.only_as_given(row)
        clock = self._speed.share(row)
        if clock is not None:
            self._clocks.append(clock)
        bits = row.throttle
        for at_work, value in ((self._work_w, _power_w(row)), (self._work_sm, row.sm_active_ratio)):
            at_work.learn(value, at_s, active=active, waited_for=work.in_flight > 0, moved_s=movement.moved_s)
        return Reading(
            utilization_pct=percent,
            fullest_pct=around.fullest_pct,
            elsewhere=float(around.active > active),
            power_share=self._draw(row, at_s, idle=percent is not None and not active, busy=busy),
            power_of_usual=self._draw_of_usual(row),
            sm_active_ratio=row.sm_active_ratio,
            sm_of_usual=_ratio(row.sm_active_ratio, self._work_sm.mean),
            dram_active_ratio=row.dram_active_ratio,
            tensor_active_ratio=row.tensor_active_ratio,
            fault_bits=None if bits is None else float(len(bits - {"sw_power_cap"})),
            power_cap=None if bits is None else float("sw_power_cap" in bits),
            limit_share=_limit_share(row),
            throttled_ratio=row.throttled_ratio,
            clock_share=clock,
            progress_per_s=movement.per_s,
            silent_share=movement.silent_s / self._long_s(movement),
            progress_share=movement.share,
            in_flight=work.in_flight,
            backlog=max(work.waiting, int(work.at_limit)),
            queued=around.queued,
            latency_share=around.latency_share,
            host_load=work.host_load,
            host_iowait=work.host_iowait,
        )

    def _draw(self, row: GpuSample, at_s: float, *, idle: bool, busy: bool) -> float | None:
        power_w = _power_w(row)
        if power_w is None or row.power_limit_w is None:
            return None
        self._power.learn(power_w, at_s, idle=idle, busy=busy)
        return self._power.share(power_w, row.power_limit_w, at_s)

    def _draw_of_usual(self, row: GpuSample) -> float | None:
        """Return power over the baseline at work, both above idle power."""
        power_w, usual_w, idle_w = _power_w(row), self._work_w.mean, self._power.idle_w
        if idle_w is None:
            idle_w = _IDLE_SHARE * (row.power_limit_w or 0.0)
        if power_w is None or usual_w is None or usual_w <= idle_w:
            return None
        return max(0.0, power_w - idle_w) / (usual_w - idle_w)

    def _long_s(self, movement: Movement) -> float:
        """Return the seconds without progress that make a stall of this service on this device."""
        seen = self._work_w.mean is not None or self._work_sm.mean is not None
        return max(self._rules.stalled_s, movement.window_s, 0.0 if seen else self._rules.first_s)


def _power_w(row: GpuSample) -> float | None:
    return row.power_w if row.power_mean_w is None else row.power_mean_w


def _ratio(value: float | None, usual: float | None) -> float | None:
    return None if value is None or not usual else value / usual


def _limit_share(row: GpuSample) -> float | None:
    if row.power_limit_w is None or row.power_limit_default_w is None:
        return None
    return row.power_limit_w / row.power_limit_default_w


def _utilization(row: GpuSample) -> float | None:
    """Return the utilization, or for a MIG instance, which has none, the share of time with any work."""
    if row.utilization_pct is not None or row.graphics_active_ratio is None:
        return row.utilization_pct
    return 100.0 * row.graphics_active_ratio
