"""One process of many whole throttles: it reads jobs and reports the number admitted."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from tests.store.real_server import PATIENTLY, Site


async def admitted(job: dict[str, Any]) -> int:
    """Ask for one user, all at once; a decision without the store is an error here."""
    site = Site(job["url"], job["prefix"], job["limit"], **PATIENTLY)
    await site.connected()
    decisions = await site.crowd(*[job["user"]] * job["asks"])
    assert site.fallbacks == 0, site.store
    return sum(decision.allowed for decision in decisions)


if __name__ == "__main__":
    for line in sys.stdin:
        print(asyncio.run(admitted(json.loads(line))), flush=True)
