"""A tally: what became of some planned requests, as it stands in a report."""

from __future__ import annotations

import math
from collections.abc import Mapping

from autoglm_throttle.traffic.books import Row
from autoglm_throttle.traffic.ending import Ending
from autoglm_throttle.traffic.report.schema import Tally
from autoglm_throttle.traffic.report.times import times


def tally(row: Row, length_s: float, step_s: float) -> Tally:
    """A row of the books as it stands in a report.

    Args:
        row: its sums.
        length_s: how long the stretch was in which its requests were sent; 0 or less if none was.
        step_s: of the row's answers.
    """

    def ratio(count: int) -> float | None:
        return count / row.sent if row.sent else None

    def rate(answers: Mapping[int, int]) -> float:
        return _rate(answers, length_s, step_s)

    return {
        "planned": row.planned,
        "unsent": row.unsent,
        "classes": {ending.label: row.endings[ending] for ending in Ending},
        "statuses": {str(status): count for status, count in sorted(row.statuses.items())},
        "reasons": dict(sorted(row.reasons.items())),
        "cost": {"planned": row.cost_planned, "served": row.cost_served},
        "done_ratio": ratio(row.answered),
        "error_ratio": ratio(row.failed),
        "limited_ratio": ratio(row.limited),
        "rejected_ratio": ratio(row.rejected),
        "dropped_ratio": ratio(row.endings[Ending.DROPPED]),
        "goodput": {"requests": row.timely, "ratio": ratio(row.timely), "rps": rate(row.timely_answers)},
        "rps": rate(row.answers),
        "response": times(row.response),
        "service": times(row.service),
        "first_byte": times(row.first_byte),
        "refusal": times(row.refusal),
        "promised": times(row.promised),
    }


def _rate(answers: Mapping[int, int], length_s: float, step_s: float) -> float:
    """Answers per second, over as much time from the first of them as the sending took.

    So an answer may be slow without lowering the rate, while what a queue answers only after the sending,
    in the time of the drain, raises no rate.
    """
    if length_s <= 0.0 or not answers:
        return 0.0
    last = min(answers) + math.ceil(length_s / step_s)
    return sum(count for step, count in answers.items() if step <= last) / length_s
