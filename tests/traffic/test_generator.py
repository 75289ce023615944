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

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.generator import ClientOptions, OpenLoopSender, TargetUrl
from autoglm_throttle.traffic.generator.connection import Connection, load_httptools
from autoglm_throttle.traffic.plan import Arrivals, LoadPlan, LoadShape, PriorityMix, make_plan
from autoglm_throttle.traffic.request_log import RequestResult, classify_response
from autoglm_throttle.traffic.request_source import PlannedRequest, RequestSource
from autoglm_throttle.traffic.results import Result
from autoglm_throttle.types import Priority
from tests.traffic.scripted_server import OK, ScriptedServer, Serve, always, once, request

BRISK = ClientOptions(connections=1, timeout_s=60.0, drain_s=60.0)


def some(requests: int = 3, crowd: PriorityMix | None = None) -> LoadPlan:
    return make_plan(LoadShape.parse(f"fixed:1000:{requests}ms"), Arrivals.UNIFORM, crowd or PriorityMix())


async def drive(
    serve: Serve,
    made: LoadPlan,
    options: ClientOptions = BRISK,
    requests: Sequence[PlannedRequest] = (PlannedRequest(),),
) -> Result:
    async with ScriptedServer(serve) as server:
        result = await OpenLoopSender(
            RequestSource(made, requests), TargetUrl(port=server.port), options
        ).run()
    assert result.balanced
    return result


def endings(result: Result) -> dict[RequestResult, int]:
    return {
        ending: count for ending, count in zip(RequestResult, result.total().results, strict=True) if count
    }


