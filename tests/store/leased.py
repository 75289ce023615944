"""Leased buckets of one process, and what its store and its callers say."""

from __future__ import annotations

from typing import Any

from autoglm_throttle.settings.groups.control import RateSettings
from autoglm_throttle.settings.groups.store import FleetSettings
from autoglm_throttle.store.fleet import LeasedBuckets
from autoglm_throttle.store.leases import MICRO
from autoglm_throttle.types import Decision, Demand, Priority

MID = Demand(Priority.MID)


def leases(now: float = 0.0, **more: Any) -> tuple[LeasedBuckets, list[float]]:
    """Leases of founding rates, and what they have asked to be woken for."""
    made = LeasedBuckets(RateSettings(**more), FleetSettings(), now)
    woken: list[float] = []
    made.wake = lambda: woken.append(1.0)
    return made, woken


def answer(*pairs: tuple[float, float], members: int = 2) -> list[int]:
    """A reply of the script: grant and left for high, mid, low, in tokens."""
    return [1, members, *(round(value * MICRO) for pair in pairs for value in pair)]


def mid_of(figures: list[int]) -> list[float]:
    """Rate, burst, want, need and back of the middle class, in tokens."""
    return [figure / MICRO for figure in figures[5:10]]


def refusal(paid: object) -> Decision:
    assert isinstance(paid, Decision)
    return paid
