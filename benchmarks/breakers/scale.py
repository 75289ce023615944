"""Sizes of a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Sizes of a run."""

    rounds: int = 21
    """Rounds of the rows that cost nanoseconds."""
    calls: int = 5_000
    """Calls of each of those rows in each round."""
    shared_rounds: int = 15
    remote_calls: int = 50
    """Calls of a row that contacts a server at each call."""
    counted: int = 10_000
    """Calls of a shared, closed breaker during which the commands of the server are counted."""
    openings: int = 20
    """Openings for each kind of waiting process."""
    cold: int = 5
    """Openings before the first call of a process."""
    races: int = 100
    peer_races: int = 3
    side_by_side: int = 3


QUICK = Scale(
    rounds=3,
    calls=1_000,
    shared_rounds=3,
    remote_calls=20,
    openings=3,
    cold=1,
    races=3,
    peer_races=1,
    side_by_side=1,
)
