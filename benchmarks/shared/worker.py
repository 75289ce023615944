"""One of several processes that use the same key: ``python -m benchmarks.shared.worker URL ROW USER``."""

from __future__ import annotations

import asyncio
import json
import sys

from benchmarks.shared.bench import LIMIT
from benchmarks.shared.exact import burst
from benchmarks.shared.rows import LONG_DEADLINE


async def work(url: str, row: str, user: str) -> dict[str, int]:
    """Connect, wait for a line, send a burst, and return its counts."""
    async with LONG_DEADLINE[row].open(url, LIMIT) as hit:
        await hit("f" * 16)
        print("ready", flush=True)
        sys.stdin.readline()
        return await burst(hit, user)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(work(*sys.argv[1:]))), flush=True)
