"""Upstreams as processes that are killed, frozen and drained."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.gateway.loopback import END_OF_CHUNKS, Front, chunk, front
from tests.store.server import free_port

pytestmark = [pytest.mark.server, pytest.mark.slow]

HANG_S = 60.0
GET = b"GET /stream HTTP/1.1\r\nhost: x\r\n\r\n"
FIRST, LAST = chunk(b"data: first\n\n"), chunk(b"data: last\n\n")


class Process:
    """One upstream."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"

    async def logged(self, text: bytes) -> None:
        """Return once it has logged a line with this text."""
        assert self.process.stderr is not None
        while text not in (line := await asyncio.wait_for(self.process.stderr.readline(), HANG_S)):
            assert line, "the process has ended"

    def release(self) -> None:
        """Let its streams end."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")

    async def stop(self) -> list[bytes]:
        """End it; return the bodies of the requests that it has worked on."""
        if self.process.returncode is None:
            self.process.kill()
        output, _ = await self.process.communicate()
        return [line.removeprefix(b"work ") for line in output.splitlines()]


@asynccontextmanager
async def processes(count: int) -> AsyncIterator[list[Process]]:
    pipe = asyncio.subprocess.PIPE
    started = []
    try:
        for _ in range(count):
            port = free_port()
            command = (sys.executable, "-m", "tests.gateway.service", str(port))
            process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
            started.append(Process(process, port))
        for each in started:
            await each.logged(b"Uvicorn running on")
        yield started
    finally:
        for each in started:
            await each.stop()


async def post(served: Front, number: int) -> httpx.Response:
    return await served.client.post("/work", content=b"%d" % number)


async def test_killed_upstream_ends_its_stream_and_others_serve() -> None:
    async with processes(2) as (first, second), front(first.url, second.url) as served:
        client = await served.open(GET)
        await client.reader.readuntil(FIRST)
        first.process.kill()
        assert await asyncio.wait_for(client.reader.read(), HANG_S) == b""  # no end of the response
        answers = await asyncio.gather(*(post(served, number) for number in range(20)))
        assert [answer.content for answer in answers] == [b"%d" % number for number in range(20)]
        assert sorted(await second.stop(), key=int) == [b"%d" % number for number in range(20)]


async def test_frozen_upstream_is_left_and_serves_again() -> None:
    settings: dict[str, Any] = {"breaker_timeout_s": 0.5, "breaker_failures": 1, "breaker_open_s": 0.1}
    async with processes(2) as (frozen, living), front(frozen.url, living.url, **settings) as served:
        assert (await post(served, 0)).status_code == 200
        frozen.process.send_signal(signal.SIGSTOP)
        answers = await asyncio.gather(*(post(served, number) for number in range(1, 5)))
        statuses = [answer.status_code for answer in answers]
        assert set(statuses) == {200, 504}
        frozen.process.send_signal(signal.SIGCONT)
        frozen_guard = served.gateway.upstreams[0].guard
        number = 4
        while frozen_guard.state() != "closed":
            number += 1
            assert (await post(served, number)).status_code in {200, 504}
        worked = await frozen.stop() + await living.stop()
        whole = [body for body in worked if body]  # empty: it was cancelled before it was read
        assert len(whole) == len(set(whole)), "a request was sent twice"


async def test_drained_upstream_ends_its_stream_and_others_serve() -> None:
    async with processes(2) as (drained, living), front(drained.url, living.url) as served:
        client = await served.open(GET)
        await client.reader.readuntil(FIRST)
        drained.process.terminate()
        await drained.logged(b"Waiting for connections to close")
        answers = await asyncio.gather(*(post(served, number) for number in range(20)))
        assert [answer.status_code for answer in answers] == [200] * 20
        drained.release()
        assert await asyncio.wait_for(client.reader.readuntil(END_OF_CHUNKS), HANG_S) == LAST + END_OF_CHUNKS
        assert len(await living.stop()) == 20
