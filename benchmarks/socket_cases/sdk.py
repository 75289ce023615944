"""Looping callers of the openai and anthropic packages with their default retries, in a process of their own.

Run: ``python -m benchmarks.socket_cases.sdk PORT PACKAGE CALLERS SECONDS``. Half of the callers use the
synchronous client in threads, the others the asynchronous one. New calls begin for SECONDS; the process ends
when all have ended, and prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.socket_cases.servers import served
from tests.servers.server import ROOT

TEXT: Any = [{"role": "user", "content": "is it so?"}]
PATIENCE_S = 400.0
"""Longest run of all callers, with their last retries."""


@dataclass
class Calls:
    """Ends of calls: seconds from the start, whether they were served, and how long they took."""

    until_s: float
    began_s: float = field(default_factory=time.monotonic)
    ends: list[tuple[float, bool, str]] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def open(self) -> bool:
        """Whether new calls may begin."""
        return time.monotonic() - self.began_s < self.until_s

    def end(self, kind: str, error: Exception | None = None) -> None:
        """Record the end of a call."""
        self.ends.append((time.monotonic() - self.began_s, error is None, kind))
        if error is not None:
            self.errors[f"{type(error).__name__} {getattr(error, 'status_code', '')}".strip()] += 1

    def summary(self) -> dict[str, Any]:
        """Return the figures of the run."""
        kinds = {
            kind: {
                "served": sum(ok for _, ok, which in self.ends if which == kind),
                "failed": sum(not ok for _, ok, which in self.ends if which == kind),
            }
            for kind in ("sync", "async")
        }
        served = Counter(int(at_s) for at_s, ok, _ in self.ends if ok)
        failed = sum(row["failed"] for row in kinds.values())
        return {
            "calls": len(self.ends),
            "failed": failed,
            "failed_share": failed / len(self.ends),
            "served_meanwhile": sum(ok for at_s, ok, _ in self.ends if at_s <= self.until_s),
            "served_by_second": [served[second] for second in range(max(served, default=-1) + 1)],
            "ended_s": max(at_s for at_s, _, _ in self.ends),
            **kinds,
            "errors": dict(self.errors),
        }


def openai_calls(port: int) -> tuple[Callable[[], Any], Callable[[], Awaitable[Any]]]:
    """Return a synchronous and an asynchronous call of the openai package."""
    import openai

    base = f"http://127.0.0.1:{port}/v1"
    one = openai.OpenAI(base_url=base, api_key="x")
    other = openai.AsyncOpenAI(base_url=base, api_key="x")
    return (
        lambda: one.chat.completions.create(model="simulated", messages=TEXT),
        lambda: other.chat.completions.create(model="simulated", messages=TEXT),
    )


def anthropic_calls(port: int) -> tuple[Callable[[], Any], Callable[[], Awaitable[Any]]]:
    """Return a synchronous and an asynchronous call of the anthropic package."""
    import anthropic

    base = f"http://127.0.0.1:{port}"
    one = anthropic.Anthropic(base_url=base, api_key="x")
    other = anthropic.AsyncAnthropic(base_url=base, api_key="x")
    return (
        lambda: one.messages.create(model="simulated", max_tokens=16, messages=TEXT),
        lambda: other.messages.create(model="simulated", max_tokens=16, messages=TEXT),
    )


PACKAGES = {"openai": openai_calls, "anthropic": anthropic_calls}


def loop_sync(calls: Calls, call: Callable[[], Any]) -> None:
    """Call again and again while new calls may begin."""
    while calls.open:
        try:
            call()
        except Exception as error:
            calls.end("sync", error)
        else:
            calls.end("sync")


async def loop_async(calls: Calls, call: Callable[[], Awaitable[Any]]) -> None:
    """Call again and again while new calls may begin."""
    while calls.open:
        try:
            await call()
        except Exception as error:
            calls.end("async", error)
        else:
            calls.end("async")


async def gather(calls: Calls, call: Callable[[], Awaitable[Any]], callers: int) -> None:
    """Run the asynchronous callers until all have ended."""
    await asyncio.gather(*(loop_async(calls, call) for _ in range(callers)))


def main(port: int, package: str, callers: int, seconds: float) -> None:
    """Run all callers and print the figures."""
    sync_call, async_call = PACKAGES[package](port)
    calls = Calls(seconds)
    threads = [threading.Thread(target=loop_sync, args=(calls, sync_call)) for _ in range(callers // 2)]
    for thread in threads:
        thread.start()
    asyncio.run(gather(calls, async_call, callers - callers // 2))
    for thread in threads:
        thread.join()
    print(json.dumps(calls.summary()))


def run(kind: str, package: str, callers: int, seconds: float, call_s: float) -> dict[str, Any]:
    """Run a service and its callers.

    Args:
        kind: the server.
        package: ``openai`` or ``anthropic``.
        callers: looping callers; the service has 8 slots.
        seconds: new calls begin for so long.
        call_s: seconds of a call in a slot.
    """
    with served(kind, call_s=call_s) as server:
        command = [sys.executable, "-m", "benchmarks.socket_cases.sdk", str(server.port), package]
        done = subprocess.run(
            [*command, str(callers), str(seconds)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(
                f"the callers of {package} ended with {done.returncode}:\n{done.stderr[-3000:]}"
            )
        figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return {**figures, "state": server.state()}


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
