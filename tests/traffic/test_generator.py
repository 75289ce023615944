"""The generator against a server that misbehaves in every way: each planned request ends once, rightly."""

from __future__ import annotations

import asyncio
import math
import sys
from array import array
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from autoglm_throttle.model import Priority
from autoglm_throttle.traffic.arrivals import Arrivals, Crowd, Plan, Shape, plan
from autoglm_throttle.traffic.ending import Ending, judge
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.generator import Generator, Options, Target
from autoglm_throttle.traffic.generator.connection import Connection, ParserLibrary
from autoglm_throttle.traffic.load import Load, Request
from autoglm_throttle.traffic.result import Result
from tests.traffic.scripted_server import OK, ScriptedServer, Serve, always, once, request

BRISK = Options(connections=1, timeout_s=60.0, drain_s=60.0)


def some(requests: int = 3, crowd: Crowd | None = None) -> Plan:
    return plan(Shape.parse(f"fixed:1000:{requests}ms"), Arrivals.UNIFORM, crowd or Crowd())


async def drive(
    serve: Serve, made: Plan, options: Options = BRISK, requests: Sequence[Request] = (Request(),)
) -> Result:
    async with ScriptedServer(serve) as server:
        result = await Generator(Load(made, requests), Target(port=server.port), options).run()
    assert result.balanced
    return result


def endings(result: Result) -> dict[Ending, int]:
    return {
        ending: count for ending, count in zip(Ending, result.books.total().endings, strict=True) if count
    }


