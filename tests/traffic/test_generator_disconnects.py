"""The generator against a service that goes down, and after a stop."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from dataclasses import replace
from unittest.mock import Mock

import pytest

from autoglm_throttle.traffic.generator import ClientOptions, OpenLoopSender, TargetUrl
from autoglm_throttle.traffic.plan import Arrivals, LoadShape, PriorityMix, make_plan
from autoglm_throttle.traffic.request_log import RequestResult
from autoglm_throttle.traffic.request_source import PlannedRequest, RequestSource
from tests.traffic.scripted_server import OK, ScriptedServer, always, once, request
from tests.traffic.test_generator import BRISK, drive, endings, silent, some


async def test_server_that_goes_down_yields_connection_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("connection_pool", "sender"):
        monkeypatch.setattr(f"autoglm_throttle.traffic.generator.{module}.GRACE_S", 0.05)
    answered = asyncio.Event()
    async with ScriptedServer(once(OK)) as server:
        made = make_plan(LoadShape.parse("fixed:100:300ms"), Arrivals.UNIFORM, PriorityMix())
        generator = OpenLoopSender(
            RequestSource(made), TargetUrl(port=server.port), BRISK, lambda *_: answered.set()
        )
        running = asyncio.create_task(generator.run())
        await answered.wait()
    result = await running
    assert set(endings(result)) == {RequestResult.OK, RequestResult.CONNECTION}
    assert result.run_cost.elapsed_s < 30.0
    waited = [
        response_s
        for ending, response_s in zip(result.request_log.results, result.request_log.response_s, strict=True)
        if ending == RequestResult.CONNECTION
    ]
    assert sum(response_s >= 0.05 for response_s in waited) >= 20


async def test_cpu_share_excludes_the_drain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Mock(side_effect=[0.0, 1.0])
    monkeypatch.setattr("autoglm_throttle.traffic.generator.sender.time.process_time", clock)
    result = await drive(silent, some(1), replace(BRISK, drain_s=0.5))
    assert result.run_cost.cpu_share is not None
    assert result.run_cost.cpu_share > 1.0 / 0.5


async def test_stop_time_is_reported() -> None:
    async def serve(reader: Reader, _writer: Writer) -> None:
        await request(reader)
        generator.stop()
        await reader.read()

    async with ScriptedServer(serve) as server:
        made = make_plan(LoadShape.parse("fixed:10:60"), Arrivals.UNIFORM, PriorityMix())
        options = ClientOptions(connections=1, drain_s=0.2)
        generator = OpenLoopSender(RequestSource(made), TargetUrl(port=server.port), options)
        effort = (await generator.run()).run_cost
    assert effort.stopped_s is not None
    assert 0.0 < effort.stopped_s <= effort.elapsed_s - 0.15
    assert (await drive(always(OK), some(1))).run_cost.stopped_s is None


async def test_peer_that_stops_reading_frees_its_connection() -> None:
    async def serve(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 X\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(3600.0)

    large = (PlannedRequest(body=bytes(16 << 20)),)
    result = await drive(serve, some(3), replace(BRISK, timeout_s=30.0), large)
    assert endings(result) == {RequestResult.CLIENT_ERROR: 3}
