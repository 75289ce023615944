"""One process of a fleet, for tests with several: requests on a plan, leases, and a GPU that it publishes.

``python -m tests.store.member URL PREFIX HOST UTILIZATION_PCT MEMORY_GIB``. It writes ``ready``, reads when
to begin (monotonic seconds, which all processes of a machine share) and writes the time of each admission.
"""

from __future__ import annotations

import asyncio
import sys
import time

from pydantic import SecretStr

from autoglm_throttle._runtime.serial_lock import SerialLock
from autoglm_throttle.gpu.sampler import Sampler
from autoglm_throttle.settings.groups.control import RateSettings
from autoglm_throttle.settings.groups.gpu import GpuSettings
from autoglm_throttle.settings.groups.store import FleetSettings, StoreSettings
from autoglm_throttle.store.client import TIMEOUT_S, RedisClients
from autoglm_throttle.store.fleet import FleetSync, LeasedBuckets
from autoglm_throttle.store.gpu import RemoteGpuProvider
from autoglm_throttle.types import Decision, Demand, GpuSample, Priority

RATE = 200.0
"""Requests per second of the whole fleet, in the class that is asked for."""
OFFERED = 100.0
"""Requests per second to each process."""
BURST_S = 0.2
HEARTBEAT_S = 0.8
INTERVAL_S = 0.2
STALE_S = 2.0
SERVICE = "four"
RATES = RateSettings(rate_high_rps=RATE, rate_mid_rps=RATE, rate_low_rps=RATE, burst_s=BURST_S, workers=4)
FLEET = FleetSettings(fleet_heartbeat_s=HEARTBEAT_S)
GPU = GpuSettings(sample_interval_s=INTERVAL_S, gpu_stale_after_s=STALE_S)


class Gpu:
    """One device with constant readings."""

    name = "fixed"
    min_interval_s = 0.0

    def __init__(self, pct: float, gib: int) -> None:
        self.pct, self.bytes = pct, gib * 2**30

    def read(self) -> list[GpuSample]:
        return [
            GpuSample(
                device="GPU-0",
                index=0,
                taken_at_s=time.monotonic(),
                source=self.name,
                utilization_pct=self.pct,
                memory_total_bytes=self.bytes,
                memory_used_bytes=self.bytes // 2,
            )
        ]

    def close(self) -> None:
        """Nothing to close."""

    def reset_after_fork(self) -> None:
        """Nothing to forget."""


def store_settings(url: str, prefix: str) -> StoreSettings:
    return StoreSettings(redis_url=SecretStr(url), redis_prefix=prefix, service=SERVICE)


async def requests(fleet: FleetSync, lock: SerialLock, start_s: float) -> None:
    """Ask at planned times, whatever became of the earlier ones."""
    tasks: set[asyncio.Task[None]] = set()
    number = 0
    while True:
        await asyncio.sleep(max(0.0, start_s + number / OFFERED - time.monotonic()))
        task = asyncio.create_task(request(fleet, lock))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        number += 1


async def request(fleet: FleetSync, lock: SerialLock) -> None:
    demand = Demand(Priority.MID)
    with lock:
        settled = fleet.leases.is_decidable(demand, time.monotonic())
    if not settled:
        await fleet.ensure(demand)
    with lock:
        paid = fleet.leases.take(demand, time.monotonic())
    if not isinstance(paid, Decision):
        print(f"{time.monotonic():.4f}", flush=True)


def main() -> None:
    url, prefix, host, pct, gib = sys.argv[1:]
    store = store_settings(url, prefix)
    clients = RedisClients(store)

    def connect() -> object:
        return clients.sync(TIMEOUT_S)

    lock = SerialLock()
    leases = LeasedBuckets(RATES, FLEET, time.monotonic())
    fleet = FleetSync(leases, lock, store, FLEET, connect)
    provider = RemoteGpuProvider(Gpu(float(pct), int(gib)), connect, host, store, GPU)
    sampler = Sampler(provider, lambda rows: None, interval_s=INTERVAL_S)
    fleet.start()
    sampler.start()
    print("ready", flush=True)
    start_s = float(sys.stdin.readline())
    asyncio.run(requests(fleet, lock, start_s))


if __name__ == "__main__":
    main()
