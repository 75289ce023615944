"""The table of the policy ``adaptive``, written again in the words of the design, with no care for speed."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Sample:
    """What the controller learns at one new sample."""

    pct: float
    confirmed: bool
    service_rps: float | None
    capacity: float


@dataclass
class SlowAdaptive:
    """One step per new sample; strikes and calm are counted anew from all samples each time."""

    steps: tuple[tuple[float, float], ...]
    rates: tuple[float, float, float]
    budget: float = field(init=False)
    ceilings: list[float] = field(default_factory=lambda: [1.0, 1.0, 1.0])
    acting: bool = False
    seen: list[Sample] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.budget = sum(self.rates)

    def table(self, pct: float) -> float:
        """The factor of the highest edge below the signal."""
        return min([factor for edge, factor in self.steps if edge < pct], default=1.0)

    def trailing(self, wanted: list[bool]) -> int:
        """How many at the end of the list are true."""
        return len(wanted) if all(wanted) else wanted[::-1].index(False)

    def sample(self, sample: Sample) -> tuple[float, tuple[float, ...], str]:
        """The budget, the ceilings and the state after one more sample."""
        self.seen.append(sample)
        capacity = min(s.capacity for s in self.seen[-3:])  # down at once, up after three
        nominal = sum(self.rates) * capacity
        lowest = min(edge for edge, _ in self.steps)
        strikes = self.trailing([s.confirmed and s.pct > lowest for s in self.seen])
        calm = self.trailing([not s.confirmed for s in self.seen])
        completes = 1.15 * (sample.service_rps or 1.0)
        least = [min(1.0, completes / rate) for rate in self.rates]
        if strikes >= 3:
            row = self.table(sample.pct)
            rate, state, self.acting = max(row * nominal, completes), "cut", True
            self.ceilings = [max(row * capacity, floor) for floor in least]
        elif calm >= 2 or not self.acting:
            rate, self.acting, self.ceilings = nominal, False, [1.0, 1.0, 1.0]
            state = "striking" if strikes else "open"
        else:
            rate, state = max(self.budget, completes), "held"
            self.ceilings = [max(before, floor) for before, floor in zip(self.ceilings, least, strict=True)]
        self.budget = min(rate, nominal)
        return self.budget, tuple(self.ceilings), state
