"""What `Throttle.admit` gives: a Permit that must be settled once, or a Rejection that need not."""

from __future__ import annotations

from bisect import bisect_left
from types import TracebackType
from typing import Final, Literal

from autoglm_throttle.model import Decision, Demand, Outcome
from autoglm_throttle.snapshot import DURATION_BUCKETS_S, Rows

_NEUTRAL: Final = Outcome.NEUTRAL


class Permit:
    """The right to run one request. It must be settled once, most simply by ``with permit:``.

    Leaving the block settles it: ``success``, ``failure`` after an exception,
    ``neutral`` after a cancellation, which says nothing about the service.
    """

    __slots__ = ("_rows", "admitted_s", "decision", "demand", "settled")

    admitted: Literal[True] = True

    def __init__(self, rows: Rows, demand: Demand, decision: Decision, admitted_s: float) -> None:
        self._rows = rows
        self.demand: Demand = demand
        self.decision: Decision = decision
        self.admitted_s: float = admitted_s
        self.settled: bool = False

    def settle(self, outcome: Outcome = Outcome.SUCCESS) -> None:
        """Say how the request ended. Never waits; a second call changes nothing and is counted."""
        rows = self._rows
        duration_s = rows.clock() - self.admitted_s
        with rows.lock:
            if self.settled:
                rows.stale_results += 1
                return
            self.settled = True
            row = rows.classes[self.demand.priority]
            row.outcomes[outcome] += 1
            if outcome is not _NEUTRAL:
                durations = row.durations
                durations.counts[bisect_left(DURATION_BUCKETS_S, duration_s)] += 1
                durations.total_s += duration_s

    def __enter__(self) -> Permit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.settle(Outcome.SUCCESS)
        else:
            self.settle(Outcome.FAILURE if issubclass(kind, Exception) else Outcome.NEUTRAL)

    def __repr__(self) -> str:
        return f"Permit({self.demand!r}, {'settled' if self.settled else 'open'})"


class Rejection:
    """A refused demand: nothing was taken, nothing needs to be settled."""

    __slots__ = ("decision", "demand")

    admitted: Literal[False] = False

    def __init__(self, demand: Demand, decision: Decision) -> None:
        self.demand: Demand = demand
        self.decision: Decision = decision

    def __repr__(self) -> str:
        return f"Rejection({self.demand!r}, {self.decision.detail})"
