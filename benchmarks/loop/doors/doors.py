"""Every door by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.loop.doors.codel import CodelDoor
from benchmarks.loop.doors.door import Door, Site
from benchmarks.loop.doors.open import OpenDoor
from benchmarks.loop.doors.oracle import OracleDoor
from benchmarks.loop.doors.shares import Aimd, Gradient, SharesDoor
from benchmarks.loop.doors.throttled import ThrottleDoor
from benchmarks.loop.scenarios import Scenario

OTHERS: dict[str, Callable[[Site], Door]] = {
    "oracle": OracleDoor,
    "none": OpenDoor,
    "aimd": lambda site: SharesDoor(site, Aimd(site.slo_s)),
    "gradient": lambda site: SharesDoor(site, Gradient(site.agenda)),
    "codel": CodelDoor,
}

POLICIES = ("tiers", "concurrency", "adaptive")
"""Of the real `Throttle`."""

NAMES = (*OTHERS, *POLICIES)


def make(name: str, site: Site, scenario: Scenario, tuning: Mapping[str, Any]) -> Door:
    """Put up a door; ``tuning`` holds settings of the throttle, by name.

    Raises:
        ValueError: there is no such door.
    """
    if name in POLICIES:
        return ThrottleDoor(site, scenario, name, tuning)
    if name not in OTHERS:
        raise ValueError(f"no door is called {name}; there are {', '.join(NAMES)}")
    return OTHERS[name](site)
