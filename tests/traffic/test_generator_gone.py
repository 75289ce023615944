"""The generator against a service that goes away, or that nobody waits for any longer."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from dataclasses import replace
from unittest.mock import Mock

import pytest

from autoglm_throttle.traffic.arrivals import Arrivals, Crowd, Shape, plan
from autoglm_throttle.traffic.ending import Ending
from autoglm_throttle.traffic.generator import Generator, Options, Target
from autoglm_throttle.traffic.load import Load, Request
from tests.traffic.scripted_server import OK, ScriptedServer, always, once, request
from tests.traffic.test_generator import BRISK, drive, endings, silent, some


async def test_a_server_that_goes_away_for_good_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("pool", "sending"):
        monkeypatch.setattr(f"autoglm_throttle.traffic.generator.{module}.GRACE_S", 0.05)
    answered = asyncio.Event()
    async with ScriptedServer(once(OK)) as server:
        made = plan(Shape.parse("fixed:100:300ms"), Arrivals.UNIFORM, Crowd())
        generator = Generator(Load(made), Target(port=server.port), BRISK, lambda *_: answered.set())
        running = asyncio.create_task(generator.run())
        await answered.wait()
    result = await running
    assert set(endings(result)) == {Ending.OK, Ending.CONNECTION}
    assert result.effort.elapsed_s < 30.0
    waited = [
        response_s
        for ending, response_s in zip(result.sheet.endings, result.sheet.response_s, strict=True)
        if ending == Ending.CONNECTION
    ]
    assert sum(response_s >= 0.05 for response_s in waited) >= 20


async def test_the_share_of_the_core_is_that_of_the_sending_without_the_drain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Mock(side_effect=[0.0, 1.0])
    monkeypatch.setattr("autoglm_throttle.traffic.generator.sending.time.process_time", clock)
    result = await drive(silent, some(1), replace(BRISK, drain_s=0.5))
    assert result.effort.cpu_share is not None
    assert result.effort.cpu_share > 1.0 / 0.5


async def test_when_a_run_was_stopped_is_told() -> None:
    async def serve(reader: Reader, _writer: Writer) -> None:
        await request(reader)
        generator.stop()
        await reader.read()

    async with ScriptedServer(serve) as server:
        made = plan(Shape.parse("fixed:10:60"), Arrivals.UNIFORM, Crowd())
        options = Options(connections=1, drain_s=0.2)
        generator = Generator(Load(made), Target(port=server.port), options)
        effort = (await generator.run()).effort
    assert effort.stopped_s is not None
    assert 0.0 < effort.stopped_s <= effort.elapsed_s - 0.15
    assert (await drive(always(OK), some(1))).effort.stopped_s is None


async def test_a_peer_that_reads_no_more_keeps_no_place_in_the_pool() -> None:
    async def serve(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 X\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(3600.0)

    large = (Request(body=bytes(16 << 20)),)
    result = await drive(serve, some(3), replace(BRISK, timeout_s=30.0), large)
    assert endings(result) == {Ending.CLIENT_ERROR: 3}
