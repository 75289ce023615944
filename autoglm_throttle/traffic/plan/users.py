"""Users that wait for their responses: a closed loop, which offers less when the service slows down."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.plan.parsing import parse_duration, parse_whole
from autoglm_throttle.traffic.plan.shape import MAX_STEPS, check_length

THINK_S = 0.1
"""Between a response and the user's next request; the figure that the founding load tests used."""

MAX_USERS = 65_536
"""Each user holds a connection, and a host has no more ports than these."""

USERS_SYNTAX = "users:N:TIME[:THINK], users:FROM:TO:STEPS:TIME"
"""Syntax accepted by `Users.parse`."""


@dataclass(frozen=True, slots=True)
class Users:
    """Number of concurrent users over time, in steps.

    Raises:
        TrafficError: no step, or users that are not 1..65 536; a duration that is not a finite number above
            0, or more than `MAX_DURATION_S` in total; a think time that is not a finite number of at least 0.
    """

    steps: tuple[tuple[int, float], ...]
    """Users and seconds."""
    think_s: float = THINK_S

    def __post_init__(self) -> None:
        if not self.steps:
            raise TrafficError("users need at least one step")
        for users, duration_s in self.steps:
            if not 1 <= users <= MAX_USERS:
                raise TrafficError(f"users must be 1..{MAX_USERS}, not {users}")
            if not 0.0 < duration_s < math.inf:
                raise TrafficError(f"a duration must be a finite number above 0, not {duration_s!r}")
        check_length(self.duration_s)
        if not 0.0 <= self.think_s < math.inf:
            raise TrafficError(f"a think time must be a finite number of at least 0, not {self.think_s!r}")

    @property
    def duration_s(self) -> float:
        """Total length of the steps."""
        return sum(duration_s for _, duration_s in self.steps)

    @property
    def peak_users(self) -> int:
        """Highest number of users at the same time."""
        return max(users for users, _ in self.steps)

    @classmethod
    def parse(cls, text: str) -> Users:
        """Read ``users:N:TIME[:THINK]`` or ``users:FROM:TO:STEPS:TIME``.

        Raises:
            TrafficError: the text is not one of these.
        """
        kind, *parts = text.strip().split(":")
        if kind != "users" or not 2 <= len(parts) <= 4:
            raise TrafficError(f"unknown shape {text!r}: expected {USERS_SYNTAX}")
        if len(parts) == 4:
            return cls(_stepped(parts))
        think_s = parse_duration(parts[2]) if len(parts) == 3 else THINK_S
        return cls(((_users(parts[0]), parse_duration(parts[1])),), think_s)


def _users(text: str) -> int:
    return parse_whole("users", text, 1, MAX_USERS)


def _stepped(parts: Sequence[str]) -> tuple[tuple[int, float], ...]:
    first, last, steps = _users(parts[0]), _users(parts[1]), parse_whole("steps", parts[2], 2, MAX_STEPS)
    rise, duration_s = (last - first) / (steps - 1), parse_duration(parts[3])
    return tuple((round(first + rise * step), duration_s) for step in range(steps))
