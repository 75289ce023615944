"""Fleets on a store that the tests command."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from autoglm_throttle._runtime.serial_lock import SerialLock
from autoglm_throttle.settings.groups.control import RateSettings
from autoglm_throttle.settings.groups.store import FleetSettings, StoreSettings
from autoglm_throttle.store.fleet import FleetSync, LeasedBuckets
from autoglm_throttle.types import Clock
from tests.store.clients import Wire


@pytest.fixture
def wire() -> Iterator[Wire]:
    wire = Wire()
    yield wire
    wire.answers.set()


@pytest.fixture
def made() -> Iterator[Callable[..., FleetSync]]:
    """Make fleets that are stopped after the test."""
    fleets: list[FleetSync] = []
    wires: list[Wire] = []

    def make(
        wire: Wire, *, heartbeat_s: float = 5.0, lease_s: float = 1.0, clock: Clock = time.monotonic
    ) -> FleetSync:
        settings = FleetSettings().model_copy(
            update={"fleet_heartbeat_s": heartbeat_s, "fleet_lease_s": lease_s}
        )
        leases = LeasedBuckets(RateSettings(workers=4), settings, clock())
        wires.append(wire)
        fleets.append(FleetSync(leases, SerialLock(), StoreSettings(), settings, wire.connect, clock))
        return fleets[-1]

    yield make
    for wire in wires:
        wire.answers.set()  # else a thread that hangs is waited for
    for fleet in fleets:
        fleet.stop()
