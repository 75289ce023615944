"""An inference service as small as can be: requests wait, and all that wait are computed together."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from autoglm_throttle.types import ServiceStats as Told
from benchmarks.gpu.work import MAX_BATCH, Work

REMEMBERED = 200
"""Latencies: 95 % of so many is not one odd answer."""


class Batcher:
    """An ASGI application that computes batches on one thread, one after another.

    Requests of clients that have left are computed, too: most servers do not look.

    Args:
        work: what computes.
        slo_s: for what it tells of itself.
        host: gives load and iowait of the host.
    """

    def __init__(
        self, work: Work, slo_s: float, host: Callable[[], tuple[float | None, float | None]]
    ) -> None:
        self._work = work
        self._slo_s = slo_s
        self._host = host
        self.queue: deque[asyncio.Future[Exception | None]] = deque()
        self._thread = ThreadPoolExecutor(1)
        self._task: asyncio.Task[None] | None = None
        self._inside = 0
        self._done = 0
        self._lately: deque[float] = deque(maxlen=REMEMBERED)

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._live(receive, send)
            return
        while (await receive()).get("more_body"):
            pass
        begun_s = time.monotonic()
        self._inside += 1
        try:
            await self._turn()
        finally:
            self._inside -= 1
        self._done += 1
        self._lately.append(time.monotonic() - begun_s)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})

    def told(self) -> Told:
        """What it tells of its work, to any thread. Who is in no batch yet stands in line."""
        rising = sorted(self._lately.copy())
        load, iowait = self._host()
        return Told(
            p95_s=rising[math.ceil(0.95 * len(rising)) - 1] if rising else None,
            slo_s=self._slo_s,
            in_flight=self._inside,
            waiting=len(self.queue),
            completed_total=self._done,
            host_load=load,
            host_iowait=iowait,
        )

    async def _turn(self) -> None:
        turn: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.queue.append(turn)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._compute())
        error = await turn
        if error is not None:
            raise error

    def _try(self, count: int) -> Exception | None:
        try:
            self._work.batch(count)
        except Exception as error:
            return error
        return None

    async def _compute(self) -> None:
        loop = asyncio.get_running_loop()
        while self.queue:
            batch = [self.queue.popleft() for _ in range(min(MAX_BATCH, len(self.queue)))]
            error = await loop.run_in_executor(self._thread, self._try, len(batch))
            for turn in batch:
                if not turn.done():
                    turn.set_result(error)

    async def _live(self, receive: Any, send: Any) -> None:
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                self._thread.shutdown(wait=False, cancel_futures=True)
                return
