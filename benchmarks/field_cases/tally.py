"""Counts of one run, by kind, priority and group of users."""

from __future__ import annotations

from collections import Counter

from benchmarks.field_cases.call import Call

Key = tuple[str, int, str]


class Tally:
    """Counts the attempts that were sent within a window.

    Args:
        from_s: begin of the window.
        until_s: its end.
    """

    def __init__(self, from_s: float, until_s: float) -> None:
        self.from_s = from_s
        self.until_s = until_s
        self.offered: Counter[Key] = Counter()
        """First attempts."""
        self.attempts: Counter[Key] = Counter()
        self.good: Counter[Key] = Counter()
        """Answers within the objective of their attempt."""
        self.late: Counter[Key] = Counter()
        self.lost: Counter[Key] = Counter()
        self.rejected: Counter[Key] = Counter()
        self.latencies_s: list[float] = []

    def sent(self, call: Call) -> None:
        """Count an attempt."""
        if self._counts(call):
            key = _key(call)
            self.attempts[key] += 1
            if call.tries == 0:
                self.offered[key] += 1

    def reject(self, call: Call) -> None:
        """Count a rejection."""
        if self._counts(call):
            self.rejected[_key(call)] += 1

    def end(self, call: Call, now: float, *, ok: bool) -> None:
        """Count the end of an admitted attempt."""
        if not self._counts(call):
            return
        lasted_s = now - call.sent_s
        self.latencies_s.append(lasted_s)
        in_time = lasted_s <= call.slo_s and _begins_in_time(call)
        where = self.lost if not ok else self.good if in_time else self.late
        where[_key(call)] += 1

    @property
    def lasts_s(self) -> float:
        """Return the length of the window in seconds."""
        return self.until_s - self.from_s

    def _counts(self, call: Call) -> bool:
        return self.from_s <= call.sent_s < self.until_s


def total(
    counts: Counter[Key], kind: str | None = None, priority: int | None = None, group: str | None = None
) -> int:
    """Return the sum of the counts of a kind, a priority and a group; None: of all of them."""
    return sum(
        count
        for (of_kind, of_priority, of_group), count in counts.items()
        if kind in (None, of_kind) and priority in (None, of_priority) and group in (None, of_group)
    )


def _key(call: Call) -> Key:
    return call.kind.name, call.priority, call.group


def _begins_in_time(call: Call) -> bool:
    """Whether the first token came within its objective, if there is one."""
    objective_s = call.kind.first_slo_s
    return objective_s is None or (call.first_s is not None and call.first_s - call.sent_s <= objective_s)
