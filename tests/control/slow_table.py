"""The literal table and the ladder, written again in the words of the design, with no care for speed."""

from __future__ import annotations

from dataclasses import dataclass, field

from autoglm_throttle.settings.groups.control import ControlSettings
from autoglm_throttle.types import MissingTelemetryMode


@dataclass
class SlowTable:
    """One step per new sample; the strikes are counted anew from all samples each time."""

    steps: tuple[tuple[float, float], ...]
    settings: ControlSettings
    factor: float = 1.0
    calm: int = 0
    seen: list[float] = field(default_factory=list)
    distrusted: int = 0
    """New samples, this one included, that may not raise the factor yet."""

    def row(self, signal_pct: float) -> float:
        """The factor of the highest edge below the signal."""
        return min([factor for edge, factor in self.steps if edge < signal_pct], default=1.0)

    def sample(self, signal_pct: float) -> float:
        """The factor after one more sample."""
        self.seen.append(signal_pct)
        lowest = min(edge for edge, _ in self.steps)
        strikes = 0
        for earlier in reversed(self.seen):
            if earlier <= lowest:
                break
            strikes += 1
        want = self.row(signal_pct) if strikes >= self.settings.tier_samples else 1.0
        up = self.row(signal_pct + self.settings.tier_release_margin_pct)
        self.distrusted = max(0, self.distrusted - 1)
        if want < self.factor:
            self.factor, self.calm = want, 0
        elif up > self.factor and self.distrusted == 0:
            self.calm += 1
            if self.calm >= self.settings.tier_release_samples:
                self.factor = min(up, self.factor + self.settings.tier_recovery_step)
        else:
            self.calm = 0
        return self.factor

    def resume(self, factor: float) -> None:
        """Go on after an outage: from the factor then in force, with three samples to look at first."""
        self.factor, self.calm, self.seen, self.distrusted = factor, 0, [], 3


def slow_ladder(
    held: float, age_s: float, *, stale_s: float, blind_s: float, unknown: MissingTelemetryMode
) -> float:
    """The factor at an age, rung by rung."""
    assumed = {
        MissingTelemetryMode.OPEN: 1.0,
        MissingTelemetryMode.LAST: held,
        MissingTelemetryMode.CONSERVATIVE: 0.7,
        MissingTelemetryMode.CLOSED: 0.0,
    }[unknown]
    if age_s <= stale_s:
        return held
    if age_s >= blind_s:
        return assumed
    share = (age_s - stale_s) / (blind_s - stale_s)
    return held * (1.0 - share) + assumed * share
