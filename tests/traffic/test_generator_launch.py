"""Whole runs: event loop, progress and stop signals. Signals are real."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.generator import (
    ClientOptions,
    TargetUrl,
    launch,
)
from autoglm_throttle.traffic.plan import Arrivals, LoadShape, PriorityMix, make_plan
from autoglm_throttle.traffic.request_log import RequestResult
from autoglm_throttle.traffic.request_source import RequestSource
from tests.traffic.scripted_server import OK, always, beside, request

pytestmark = pytest.mark.xdist_group("load")

BRISK = ClientOptions(connections=4, timeout_s=5.0, drain_s=5.0)
DEADLINE_S = 60.0


def some(shape: str = "fixed:1000:40ms") -> RequestSource:
    return RequestSource(
        make_plan(LoadShape.parse(shape), Arrivals.UNIFORM, PriorityMix(clients=9)),
        clients=tuple("abcdefghi"),
    )


async def silent(reader: Reader, _writer: Writer) -> None:
    await reader.read()


def test_one_process_sends_on_the_fastest_loop_there_is() -> None:
    seen: list[int] = []
    with beside(always(OK)) as server:
        result = launch(
            some(), TargetUrl(port=server.port), BRISK, observer=lambda *told: seen.append(told[0])
        )
    assert result.total().results[RequestResult.OK] == 40
    assert result.run_cost.loop == "uvloop"
    assert sorted(seen) == list(range(40))


def test_without_uvloop_the_loop_is_that_of_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with beside(always(OK)) as server:
        assert launch(some(), TargetUrl(port=server.port), BRISK).run_cost.loop == "asyncio"


@pytest.mark.slow
def test_progress_callback_reports_the_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[launch.__module__], "PROGRESS_INTERVAL_S", 0.1)
    told: list[tuple[float, int, int]] = []
    with beside(always(OK)) as server:
        made, target = some("fixed:100:1500ms"), TargetUrl(port=server.port)
        launch(made, target, BRISK, on_progress=lambda *one: told.append(one))
    assert len(told) >= 5
    assert [at_s for at_s, _, _ in told] == sorted(at_s for at_s, _, _ in told)
    assert [launched for _, launched, _ in told] == sorted(launched for _, launched, _ in told)
    assert 0 < told[-1][1] <= 150
    assert all(0 <= in_flight <= launched for _, launched, in_flight in told)


def test_unreachable_target_is_reported_before_the_start() -> None:
    with beside(silent) as server:
        target = TargetUrl(port=server.port)
    with pytest.raises(TrafficError, match="refuses connections"):
        launch(some(), target, BRISK)


def test_another_thread_than_the_main_one_may_send() -> None:
    results = []
    with beside(always(OK)) as server:
        target = TargetUrl(port=server.port)
        thread = threading.Thread(target=lambda: results.append(launch(some(), target, BRISK)))
        thread.start()
        thread.join(DEADLINE_S)
    assert results[0].balanced


def interrupt() -> None:
    """As the terminal does it."""
    os.kill(os.getpid(), signal.SIGINT)


def test_stop_signal_ends_the_run_and_handlers_are_restored() -> None:
    asked = threading.Event()

    async def serve(reader: Reader, writer: Writer) -> None:
        while True:
            await request(reader)
            if not asked.is_set():
                asked.set()
                interrupt()
            writer.write(OK)

    before = signal.getsignal(signal.SIGINT)
    with beside(serve) as server:
        result = launch(some("fixed:20:60"), TargetUrl(port=server.port), BRISK)
    assert result.aborted
    assert result.balanced
    assert result.total().unsent > 1000
    assert signal.getsignal(signal.SIGINT) is before


def test_stop_signal_before_the_start_is_raised() -> None:
    asked = threading.Event()

    async def serve(reader: Reader, _writer: Writer) -> None:
        if not asked.is_set():
            asked.set()
            interrupt()
        await reader.read()

    with beside(serve) as server, pytest.raises(KeyboardInterrupt):
        launch(some(), TargetUrl(port=server.port, scheme="https"), BRISK)


SCRIPT = """
import sys
from autoglm_throttle.traffic.plan import *
from autoglm_throttle.traffic.generator import *
from autoglm_throttle.traffic.request_source import RequestSource

if __name__ == "__main__":
    load = RequestSource(make_plan(LoadShape.parse("fixed:20:60"), Arrivals.UNIFORM, PriorityMix()))
    target = TargetUrl.parse(sys.argv[1])
    try:
        options = ClientOptions(connections=64, drain_s=60.0)
        result = launch(load, target, options)
    except KeyboardInterrupt:
        print("before the start")
    else:
        row = result.total()
        print(result.aborted, result.balanced, row.planned, row.unsent, row.results[0], row.results[9])
"""


@contextmanager
def script(url: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", SCRIPT, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_first_stop_signal_waits_for_open_requests(number: signal.Signals) -> None:
    arrived, answer = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve(reader: Reader, writer: Writer) -> None:
        while True:
            await request(reader)
            loops.append(asyncio.get_running_loop())
            arrived.set()
            await answer.wait()
            writer.write(OK)

    with beside(serve) as server, script(f"http://127.0.0.1:{server.port}") as child:
        assert arrived.wait(DEADLINE_S)
        child.send_signal(number)
        loops[0].call_soon_threadsafe(answer.set)
        aborted, balanced, planned, unsent, ok, unanswered = child.communicate(timeout=DEADLINE_S)[0].split()
    assert (aborted, balanced, planned, unanswered) == ("True", "True", "1200", "0")
    assert int(unsent) + int(ok) == 1200
    assert int(unsent) > 1000
    assert int(ok) > 0
    assert child.returncode == 0


def until_none_arrives(arrived: threading.Event) -> None:
    """Twenty are sent each second."""
    deadline_s = time.monotonic() + DEADLINE_S
    arrived.clear()
    while arrived.wait(0.25):
        arrived.clear()
        assert time.monotonic() < deadline_s


@pytest.mark.slow
def test_second_stop_signal_ends_at_once() -> None:
    arrived = threading.Event()

    async def serve(reader: Reader, _writer: Writer) -> None:
        await request(reader)
        arrived.set()
        await reader.read()

    with beside(serve) as server, script(f"http://127.0.0.1:{server.port}") as child:
        assert arrived.wait(DEADLINE_S)
        child.send_signal(signal.SIGINT)
        until_none_arrives(arrived)
        assert child.poll() is None, "the first one waits"
        child.send_signal(signal.SIGINT)
        aborted, balanced, _, unsent, _, unanswered = child.communicate(timeout=DEADLINE_S)[0].split()
    assert (aborted, balanced) == ("True", "True")
    assert int(unanswered) > 0
    assert int(unsent) + int(unanswered) == 1200
