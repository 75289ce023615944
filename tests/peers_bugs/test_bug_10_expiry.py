"""Bug 10: expiry that looks at everything, so that now and then one request pays for all."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from tests.peers_bugs.limiter import WINDOW_S, Make, Plain, Subject, ours

FEW, MANY = 50, 2000


def lines_of_one_request(subject: Subject) -> int:
    """Lines of Python that a request executes: its cost, but the same on every machine."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        subject.ask("192.0.2.1")
    finally:
        sys.settrace(before)
    return count


def most_lines(make: Make, users: int) -> int:
    subject = make()
    for n in range(users):
        subject.ask(f"198.51.{n >> 8}.{n & 255}")
    subject.clock.advance(WINDOW_S + 1)
    return max(lines_of_one_request(subject) for _ in range(10))


def check(make: Make) -> None:
    few, many = most_lines(make, FEW), most_lines(make, MANY)
    assert many <= few + 10, f"{many} lines with {MANY} idle users, {few} with {FEW}"


class ScansAll(Plain):
    def expire(self, now: float) -> None:
        for key in list(self.logs):
            if self.logs[key][-1] + WINDOW_S <= now:
                del self.logs[key]


@pytest.mark.parametrize("make", [ours, Plain.subject])
def test_request_does_not_pay_for_the_expiry_of_all(make: Make) -> None:
    check(make)


def test_planted_scan_is_found() -> None:
    with pytest.raises(AssertionError, match="idle users"):
        check(ScansAll.subject)
