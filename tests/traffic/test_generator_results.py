"""Each planned request has exactly one result with any behavior of the server."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from collections import Counter
from itertools import cycle
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from autoglm_throttle.traffic.generator import ClientOptions, OpenLoopSender, TargetUrl
from autoglm_throttle.traffic.plan import Arrivals, LoadShape, PriorityMix, make_plan
from autoglm_throttle.traffic.request_log import RequestResult
from autoglm_throttle.traffic.request_source import RequestSource
from autoglm_throttle.traffic.results import Result
from tests.traffic.scripted_server import OK, ScriptedServer, reset

WORDS = (
    b"",
    OK,
    OK[:20],
    OK + OK,
    b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
    b"HTTP/1.1 200 OK\r\n\r\nuntil the end",
    b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 429 X\r\nretry-after: 1\r\ncontent-length: 2\r\n\r\n{}",
    b"HTTP/1.1 503 X\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\n\r\n",
    b"\x00\xff garbage",
)
Moves = list[tuple[bytes, str, bool]]
"""Response bytes, the action after them, and whether they are sent in two pieces."""

THEN = ("go on", "close", "reset", "say nothing more")
MOVES = st.lists(
    st.tuples(st.sampled_from(WORDS), st.sampled_from(THEN), st.booleans()), min_size=1, max_size=8
)


async def played(moves: Moves, options: ClientOptions) -> tuple[Result, Counter[int], list[Any]]:
    script, seen, faults = cycle(moves), Counter[int](), list[Any]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))

    async def serve(reader: Reader, writer: Writer) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n{}")
            words, then, halved = next(script)
            for piece in (words[:17], words[17:]) if halved else (words,):
                writer.write(piece)
                await asyncio.sleep(0)
            if then == "close":
                return
            if then == "reset":
                reset(writer)
            if then == "say nothing more":
                await reader.read()

    made = make_plan(LoadShape.parse("fixed:1000:25ms"), Arrivals.UNIFORM, PriorityMix())

    def observe(index: int, _ending: RequestResult, _response_s: float) -> None:
        seen[index] += 1

    async with ScriptedServer(serve) as server:
        result = await OpenLoopSender(
            RequestSource(made), TargetUrl(port=server.port), options, observe
        ).run()
    return result, seen, faults


@settings(max_examples=settings().max_examples * 3 // 5)
@given(
    MOVES,
    st.builds(
        ClientOptions,
        connections=st.integers(1, 3),
        more_connections=st.integers(0, 2),
        max_inflight=st.sampled_from((1, 4, 1000)),
        timeout_s=st.just(0.1),
        drain_s=st.sampled_from((0.02, 1.0)),
    ),
)
def test_every_request_ends_exactly_once(moves: Moves, options: ClientOptions) -> None:
    result, seen, faults = asyncio.run(played(moves, options))
    assert faults == []
    assert result.balanced
    assert sum(result.total().results) == 25
    assert seen == Counter(range(25))
