"""How far an old signal can be believed, and what to assume instead.

A signal that stopped is first held, then blended into an assumption, then replaced by it:
it never opens or shuts the door at once.
"""

from __future__ import annotations

from autoglm_throttle.model import Telemetry, Unknown

STARTING_S = 5.0
"""Time from the start in which a missing first sample is not yet a fault."""

CONSERVATIVE = 0.7
"""The factor assumed by ``conservative``: the mildest tier of the founding table."""


class Staleness:
    """The ladder fresh, late, stale, blind by the age of the newest sample.

    Args:
        interval_s: promised time between samples.
        stale_after_s: age from which the factor drifts; None: 3 intervals, at least 3 s.
        blind_after_s: age at which the drift has ended, at least twice ``stale_after_s``.
        unknown: what a blind controller assumes.
    """

    def __init__(
        self,
        interval_s: float = 1.0,
        stale_after_s: float | None = None,
        blind_after_s: float = 30.0,
        unknown: Unknown = Unknown.OPEN,
    ) -> None:
        self.fresh_s: float = 2.0 * interval_s
        """Greatest age of a fresh signal: one missed tick shows."""
        self.stale_s: float = max(3.0 * interval_s, 3.0) if stale_after_s is None else stale_after_s
        self.fresh_s = min(self.fresh_s, self.stale_s)
        self.blind_s: float = max(blind_after_s, 2.0 * self.stale_s)
        self.unknown = unknown

    def state(self, age_s: float) -> Telemetry:
        """The rung for a signal of this age."""
        if age_s <= self.fresh_s:
            return Telemetry.FRESH
        if age_s <= self.stale_s:
            return Telemetry.LATE
        if age_s <= self.blind_s:
            return Telemetry.STALE
        return Telemetry.BLIND

    def assumed(self, held: float) -> float:
        """The factor of a blind controller that last held ``held``."""
        if self.unknown is Unknown.LAST:
            return held
        return {Unknown.OPEN: 1.0, Unknown.CONSERVATIVE: CONSERVATIVE, Unknown.CLOSED: 0.0}[self.unknown]

    def factor(self, held: float, age_s: float) -> float:
        """The factor at this age: held while fresh or late, then straight to the assumed one."""
        return held + (self.assumed(held) - held) * self._way(age_s)

    def capacity(self, held: float, age_s: float) -> float:
        """The usable share of the devices: as last seen, and once nothing is seen any more, all of them.

        A loss is believed as long as reads go on; a sensor that died must not be an outage for ever.
        """
        return held if self.unknown is Unknown.LAST else held + (1.0 - held) * self._way(age_s)

    def _way(self, age_s: float) -> float:
        """How far the drift is: 0 until stale, 1 from blind on."""
        return min(1.0, max(0.0, (age_s - self.stale_s) / (self.blind_s - self.stale_s)))
