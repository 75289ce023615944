"""The test that the generator is honest: a server that stalls for a second was slow all that second."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer

import pytest

from autoglm_throttle.traffic.generator import ClientOptions, OpenLoopSender, TargetUrl
from autoglm_throttle.traffic.plan import Arrivals, LoadShape, PriorityMix, make_plan
from autoglm_throttle.traffic.request_source import RequestSource
from tests.traffic.scripted_server import OK, ScriptedServer, request

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("load")]

STALL_S = 1.0


async def test_stall_shows_in_response_times_only() -> None:
    """1000/s for 6 s; after two seconds nothing is answered for one, on any of the 8 connections."""
    loop = asyncio.get_running_loop()
    served, stalled = 0, asyncio.Event()
    stalled.set()

    async def serve(reader: Reader, writer: Writer) -> None:
        nonlocal served
        while True:
            await request(reader)
            served += 1
            if served == 2000:
                stalled.clear()
                loop.call_later(STALL_S, stalled.set)
            await stalled.wait()
            writer.write(OK)

    made = make_plan(LoadShape.parse("fixed:1000:6"), Arrivals.UNIFORM, PriorityMix())
    async with ScriptedServer(serve) as server:
        result = await OpenLoopSender(
            RequestSource(made), TargetUrl(port=server.port), ClientOptions(connections=8)
        ).run()
    total = result.total()
    assert total.admitted == 6000
    response_s, service_s = total.response.percentile(0.99), total.service.percentile(0.99)
    assert response_s is not None
    assert service_s is not None
    assert response_s >= 0.9 * STALL_S
    assert service_s <= STALL_S / 2
