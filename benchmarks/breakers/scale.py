"""How much of everything a run measures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """How much of everything."""

    rounds: int = 21
    """Of the rows that cost nanoseconds."""
    calls: int = 5_000
    """In each of those rows, in each round."""
    shared_rounds: int = 15
    remote_calls: int = 50
    """Of a row that asks a server at each call."""
    counted: int = 10_000
    """Calls of a shared and closed breaker during which a server's commands are counted."""
    openings: int = 20
    """For each way in which another process is waiting for them."""
    cold: int = 5
    """Openings that a process meets at its very first call."""
    races: int = 100
    rival_races: int = 3
    side_by_side: int = 3


QUICK = Scale(
    rounds=3,
    calls=1_000,
    shared_rounds=3,
    remote_calls=20,
    openings=3,
    cold=1,
    races=3,
    rival_races=1,
    side_by_side=1,
)
