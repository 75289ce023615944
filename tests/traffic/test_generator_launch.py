"""Whole runs: event loop, progress, several processes and stop signals. Processes and signals are real."""

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
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.generator import (
    ClientOptions,
    TargetUrl,
    UserSchedule,
    launch,
    worker_pool,
    worker_process,
)
from autoglm_throttle.traffic.plan import Arrivals, LoadShape, PriorityMix, Users, make_plan
from autoglm_throttle.traffic.report import RunInfo, make
from autoglm_throttle.traffic.request_result import RequestResult
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
    assert result.summary.total().results[RequestResult.OK] == 40
    assert result.run_cost.loop == "uvloop"
    assert sorted(seen) == list(range(40))


def test_without_uvloop_the_loop_is_that_of_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with beside(always(OK)) as server:
        assert launch(some(), TargetUrl(port=server.port), BRISK).run_cost.loop == "asyncio"


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_progress_callback_reports_the_progress(processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[launch.__module__], "PROGRESS_INTERVAL_S", 0.1)
    monkeypatch.setattr(worker_pool, "PROGRESS_INTERVAL_S", 0.1)
    told: list[tuple[float, int, int]] = []
    with beside(always(OK)) as server:
        made, target = some("fixed:100:1500ms"), TargetUrl(port=server.port)
        launch(made, target, BRISK, processes=processes, on_progress=lambda *one: told.append(one))
    assert len(told) >= 5
    assert [at_s for at_s, _, _ in told] == sorted(at_s for at_s, _, _ in told)
    assert [launched for _, launched, _ in told] == sorted(launched for _, launched, _ in told)
    assert 0 < told[-1][1] <= 150
    assert all(0 <= in_flight <= launched for _, launched, in_flight in told)


@pytest.mark.slow
def test_unreachable_target_is_reported_before_the_start() -> None:
    with beside(silent) as server:
        target = TargetUrl(port=server.port)
    for processes in (1, 2):
        with pytest.raises(TrafficError, match="refuses connections"):
            launch(some(), target, BRISK, processes=processes)


def test_there_is_at_least_one_process() -> None:
    with pytest.raises(TrafficError, match="at least 1, not 0"):
        launch(some(), TargetUrl(port=1), processes=0)


def test_another_thread_than_the_main_one_may_send() -> None:
    results = []
    with beside(always(OK)) as server:
        target = TargetUrl(port=server.port)
        thread = threading.Thread(target=lambda: results.append(launch(some(), target, BRISK)))
        thread.start()
        thread.join(DEADLINE_S)
    assert results[0].balanced


def test_several_processes_send_one_load() -> None:
    clients, seen = Counter[str](), Counter[int]()
    lock = threading.Lock()

    async def serve(reader: Reader, writer: Writer) -> None:
        while True:
            head = (await request(reader)).decode()
            with lock:
                clients[head.partition("x-client: ")[2][0]] += 1
            writer.write(OK)

    made = some("fixed:1000:300ms")
    with beside(serve) as server:
        target = TargetUrl(port=server.port, identity_header="x-client")
        result = launch(made, target, BRISK, processes=2, observer=lambda index, _, __: seen.update([index]))
    assert result.balanced
    assert (result.run_cost.processes, result.run_cost.connections) == (2, 4)
    assert clients == Counter(map(made.client, made.plan.clients))
    assert seen == Counter(range(300))


@pytest.mark.slow
def test_several_processes_share_the_users() -> None:
    with beside(always(OK)) as server:
        roster = UserSchedule(Users(((5, 0.4),), think_s=0.02))
        result = launch(roster, TargetUrl(port=server.port), BRISK, processes=2)
    assert result.closed_loop
    assert result.balanced
    assert result.run_cost.connections == 5
    assert 40 <= result.summary.total().results[RequestResult.OK] == len(result.request_log) <= 105
    offsets = result.load.plan.offsets
    assert list(offsets) == sorted(offsets)


def test_early_end_of_a_sending_process_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "WORKER", "this")
    with pytest.raises(TrafficError, match="ended early"):
        launch(some(), TargetUrl(port=1), BRISK, processes=2)


