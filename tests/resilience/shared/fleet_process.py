"""A process of a fleet of breakers: ``python -m tests.resilience.shared.fleet_process URL PREFIX TASK``.

``race NAMES``: fifty tasks call each guard, from the moment its number is read until the next number is; each
call that is let through is written as ``<number> <fence>``.
``hold NAME``: write ``holding`` once it makes the trial, and make it for ever.
``first NAME``: write what the first call of a fresh process got.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time

from autoglm_throttle.resilience.state import GuardState
from autoglm_throttle.settings.groups.breaker import BreakerSettings, SharedBreakerSettings
from autoglm_throttle.settings.groups.store import StoreSettings
from autoglm_throttle.store.breakers.sync import RedisBreakerStore
from autoglm_throttle.store.client import RedisClients
from autoglm_throttle.types import BreakerState, GuardPermit

TASKS = 50
LEASE_S = 0.5
"""For the trial of ``hold``; those of a race do not end with their leases."""
PATIENT_S = 60.0
"""A process that is not answered in time goes by itself: a race on a busy machine would tell nothing then."""


def store_at(url: str, prefix: str) -> RedisBreakerStore:
    settings = StoreSettings(redis_url=url, redis_prefix=prefix)  # type: ignore[arg-type]  # a text is parsed
    patient = SharedBreakerSettings.model_construct(store_deadline_s=PATIENT_S)
    clients = RedisClients(settings)
    return RedisBreakerStore(lambda: clients.sync(PATIENT_S), settings, patient)


def circuit(store: RedisBreakerStore, name: str, lease_s: float = LEASE_S) -> GuardState:
    return GuardState(name, BreakerSettings(failures=1, trial_lease_s=lease_s), store=store)


def turns(turn: list[int], last: int) -> None:
    for line in sys.stdin:
        turn[0] = int(line)
    turn[0] = last


async def race(store: RedisBreakerStore, names: int) -> None:
    circuits = [circuit(store, str(number), 10 * PATIENT_S) for number in range(names)]
    turn = [-1]

    async def calls(number: int) -> None:
        while turn[0] == number:
            passed = await circuits[number].allow_async()
            if isinstance(passed, GuardPermit):
                print(number, passed.fence, flush=True)
            await asyncio.sleep(0.0005)

    for one in circuits:
        await store.read_state_async(one.name)
    threading.Thread(target=turns, args=(turn, names), daemon=True).start()
    print("ready", flush=True)
    while (number := turn[0]) < names:
        if number < 0 or circuits[number].state() is BreakerState.CLOSED:
            await asyncio.sleep(0.0005)  # until it has heard of the opening
        else:
            await asyncio.gather(*(calls(number) for _ in range(TASKS)))


def hold(store: RedisBreakerStore, name: str) -> None:
    one = circuit(store, name)
    while not isinstance(one.allow(), GuardPermit):
        time.sleep(0.005)
    print("holding", flush=True)
    threading.Event().wait()


def first(store: RedisBreakerStore, name: str) -> None:
    answer = circuit(store, name).allow()
    print(type(answer).__name__, getattr(answer, "state", ""), flush=True)


def main() -> None:
    url, prefix, task, *rest = sys.argv[1:]
    store = store_at(url, prefix)
    match task:
        case "race":
            asyncio.run(race(store, int(rest[0])))
        case "hold":
            hold(store, rest[0])
        case "first":
            first(store, rest[0])
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