@pytest.mark.parametrize(
    ("answer", "ending"),
    [
        ([OK], RequestResult.OK),
        ([bytes([byte]) for byte in OK], RequestResult.OK),
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], RequestResult.OK),
        ([b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n"], RequestResult.OK),
        (
            [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n", b"0\r\n\r\n"],
            RequestResult.OK,
        ),
        ([b"HTTP/1.1 100 Continue\r\n\r\n", OK], RequestResult.OK),
        ([b"HTTP/1.1 100 Continue\r\n\r\n" + OK], RequestResult.OK),
        ([b"HTTP/1.1 103 Early Hints\r\nx-degraded: cache\r\n\r\n" + OK], RequestResult.OK),
        (
            [b"HTTP/1.1 103 E\r\nretry-after: 1\r\n\r\nHTTP/1.1 503 X\r\ncontent-length: 0\r\n\r\n"],
            RequestResult.SERVER_ERROR,
        ),
        (
            [b"HTTP/1.1 503 X\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nretry-after: 1\r\n\r\n"],
            RequestResult.SERVER_ERROR,
        ),
        ([b"HTTP/1.1 200 OK\r\nX-Degraded: cache\r\ncontent-length: 0\r\n\r\n"], RequestResult.DEGRADED),
        ([b"HTTP/1.1 429 X\r\ncontent-length: 0\r\n\r\n"], RequestResult.LIMITED),
        ([b"HTTP/1.1 503 X\r\nRetry-After: 3\r\ncontent-length: 0\r\n\r\n"], RequestResult.SHED),
        ([b"HTTP/1.1 503 X\r\ncontent-length: 0\r\n\r\n"], RequestResult.SERVER_ERROR),
        ([b"HTTP/1.1 404 X\r\ncontent-length: 0\r\n\r\n"], RequestResult.CLIENT_ERROR),
        ([b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"], RequestResult.OK),
        ([OK + b"HTTP/1.1 429 X\r\ncontent-length: 0\r\n\r\n"], RequestResult.OK),
        ([b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\nmore"], RequestResult.OK),
        ([b"garbage\r\n\r\n"], RequestResult.MALFORMED),
        ([b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"], RequestResult.MALFORMED),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n"], RequestResult.MALFORMED),
    ],
)
async def test_responses_are_classified_by_status(answer: list[bytes], ending: RequestResult) -> None:
    assert endings(await drive(always(*answer), some())) == {ending: 3}


@pytest.mark.parametrize(
    ("serve", "ending"),
    [
        (once(OK), RequestResult.OK),
        (once(b"HTTP/1.1 200 OK\r\n\r\nuntil the end"), RequestResult.OK),
        (once(b"HTTP/1.1 200 OK\r\n\r\nuntil the end", by_reset=True), RequestResult.CONNECTION),
        (once(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf"), RequestResult.CONNECTION),
        (once(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nha"), RequestResult.CONNECTION),
        (once(b"HTTP/1.1 200"), RequestResult.CONNECTION),
        (once(b""), RequestResult.CONNECTION),
    ],
)
async def test_closed_connections_are_classified_and_replaced(serve: Serve, ending: RequestResult) -> None:
    assert endings(await drive(serve, some())) == {ending: 3}


async def test_surplus_response_closes_its_connection() -> None:
    async with ScriptedServer(always(OK + b"HTTP/1.1 500 X\r\ncontent-length: 1\r\n\r\n", b"x")) as server:
        made = make_plan(LoadShape.parse("fixed:50:60ms"), Arrivals.UNIFORM, PriorityMix())
        target = TargetUrl(port=server.port)
        result = await OpenLoopSender(RequestSource(made), target, BRISK).run()
    assert endings(result) == {RequestResult.OK: 3}
    assert server.connections == 3


async def test_responses_to_head_have_no_body() -> None:
    """Answers to GET do, on the same connection."""

    async def serve(reader: Reader, writer: Writer) -> None:
        while True:
            head = await request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n")
            if head.startswith(b"GET "):
                writer.write(b"body")

    made = some(4)
    mixed = replace(made, kinds=array("I", [0, 1, 0, 1]))
    kinds = (PlannedRequest(method="HEAD", body=b""), PlannedRequest(method="GET", body=b""))
    async with ScriptedServer(serve) as server:
        result = await OpenLoopSender(RequestSource(mixed, kinds), TargetUrl(port=server.port), BRISK).run()
    assert endings(result) == {RequestResult.OK: 4}
    assert server.connections == 1


async def test_an_endless_answer_is_malformed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autoglm_throttle.traffic.generator.connection.BODY_BYTES", 1000)
    serve = always(
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        b"1f4\r\n" + b"x" * 500 + b"\r\n",
        b"1f5\r\n" + b"x" * 501,
    )
    assert endings(await drive(serve, some(1))) == {RequestResult.MALFORMED: 1}


async def test_an_idle_connection_closed_by_the_server_costs_nothing() -> None:
    async def serve(reader: Reader, writer: Writer) -> None:
        await request(reader)
        writer.write(OK)
        await reader.readuntil(b"\r\n\r\n")

    result = await drive(serve, some(6))
    assert endings(result) == {RequestResult.OK: 6}
    assert result.run_cost.resent == 5


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
    assert endings(result) == {RequestResult.OK: 1, RequestResult.CONNECTION: 1}
    assert result.run_cost.resent == 1


async def test_unasked_bytes_close_an_idle_connection() -> None:
    async def serve(reader: Reader, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 408 Too Late\r\ncontent-length: 0\r\n\r\n")
        await reader.read()

    made = make_plan(LoadShape.parse("fixed:1:1"), Arrivals.UNIFORM, PriorityMix())
    result = await drive(serve, made, ClientOptions(connections=2, timeout_s=0.3, drain_s=1.0))
    assert endings(result) in (
        {RequestResult.CONNECTION: 1},
        {RequestResult.TIMEOUT: 1},
        {RequestResult.CLIENT_ERROR: 1},
    )


def test_idle_connection_that_receives_data_is_closed() -> None:
    transport, owner = Mock(), Mock()
    connection = Connection(owner, load_httptools())
    connection.connection_made(transport)
    connection.data_received(OK)
    transport.abort.assert_called_once_with()
    owner.answered.assert_not_called()


async def silent(reader: Reader, _writer: Writer) -> None:
    await reader.read()


async def test_a_silent_server_times_out_from_the_intended_start() -> None:
    result = await drive(silent, some(5), ClientOptions(connections=2, timeout_s=0.1, drain_s=60.0))
    assert endings(result) == {RequestResult.TIMEOUT: 5}
    assert result.run_cost.elapsed_s < 30.0


async def test_open_requests_after_the_drain_are_unanswered() -> None:
    result = await drive(silent, some(5), ClientOptions(connections=2, timeout_s=60.0, drain_s=0.05))
    assert endings(result) == {RequestResult.UNANSWERED: 5}


async def test_requests_above_max_inflight_are_dropped() -> None:
    result = await drive(silent, some(9), ClientOptions(connections=2, max_inflight=4, timeout_s=0.2))
    assert endings(result) == {RequestResult.TIMEOUT: 4, RequestResult.DROPPED: 5}


async def test_rejection_reasons_and_retry_after_are_kept_by_priority() -> None:
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

    result = await drive(serve, some(5, PriorityMix({Priority.LOW: 100.0})))
    row = result.tallies[0, Priority.LOW]
    assert row.reasons == {"user": 1, "": 4}
    assert row.limited == row.rejection.count == 5
    assert row.promised.pairs() == [(6_979_584, 4)]
    assert row.response.count == row.failed == 0
    assert result.tallies[0, Priority.HIGH].sent == 0


async def test_requests_carry_their_priority() -> None:
    heads: list[bytes] = []

    async def serve(reader: Reader, writer: Writer) -> None:
        while True:
            heads.append(await request(reader))
            writer.write(OK)

    await drive(serve, some(2, PriorityMix({Priority.HIGH: 100.0})))
    assert heads[0].startswith(b"POST /v1/predict HTTP/1.1\r\nhost: 127.0.0.1:")
    assert b"\r\nx-priority: high\r\ncontent-length: 2\r\n\r\n" in heads[0]
    assert heads[0] == heads[1]


async def test_the_observer_sees_every_ending() -> None:
    seen: list[tuple[int, RequestResult]] = []
    made = some(4)
    async with ScriptedServer(always(OK)) as server:
        target = TargetUrl(port=server.port)
        generator = OpenLoopSender(
            RequestSource(made), target, BRISK, lambda index, ending, _: seen.append((index, ending))
        )
        await generator.run()
    assert sorted(seen) == [(index, RequestResult.OK) for index in range(4)]


async def test_stop_skips_the_rest_and_waits_for_open_requests() -> None:
    made = make_plan(LoadShape.parse("fixed:10:60"), Arrivals.UNIFORM, PriorityMix())

    async def slow(reader: Reader, writer: Writer) -> None:
        await request(reader)
        generator.stop()
        writer.write(OK)
        await reader.read()

    async with ScriptedServer(slow) as server:
        target = TargetUrl(port=server.port)
        generator = OpenLoopSender(RequestSource(made), target, BRISK)
        result = await generator.run()
    total = result.total()
    assert result.aborted
    assert result.balanced
    assert (total.planned, total.sent, total.admitted) == (600, 1, 1)


async def test_a_cancelled_run_sends_no_more() -> None:
    made = make_plan(LoadShape.parse("fixed:100:60"), Arrivals.UNIFORM, PriorityMix())
    arrived = asyncio.Event()

    async def serve(reader: Reader, writer: Writer) -> None:
        await request(reader)
        arrived.set()
        await reader.read()

    async with ScriptedServer(serve) as server:
        target = TargetUrl(port=server.port)
        generator = OpenLoopSender(RequestSource(made), target, BRISK)
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
        target = TargetUrl(port=server.port)
        generator = OpenLoopSender(RequestSource(made), target, ClientOptions(connections=1, drain_s=60.0))
        result = await generator.run()
    assert RequestResult.UNANSWERED in endings(result)
    assert result.balanced
    assert result.run_cost.elapsed_s < 30.0


async def test_connection_refused_is_an_error_before_the_start() -> None:
    async with ScriptedServer(silent) as server:
        port = server.port
    target = TargetUrl(port=port)
    with pytest.raises(TrafficError, match=rf"127\.0\.0\.1:{port} refuses connections"):
        await OpenLoopSender(RequestSource(some()), target, BRISK).run()


async def test_a_server_that_goes_away_and_comes_back_is_found_again() -> None:
    made = make_plan(LoadShape.parse("fixed:100:400ms"), Arrivals.UNIFORM, PriorityMix())
    answered = asyncio.Event()
    async with ScriptedServer(once(OK)) as first:
        target = TargetUrl(port=first.port)
        generator = OpenLoopSender(RequestSource(made), target, BRISK, lambda *_: answered.set())
        running = asyncio.create_task(generator.run())
        await answered.wait()
    second = await asyncio.start_server(ScriptedServer(always(OK)).handle, "127.0.0.1", target.port)
    result = await running
    second.close()
    assert result.total().admitted >= 38
    assert result.balanced


def test_too_few_open_files_are_an_error_that_names_both_numbers() -> None:
    target = TargetUrl(port=1)
    with pytest.raises(TrafficError, match=r"10000064 open files are needed and \d+ allowed"):
        OpenLoopSender(RequestSource(some()), target, ClientOptions(connections=10_000_000))


def test_more_open_files_than_there_are_numbers_for_are_an_error() -> None:
    with pytest.raises(TrafficError, match="10000000000000000064 open files are needed"):
        OpenLoopSender(RequestSource(some()), TargetUrl(port=1), ClientOptions(connections=10**19))


def test_without_httptools_the_error_names_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httptools", None)
    target = TargetUrl(port=1)
    with pytest.raises(TrafficError, match="pip install 'httptools>="):
        OpenLoopSender(RequestSource(some()), target, BRISK)


@pytest.mark.parametrize("fault", ["connections", "max_inflight", "timeout_s", "drain_s"])
def test_impossible_options_are_rejected(fault: str) -> None:
    wrong: dict[str, Any] = {fault: 0}
    with pytest.raises(TrafficError, match="above 0"):
        ClientOptions(**wrong)


def test_negative_number_of_connections_is_rejected() -> None:
    with pytest.raises(TrafficError, match="negative"):
        ClientOptions(more_connections=-1)


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

    result = await drive(together, made, ClientOptions(connections=1, more_connections=4, timeout_s=5.0))
    assert endings(result) == {RequestResult.OK: 5}


def test_every_result_is_served_rejected_or_failed() -> None:
    for ending in RequestResult:
        assert ending.served + ending.rejected + ending.failed == 1
    assert [ending.label for ending in RequestResult][:3] == ["ok", "degraded", "limited"]


@pytest.mark.parametrize("status", [200, 201, 302, 400, 413, 429, 499, 500, 502, 503])
def test_judging_is_total(status: int) -> None:
    plain = classify_response(status, None, degraded=False)
    waiting = classify_response(status, b"1", degraded=False)
    assert (plain is waiting) == (status != 503)


async def test_first_byte_of_a_stream_differs_from_its_end() -> None:
    async def stream(reader: Reader, writer: Writer) -> None:
        await request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(b"7\r\ndata: 1\r\n")
        await asyncio.sleep(0.1)
        writer.write(b"7\r\ndata: 2\r\n0\r\n\r\n")
        await reader.read()

    sheet = (await drive(stream, some(1))).request_log
    assert sheet.first_byte_s[0] < sheet.response_s[0]
    assert sheet.response_s[0] >= 0.1


async def test_an_answer_without_a_body_has_its_first_byte_at_its_end() -> None:
    sheet = (await drive(always(b"HTTP/1.1 204 No Content\r\n\r\n"), some(1))).request_log
    assert sheet.first_byte_s[0] == sheet.response_s[0] >= sheet.service_s[0]


async def test_a_trickle_that_takes_too_long_began_and_timed_out() -> None:
    async def trickle(reader: Reader, writer: Writer) -> None:
        await request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        while True:
            writer.write(b"x")
            await asyncio.sleep(0.01)

    result = await drive(trickle, some(1), ClientOptions(connections=1, timeout_s=0.5))
    assert endings(result) == {RequestResult.TIMEOUT: 1}
    assert result.request_log.first_byte_s[0] < 0.5
    assert result.request_log.statuses[0] == 0
    assert math.isnan(result.request_log.service_s[0])


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

    assert endings(await drive(slow, some(1), requests=(PlannedRequest(body=body),))) == {RequestResult.OK: 1}
    assert lengths == [len(body)]


async def test_exception_in_the_generator_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedServer(silent) as server:
        generator = OpenLoopSender(RequestSource(some()), TargetUrl(port=server.port), BRISK)
        monkeypatch.setattr(generator, "_expire", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await generator.run()


async def test_run_cost_is_reported() -> None:
    effort = (await drive(always(OK), some(20), replace(BRISK, connections=3))).run_cost
    assert effort.connections == 3
    assert effort.elapsed_s >= 0.019
    assert effort.overrun_s >= 0.0
    assert effort.cpu_share is not None
    assert 0.0 < effort.cpu_share < 1.5
    assert effort.loop == "asyncio"


async def test_stopped_before_the_start_nothing_is_sent() -> None:
    async with ScriptedServer(silent) as server:
        generator = OpenLoopSender(RequestSource(some()), TargetUrl(port=server.port), BRISK)
        generator.stop()
        result = await generator.run()
    assert result.aborted
    assert result.total().unsent == 3