@pytest.mark.slow
@pytest.mark.parametrize("what", [some("fixed:100:500ms"), UserSchedule(Users(((4, 0.5),), think_s=0.02))])
def test_results_of_other_processes_survive_a_kill(
    what: RequestSource | UserSchedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell, told = worker_pool.send_message, list[object]()

    def say(child: subprocess.Popen[bytes], said: object) -> None:
        tell(child, said)
        if isinstance(said, float):
            told.append(child)
            if len(told) == 2:
                child.kill()

    monkeypatch.setattr(worker_pool, "send_message", say)
    with beside(always(OK)) as server:
        result = launch(what, TargetUrl(port=server.port), BRISK, processes=2)
    assert result.balanced
    assert (result.run_cost.processes, result.run_cost.lost, result.aborted) == (2, 1, False)
    total = result.summary.total()
    assert total.results[RequestResult.OK] == total.sent >= 20
    report = make(result, RunInfo(title="one lost", shape="any"))
    assert report["load"].get("sent_s") == 0.5
    assert report["verdict"]["status"] == 3
    assert "1 of 2 sending processes ended early" in report["verdict"]["text"]


@pytest.mark.slow
def test_run_without_surviving_processes_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    tell = worker_pool.send_message

    def say(child: subprocess.Popen[bytes], said: object) -> None:
        tell(child, said)
        if isinstance(said, float):
            child.kill()

    monkeypatch.setattr(worker_pool, "send_message", say)
    with beside(always(OK)) as server, pytest.raises(TrafficError, match="ended early"):
        launch(some(), TargetUrl(port=server.port), BRISK, processes=2)


@pytest.mark.slow
def test_stop_signal_before_the_start_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[object] = []
    tell = worker_pool.send_message

    def say(child: subprocess.Popen[bytes], what: object) -> None:
        said.append(what)
        tell(child, what)
        if isinstance(what, float):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(worker_pool, "send_message", say)
    with beside(always(OK)) as server, pytest.raises(KeyboardInterrupt):
        launch(some(), TargetUrl(port=server.port), BRISK, processes=2)
    assert worker_pool.STOP not in said


def test_sending_processes_that_never_become_ready_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "READY_S", 0.01)
    with pytest.raises(TrafficError, match=r"not ready within 0\.01 s"):
        launch(some(), TargetUrl(port=1), BRISK, processes=2)


def test_results_are_observed_once() -> None:
    seen = worker_process.WorkerCounts()
    seen.record(3, RequestResult.LIMITED, 0.5)
    assert [list(column) for column in seen.take()] == [[3], [RequestResult.LIMITED], [0.5]]
    assert [list(column) for column in seen.take()] == [[], [], []]


def interrupt() -> None:
    """As the terminal does it."""
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_stop_signal_ends_the_run_and_handlers_are_restored(processes: int) -> None:
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
        result = launch(some("fixed:20:60"), TargetUrl(port=server.port), BRISK, processes=processes)
    assert result.aborted
    assert result.balanced
    assert result.summary.total().unsent > 1000
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_stop_signal_before_the_start_is_raised(processes: int) -> None:
    asked = threading.Event()

    async def serve(reader: Reader, _writer: Writer) -> None:
        if not asked.is_set():
            asked.set()
            interrupt()
        await reader.read()

    with beside(serve) as server, pytest.raises(KeyboardInterrupt):
        launch(some(), TargetUrl(port=server.port, scheme="https"), BRISK, processes=processes)


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
        result = launch(load, target, options, processes=int(sys.argv[2]))
    except KeyboardInterrupt:
        print("before the start")
    else:
        row = result.summary.total()
        print(result.aborted, result.balanced, row.planned, row.unsent, row.results[0], row.results[9])
"""


@contextmanager
def script(url: str, processes: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", SCRIPT, url, str(processes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "number"), [(1, signal.SIGTERM), (2, signal.SIGINT)])
def test_first_stop_signal_waits_for_open_requests(processes: int, number: signal.Signals) -> None:
    arrived, answer = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve(reader: Reader, writer: Writer) -> None:
        while True:
            await request(reader)
            loops.append(asyncio.get_running_loop())
            arrived.set()
            await answer.wait()
            writer.write(OK)

    with beside(serve) as server, script(f"http://127.0.0.1:{server.port}", processes) as child:
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
@pytest.mark.parametrize("processes", [1, 2])
def test_second_stop_signal_ends_at_once(processes: int) -> None:
    arrived = threading.Event()

    async def serve(reader: Reader, _writer: Writer) -> None:
        await request(reader)
        arrived.set()
        await reader.read()

    with beside(serve) as server, script(f"http://127.0.0.1:{server.port}", processes) as child:
        assert arrived.wait(DEADLINE_S)
        child.send_signal(signal.SIGINT)
        until_none_arrives(arrived)
        assert child.poll() is None, "the first one waits"
        child.send_signal(signal.SIGINT)
        aborted, balanced, _, unsent, _, unanswered = child.communicate(timeout=DEADLINE_S)[0].split()
    assert (aborted, balanced) == ("True", "True")
    assert int(unanswered) > 0
    assert int(unsent) + int(unanswered) == 1200


@pytest.mark.slow
def test_sending_processes_end_with_their_parent() -> None:
    arrived, over = threading.Event(), threading.Event()
    inside = 0

    async def serve(reader: Reader, _writer: Writer) -> None:
        nonlocal inside
        inside += 1
        try:
            await request(reader)
            arrived.set()
            await reader.read()
        finally:
            inside -= 1
            if not inside:
                over.set()

    with beside(serve) as server, script(f"http://127.0.0.1:{server.port}", 2) as child:
        assert arrived.wait(DEADLINE_S)
        os.kill(child.pid, signal.SIGKILL)
        assert over.wait(DEADLINE_S)
