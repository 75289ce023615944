"""Priorities of requests."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal

PriorityName = Literal["high", "mid", "low"]
"""The labels of `Priority`, accepted wherever a user states a priority in code."""


class Priority(IntEnum):
    """The three priorities, the most important first."""

    HIGH = 0
    MID = 1
    LOW = 2

    @property
    def label(self) -> str:
        """The lower-case name, as in settings, logs and metrics."""
        return self._name_.lower()

    @classmethod
    def parse(cls, stated: str) -> Priority:
        """Read a stated priority; a stated but unknown one is low.

        ``high mid low`` and ``1 2 3`` are known, without regard to case or surrounding blanks.
        The rule "1 is high, 2 is mid, anything else is low" is a founding figure.
        """
        return _STATED.get(stated.strip().lower(), cls.LOW)

    @classmethod
    def knows(cls, stated: str) -> bool:
        """Whether a stated priority is one of the known texts."""
        return stated.strip().lower() in _STATED


_STATED = {
    "high": Priority.HIGH,
    "1": Priority.HIGH,
    "mid": Priority.MID,
    "2": Priority.MID,
    "low": Priority.LOW,
    "3": Priority.LOW,
}
