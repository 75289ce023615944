"""A process that admits requests of one user, and ends none of them before it is killed."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from autoglm_throttle import Demand, Permit
from tests.store.real_server import PATIENTLY, Site
from tests.store.store_checks import name


async def admitted(job: dict[str, Any]) -> int:
    """Ask for many requests at once; a decision without the store is an error here."""
    site = Site(job["url"], job["prefix"], "100000/minute", concurrency_per_user=job["slots"], **PATIENTLY)
    await site.connected()
    demands = [Demand(user=name(1)) for _ in range(job["asks"])]
    verdicts = await asyncio.gather(*map(site.throttle.admit, demands))
    assert site.fallbacks == 0, site.store
    return sum(isinstance(verdict, Permit) for verdict in verdicts)


if __name__ == "__main__":
    for line in sys.stdin:
        print(asyncio.run(admitted(json.loads(line))), flush=True)
