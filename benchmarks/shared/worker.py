"""One process of several that ask for the same key: ``python -m benchmarks.shared.worker URL ROW USER``."""

from __future__ import annotations

import asyncio
import json
import sys

from benchmarks.shared.exact import crowd
from benchmarks.shared.lab import LIMIT
from benchmarks.shared.rows import PATIENT


async def work(url: str, row: str, user: str) -> dict[str, int]:
    """Connect, wait for a line, ask as a crowd; what became of it."""
    async with PATIENT[row].open(url, LIMIT) as hit:
        await hit("f" * 16)
        print("ready", flush=True)
        sys.stdin.readline()
        return await crowd(hit, user)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(work(*sys.argv[1:]))), flush=True)
