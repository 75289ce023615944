"""A minimal inference service: waiting requests are computed together in batches."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from autoglm_throttle.gpu.host import HostLoad
from autoglm_throttle.types import ServiceStats
from benchmarks.gpu.work import MAX_BATCH, Work

LATENCIES = 200
"""Number of latencies kept for the percentile, so that it does not depend on one outlier."""


class Batcher:
    """An ASGI application that computes batches on one thread, one after another.

    Requests of disconnected clients are computed, too, as in most servers.

    Args:
        work: computes the batches.
        slo_s: objective in its reported statistics.
        host: gives the load of the host.
    """

    def __init__(self, work: Work, slo_s: float, host: Callable[[], HostLoad]) -> None:
        self._work = work
        self._slo_s = slo_s
        self._host = host
        self.queue: deque[asyncio.Future[Exception | None]] = deque()
        self._thread = ThreadPoolExecutor(1)
        self._task: asyncio.Task[None] | None = None
        self._inside = 0
        self._done = 0
        self._recent_s: deque[float] = deque(maxlen=LATENCIES)

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._serve_lifespan(receive, send)
            return
        while (await receive()).get("more_body"):
            pass
        begun_s = time.monotonic()
        self._inside += 1
        try:
            await self._wait_for_batch()
        finally:
            self._inside -= 1
        self._done += 1
        self._recent_s.append(time.monotonic() - begun_s)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})

    def stats(self) -> ServiceStats:
        """Return statistics of the work, from any thread. Requests in no batch yet count as waiting."""
        rising = sorted(self._recent_s.copy())
        host = self._host()
        return ServiceStats(
            p95_s=rising[math.ceil(0.95 * len(rising)) - 1] if rising else None,
            slo_s=self._slo_s,
            in_flight=self._inside,
            waiting=len(self.queue),
            completed_total=self._done,
            host_load=host.load,
            host_iowait=host.iowait,
            host_pressure=host.pressure,
            host_throttled=host.throttled,
        )

    async def _wait_for_batch(self) -> None:
        waiter: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.queue.append(waiter)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._compute())
        error = await waiter
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
            for waiter in batch:
                if not waiter.done():
                    waiter.set_result(error)

    async def _serve_lifespan(self, receive: Any, send: Any) -> None:
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                self._thread.shutdown(wait=False, cancel_futures=True)
                return
