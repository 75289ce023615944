"""A log of every unit, kept as slowly and as plainly as can be: what the script and the memory are held to.

The exact form remembers a unit by its instant in microseconds, the compact one by the number of its
sub-bucket. What differs between them is said in `Form`; the rest is counting.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from autoglm_throttle.store.protocol import Policy, WindowEntry

BUCKETS = 60


@dataclass(frozen=True)
class Form:
    """How instants become stamps."""

    exact: bool
    window_us: int

    @property
    def width_us(self) -> int:
        """Of a sub-bucket: a sixtieth of the window, rounded up."""
        return -(-self.window_us // BUCKETS)

    def stamp(self, clock: int) -> int:
        return clock if self.exact else clock // self.width_us

    @property
    def kept(self) -> int:
        """A unit stamped s is counted while the present stamp is below s + kept."""
        return self.window_us if self.exact else BUCKETS + 1

    @property
    def far(self) -> int:
        """A clock so far behind the newest stamp has gone back too far to wait for."""
        return self.window_us if self.exact else BUCKETS

    def leaves(self, stamp: int) -> int:
        """The instant from which a unit is counted no more."""
        return stamp + self.window_us if self.exact else (stamp + BUCKETS + 1) * self.width_us


@dataclass
class Window:
    """The units under one key, oldest first."""

    form: Form
    units: list[int] = field(default_factory=list)
    newest: int = 0

    def look(self, clock: int) -> tuple[int, list[int]]:
        """The present stamp and the units that count."""
        now = self.form.stamp(clock)
        newest = self.units[-1] if self.form.exact and self.units else self.newest
        if self.units and newest > now:
            if newest - now >= self.form.far:
                return now, self._keep([])
            now = newest
        return now, self._keep([unit for unit in self.units if unit > now - self.form.kept])

    def _keep(self, live: list[int]) -> list[int]:
        """In the exact form a look drops what has expired; the compact one writes only to spend."""
        if self.form.exact:
            self.units = live
        return live

    def spend(self, units: int, clock: int) -> None:
        now, live = self.look(clock)
        self.units = live + [now] * units
        self.newest = now

    def refund(self, units: int, stamp: int) -> int:
        first = bisect_left(self.units, stamp)
        moved = min(units, bisect_right(self.units, stamp) - first)
        del self.units[first : first + moved]
        return moved


class Reference:
    """Answers as the script does."""

    def __init__(self) -> None:
        self._windows: dict[str, Window] = {}

    def call(self, entries: Sequence[WindowEntry], clock: int) -> list[list[int]]:
        return [self._ask(e, clock) if not e.refunds else self._refund(e) for e in entries]

    def lasts_us(self, key: str, clock: int) -> int:
        """Until the newest unit under a key leaves."""
        window = self._windows[key]
        return window.form.leaves(max(window.units)) - clock if window.units else 0

    def _ask(self, ask: WindowEntry, clock: int) -> list[int]:
        costs = [charge.units for charge in ask.charges for _ in charge.limits]
        parts = list(zip(ask.keys, ask.policies, costs, strict=True))
        looks = [self._judge(*part, clock) for part in parts]
        if not any(look[0] for look in looks):
            for (key, policy, cost), look in zip(parts, looks, strict=True):
                if cost:
                    self._window(key, policy).spend(cost, clock)
                    look[1:3] = self._judge(key, policy, 0, clock)[1:3]
        return [value for look in looks for value in look]

    def _judge(self, key: str, policy: Policy, cost: int, clock: int) -> list[int]:
        window, limit = self._window(key, policy), policy[1]
        now, live = window.look(clock)
        ends = [window.form.leaves(unit) - clock for unit in live]
        surplus = len(live) + cost - limit
        wait = ends[surplus - 1] if surplus > 0 and cost <= limit else 0
        if cost > limit:
            wait = -1
        return [wait, max(0, limit - len(live)), ends[0] if ends else 0, now]

    def _refund(self, entry: WindowEntry) -> list[int]:
        parts = zip(entry.keys, entry.policies, entry.refunds, entry.stamps, strict=True)
        return [self._window(key, policy).refund(units, stamp) for key, policy, units, stamp in parts]

    def _window(self, key: str, policy: Policy) -> Window:
        return self._windows.setdefault(key, Window(Form(policy[0] == "l", policy[2])))