@pytest.mark.parametrize(
    ("answer", "ending"),
    [
        ([OK], Ending.OK),
        ([bytes([byte]) for byte in OK], Ending.OK),
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], Ending.OK),
        ([b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n"], Ending.OK),
        ([b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n", b"0\r\n\r\n"], Ending.OK),
        ([b"HTTP/1.1 100 Continue\r\n\r\n", OK], Ending.OK),
        ([b"HTTP/1.1 100 Continue\r\n\r\n" + OK], Ending.OK),
        ([b"HTTP/1.1 103 Early Hints\r\nx-degraded: cache\r\n\r\n" + OK], Ending.OK),
        (
            [b"HTTP/1.1 103 E\r\nretry-after: 1\r\n\r\nHTTP/1.1 503 X\r\ncontent-length: 0\r\n\r\n"],
            Ending.SERVER_ERROR,
        ),
        (
            [b"HTTP/1.1 503 X\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nretry-after: 1\r\n\r\n"],
            Ending.SERVER_ERROR,
        ),
        ([b"HTTP/1.1 200 OK\r\nX-Degraded: cache\r\ncontent-length: 0\r\n\r\n"], Ending.DEGRADED),
        ([b"HTTP/1.1 429 X\r\ncontent-length: 0\r\n\r\n"], Ending.LIMITED),
        ([b"HTTP/1.1 503 X\r\nRetry-After: 3\r\ncontent-length: 0\r\n\r\n"], Ending.REJECTED),
        ([b"HTTP/1.1 503 X\r\ncontent-length: 0\r\n\r\n"], Ending.SERVER_ERROR),
        ([b"HTTP/1.1 404 X\r\ncontent-length: 0\r\n\r\n"], Ending.CLIENT_ERROR),
        ([b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"], Ending.OK),
        ([OK + b"HTTP/1.1 429 X\r\ncontent-length: 0\r\n\r\n"], Ending.OK),
        ([b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\nmore"], Ending.OK),
        ([b"garbage\r\n\r\n"], Ending.MALFORMED),
        ([b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"], Ending.MALFORMED),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n"], Ending.MALFORMED),
    ],
)
async def test_answers_are_told_apart(answer: list[bytes], ending: Ending) -> None:
    assert endings(await drive(always(*answer), some())) == {ending: 3}


@pytest.mark.parametrize(
    ("serve", "ending"),
    [
        (once(OK), Ending.OK),
        (once(b"HTTP/1.1 200 OK\r\n\r\nuntil the end"), Ending.OK),
        (once(b"HTTP/1.1 200 OK\r\n\r\nuntil the end", by_reset=True), Ending.CONNECTION),
        (once(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf"), Ending.CONNECTION),
        (once(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nha"), Ending.CONNECTION),
        (once(b"HTTP/1.1 200"), Ending.CONNECTION),
        (once(b""), Ending.CONNECTION),
    ],
)
async def test_connections_that_end_are_told_apart_and_replaced(serve: Serve, ending: Ending) -> None:
    assert endings(await drive(serve, some())) == {ending: 3}


async def test_an_answer_too_many_ends_its_connection_so_it_is_never_taken_for_the_next() -> None:
    async with ScriptedServer(always(OK + b"HTTP/1.1 500 X\r\ncontent-length: 1\r\n\r\n", b"x")) as server:
        made = plan(Shape.parse("fixed:50:60ms"), Arrivals.UNIFORM, Crowd())
        target = Target(port=server.port)
        result = await Generator(Load(made), target, BRISK).run()
    assert endings(result) == {Ending.OK: 3}
    assert server.connections == 3


async def test_answers_to_head_have_no_body_whatever_they_state() -> None:
    """Answers to GET do, on the same connection."""

    async def serve(reader: Reader, writer: Writer) -> None:
        while True:
            head = await request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n")
            if head.startswith(b"GET "):
                writer.write(b"body")

    made = some(4)
    mixed = replace(made, kinds=array("I", [0, 1, 0, 1]))
    kinds = (Request(method="HEAD", body=b""), Request(method="GET", body=b""))
    async with ScriptedServer(serve) as server:
        result = await Generator(Load(mixed, kinds), Target(port=server.port), BRISK).run()
    assert endings(result) == {Ending.OK: 4}
    assert server.connections == 1


async def test_an_endless_answer_is_malformed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autoglm_throttle.traffic.generator.connection.BODY_BYTES", 1000)
    serve = always(
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        b"1f4\r\n" + b"x" * 500 + b"\r\n",
        b"1f5\r\n" + b"x" * 501,
    )
    assert endings(await drive(serve, some(1))) == {Ending.MALFORMED: 1}


async def test_an_idle_connection_closed_by_the_server_costs_nothing() -> None:
    async def serve(reader: Reader, writer: Writer) -> None:
        await request(reader)
        writer.write(OK)
        await reader.readuntil(b"\r\n\r\n")

    result = await drive(serve, some(6))
    assert endings(result) == {Ending.OK: 6}
    assert result.effort.resent == 5


async def test_a_request_is_sent_again_only_once() -> None:
    answered = 0

    async def serve(reader: Reader, writer: Writer) -> None:
        nonlocal answered
        await request(reader)
        if not answered:
            answered += 1
            writer.write(OK)
            await request(reader)

    result = await drive(serve, some(2))
    assert endings(result) == {Ending.OK: 1, Ending.CONNECTION: 1}
    assert result.effort.resent == 1


async def test_unasked_bytes_close_an_idle_connection() -> None:
    async def serve(reader: Reader, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 408 Too Late\r\ncontent-length: 0\r\n\r\n")
        await reader.read()

    made = plan(Shape.parse("fixed:1:1"), Arrivals.UNIFORM, Crowd())
    result = await drive(serve, made, Options(connections=2, timeout_s=0.3, drain_s=1.0))
    assert endings(result) in ({Ending.CONNECTION: 1}, {Ending.TIMEOUT: 1}, {Ending.CLIENT_ERROR: 1})


def test_an_idle_connection_to_which_somebody_speaks_is_dropped() -> None:
    transport, owner = Mock(), Mock()
    connection = Connection(owner, ParserLibrary())
    connection.connection_made(transport)
    connection.data_received(OK)
    transport.abort.assert_called_once_with()
    owner.answered.assert_not_called()


async def silent(reader: Reader, _writer: Writer) -> None:
    await reader.read()


async def test_a_silent_server_times_out_from_the_intended_start() -> None:
    result = await drive(silent, some(5), Options(connections=2, timeout_s=0.1, drain_s=60.0))
    assert endings(result) == {Ending.TIMEOUT: 5}
    assert result.effort.elapsed_s < 30.0


async def test_what_is_open_after_the_drain_is_unanswered() -> None:
    result = await drive(silent, some(5), Options(connections=2, timeout_s=60.0, drain_s=0.05))
    assert endings(result) == {Ending.UNANSWERED: 5}


async def test_above_the_most_in_flight_requests_are_dropped_and_counted() -> None:
    result = await drive(silent, some(9), Options(connections=2, max_inflight=4, timeout_s=0.2))
    assert endings(result) == {Ending.TIMEOUT: 4, Ending.DROPPED: 5}


async def test_reasons_and_promises_of_refusals_are_kept_by_priority() -> None:
    bodies = iter([b'{"reason":"user"}', b'{"reason":7}', b"[]", b"", b"{"])

    async def serve(reader: Reader, writer: Writer) -> None:
        while True:
            await request(reader)
            body = next(bodies)
            retry = b"7" if body else b"Thu, 01 Jan 2026 00:00:00 GMT"
            writer.write(
                b"HTTP/1.1 429 X\r\nretry-after: %b\r\ncontent-length: %d\r\n\r\n%b"
                % (retry, len(body), body)
            )

    result = await drive(serve, some(5, Crowd({Priority.LOW: 100.0})))
    row = result.books.rows[0, Priority.LOW]
    assert row.reasons == {"user": 1, "": 4}
    assert row.limited == row.refusal.count == 5
    assert row.promised.pairs() == [(6_979_584, 4)]
    assert row.response.count == row.failed == 0
    assert result.books.rows[0, Priority.HIGH].sent == 0


async def test_requests_carry_their_priority() -> None:
    heads: list[bytes] = []

    async def serve(reader: Reader, writer: Writer) -> None:
        while True:
            heads.append(await request(reader))
            writer.write(OK)

    await drive(serve, some(2, Crowd({Priority.HIGH: 100.0})))
    assert heads[0].startswith(b"POST /v1/predict HTTP/1.1\r\nhost: 127.0.0.1:")
    assert b"\r\nx-priority: high\r\ncontent-length: 2\r\n\r\n" in heads[0]
    assert heads[0] == heads[1]


async def test_the_observer_sees_every_ending() -> None:
    seen: list[tuple[int, Ending]] = []
    made = some(4)
    async with ScriptedServer(always(OK)) as server:
        target = Target(port=server.port)
        generator = Generator(
            Load(made), target, BRISK, lambda index, ending, _: seen.append((index, ending))
        )
        await generator.run()
    assert sorted(seen) == [(index, Ending.OK) for index in range(4)]


async def test_stopping_leaves_the_rest_out_and_waits_for_what_is_under_way() -> None:
    made = plan(Shape.parse("fixed:10:60"), Arrivals.UNIFORM, Crowd())

    async def slow(reader: Reader, writer: Writer) -> None:
        await request(reader)
        generator.stop()
        writer.write(OK)
        await reader.read()

    async with ScriptedServer(slow) as server:
        target = Target(port=server.port)
        generator = Generator(Load(made), target, BRISK)
        result = await generator.run()
    total = result.books.total()
    assert result.aborted
    assert result.balanced
    assert (total.planned, total.sent, total.admitted) == (600, 1, 1)


async def test_a_cancelled_run_sends_no_more() -> None:
    made = plan(Shape.parse("fixed:100:60"), Arrivals.UNIFORM, Crowd())
    arrived = asyncio.Event()

    async def serve(reader: Reader, writer: Writer) -> None:
        await request(reader)
        arrived.set()
        await reader.read()

    async with ScriptedServer(serve) as server:
        target = Target(port=server.port)
        generator = Generator(Load(made), target, BRISK)
        running = asyncio.create_task(generator.run())
        await arrived.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        launched = generator.launched
        await asyncio.sleep(0.03)
    assert generator.launched == launched


async def test_stopping_twice_ends_at_once() -> None:
    made = some(3)

    async def never(reader: Reader, _writer: Writer) -> None:
        await request(reader)
        generator.stop()
        generator.stop()
        await reader.read()

    async with ScriptedServer(never) as server:
        target = Target(port=server.port)
        generator = Generator(Load(made), target, Options(connections=1, drain_s=60.0))
        result = await generator.run()
    assert Ending.UNANSWERED in endings(result)
    assert result.balanced
    assert result.effort.elapsed_s < 30.0


async def test_a_target_that_refuses_connections_is_an_error_before_the_start() -> None:
    async with ScriptedServer(silent) as server:
        port = server.port
    target = Target(port=port)
    with pytest.raises(TrafficError, match=rf"127\.0\.0\.1:{port} refuses connections"):
        await Generator(Load(some()), target, BRISK).run()


async def test_a_server_that_goes_away_and_comes_back_is_found_again() -> None:
    made = plan(Shape.parse("fixed:100:400ms"), Arrivals.UNIFORM, Crowd())
    answered = asyncio.Event()
    async with ScriptedServer(once(OK)) as first:
        target = Target(port=first.port)
        generator = Generator(Load(made), target, BRISK, lambda *_: answered.set())
        running = asyncio.create_task(generator.run())
        await answered.wait()
    second = await asyncio.start_server(ScriptedServer(always(OK))._one, "127.0.0.1", target.port)
    result = await running
    second.close()
    assert result.books.total().admitted >= 38
    assert result.balanced


def test_too_few_open_files_are_an_error_that_names_both_numbers() -> None:
    target = Target(port=1)
    with pytest.raises(TrafficError, match=r"10000064 open files are needed and \d+ allowed"):
        Generator(Load(some()), target, Options(connections=10_000_000))


def test_more_open_files_than_there_are_numbers_for_are_an_error() -> None:
    with pytest.raises(TrafficError, match="10000000000000000064 open files are needed"):
        Generator(Load(some()), Target(port=1), Options(connections=10**19))


def test_without_httptools_the_error_names_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httptools", None)
    target = Target(port=1)
    with pytest.raises(TrafficError, match="pip install 'httptools>="):
        Generator(Load(some()), target, BRISK)


@pytest.mark.parametrize("fault", ["connections", "max_inflight", "timeout_s", "drain_s"])
def test_impossible_options_are_refused(fault: str) -> None:
    wrong: dict[str, Any] = {fault: 0}
    with pytest.raises(TrafficError, match="above 0"):
        Options(**wrong)


def test_a_negative_number_of_connections_is_refused() -> None:
    with pytest.raises(TrafficError, match="negative"):
        Options(more_connections=-1)


async def test_more_connections_are_opened_when_all_are_busy() -> None:
    made = some(5)
    arrived = asyncio.Event()
    inside = 0

    async def together(reader: Reader, writer: Writer) -> None:
        nonlocal inside
        await request(reader)
        inside += 1
        if inside == 5:
            arrived.set()
        await arrived.wait()
        writer.write(OK)
        await reader.read()

    result = await drive(together, made, Options(connections=1, more_connections=4, timeout_s=5.0))
    assert endings(result) == {Ending.OK: 5}


def test_every_ending_is_served_refused_or_failed() -> None:
    for ending in Ending:
        assert ending.served + ending.refused + ending.failed == 1
    assert [ending.label for ending in Ending][:3] == ["ok", "degraded", "limited"]


@pytest.mark.parametrize("status", [200, 201, 302, 400, 413, 429, 499, 500, 502, 503])
def test_judging_is_total(status: int) -> None:
    plain = judge(status, retry_after=False, degraded=False)
    waiting = judge(status, retry_after=True, degraded=False)
    assert (plain is waiting) == (status != 503)


async def test_the_first_byte_of_a_stream_is_told_apart_from_its_end() -> None:
    async def stream(reader: Reader, writer: Writer) -> None:
        await request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(b"7\r\ndata: 1\r\n")
        await asyncio.sleep(0.1)
        writer.write(b"7\r\ndata: 2\r\n0\r\n\r\n")
        await reader.read()

    sheet = (await drive(stream, some(1))).sheet
    assert sheet.first_byte_s[0] < sheet.response_s[0]
    assert sheet.response_s[0] >= 0.1


async def test_an_answer_without_a_body_has_its_first_byte_at_its_end() -> None:
    sheet = (await drive(always(b"HTTP/1.1 204 No Content\r\n\r\n"), some(1))).sheet
    assert sheet.first_byte_s[0] == sheet.response_s[0] >= sheet.service_s[0]


async def test_a_trickle_that_takes_too_long_began_and_timed_out() -> None:
    async def trickle(reader: Reader, writer: Writer) -> None:
        await request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        while True:
            writer.write(b"x")
            await asyncio.sleep(0.01)

    result = await drive(trickle, some(1), Options(connections=1, timeout_s=0.5))
    assert endings(result) == {Ending.TIMEOUT: 1}
    assert result.sheet.first_byte_s[0] < 0.5
    assert result.sheet.statuses[0] == 0
    assert math.isnan(result.sheet.service_s[0])


async def test_a_long_body_is_sent_whole_to_a_server_that_reads_slowly() -> None:
    body = b"x" * 3_000_000
    lengths = []

    async def slow(reader: Reader, writer: Writer) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"content-length: 3000000" in head
        left = len(body)
        while left:
            left -= len(await reader.read(min(left, 100_000)))
        lengths.append(len(body) - left)
        writer.write(OK)
        await reader.read()

    assert endings(await drive(slow, some(1), requests=(Request(body=body),))) == {Ending.OK: 1}
    assert lengths == [len(body)]


async def test_a_fault_of_the_generator_ends_the_run_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedServer(silent) as server:
        generator = Generator(Load(some()), Target(port=server.port), BRISK)
        monkeypatch.setattr(generator, "_expire", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await generator.run()


async def test_spinning_waits_for_no_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autoglm_throttle.traffic.generator.sending.TICK_S", 3600.0)
    made = plan(Shape.parse("fixed:500:200ms"), Arrivals.UNIFORM, Crowd())
    async with asyncio.timeout(60.0):
        result = await drive(always(OK), made, replace(BRISK, connections=4, spin=True))
    assert endings(result) == {Ending.OK: 100}


async def test_what_the_run_took_is_told() -> None:
    effort = (await drive(always(OK), some(20), replace(BRISK, connections=3))).effort
    assert effort.connections == 3
    assert effort.elapsed_s >= 0.019
    assert effort.overrun_s >= 0.0
    assert effort.cpu_share is not None
    assert 0.0 < effort.cpu_share < 1.5
    assert (effort.processes, effort.loop) == (1, "asyncio")


async def test_stopped_before_the_start_nothing_is_sent() -> None:
    async with ScriptedServer(silent) as server:
        generator = Generator(Load(some()), Target(port=server.port), BRISK)
        generator.stop()
        result = await generator.run()
    assert result.aborted
    assert result.books.total().unsent == 3
