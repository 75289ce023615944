"""Real processes: one trial for all of them, one that dies while it makes it, one that has just begun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autoglm_throttle.store.breakers.sync import RedisBreakerStore
from autoglm_throttle.types import BreakerCause, BreakerState, ProbeLease, ProbeRequest
from tests.resilience.shared import fleet_process
from tests.resilience.shared.conftest import Made
from tests.resilience.shared.fleets import PATIENCE_S, watched
from tests.store.polling import until
from tests.store.server import RedisServer

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[3]
ROUNDS = 100
OPEN_S = 0.02
TAIL_S = 0.015
"""Seconds for which all processes continue to call after the first admission."""

Begun = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def begun(own_server: RedisServer, redis_prefix: str) -> Iterator[Begun]:
    """Start processes, which end with the test."""
    processes: list[subprocess.Popen[str]] = []

    def begin(*task: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.resilience.shared.fleet_process",
                own_server.url,
                redis_prefix,
                *task,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        processes.append(process)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def opens(store: RedisBreakerStore, name: str) -> None:
    """Open it, again if the machine was so busy that the open period was over before it could be told."""
    while not store.state.version(name, own=True):
        store.report_open(name, OPEN_S, 0, BreakerCause.FAILURES)
        until(lambda: not store.state.has_work(), PATIENCE_S, "all is told")


@pytest.mark.slow
def test_two_processes_of_fifty_tasks_make_one_probe(
    made: Made, begun: Begun, own_server: RedisServer
) -> None:
    store = made(own_server.url)
    for number in range(ROUNDS):
        store.subscribe(str(number), lambda remote: None)
    pair = [begun("race", str(ROUNDS)) for _ in range(2)]
    assert [line(process) for process in pair] == ["ready", "ready"]
    let_through: dict[int, list[str]] = {}
    received = threading.Event()

    def hears(process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for reports in process.stdout:
            number, fence = reports.split()
            let_through.setdefault(int(number), []).append(fence)
            received.set()

    for process in pair:
        threading.Thread(target=hears, args=(process,), daemon=True).start()
    for number in range(ROUNDS):
        received.clear()
        opens(store, str(number))
        for process in pair:
            assert process.stdin is not None
            process.stdin.write(f"{number}\n")
            process.stdin.flush()
        assert received.wait(PATIENCE_S), f"nobody in round {number}"
        threading.Event().wait(TAIL_S)
    assert {n: fences for n, fences in let_through.items() if len(fences) != 1} == {}
    assert sorted(let_through) == list(range(ROUNDS))
    assert ["0"] not in let_through.values(), "each by a lease of the fleet"


def test_process_killed_during_its_probe_blocks_one_lease(
    made: Made, begun: Begun, own_server: RedisServer
) -> None:
    store = made(own_server.url)
    watched(store)
    request = ProbeRequest(
        half_open_max=1, successes_needed=1, limits_concurrent=False, lease_s=fleet_process.LEASE_S
    )
    opens(store, "a")
    began_s = time.monotonic()
    holder = begun("hold", "a")
    assert line(holder) == "holding"
    os.kill(holder.pid, signal.SIGKILL)
    until(lambda: isinstance(store.acquire("a", request), ProbeLease), PATIENCE_S, "the next trial")
    assert time.monotonic() - began_s >= fleet_process.LEASE_S, "not before the lease ends"


@pytest.mark.slow
def test_first_call_of_a_new_process_is_rejected(made: Made, begun: Begun, own_server: RedisServer) -> None:
    store = made(own_server.url)
    watched(store)
    store.report_open("a", 600.0, 0, BreakerCause.FAILURES)
    until(lambda: store.state.version("a", own=True), PATIENCE_S, "it is told")
    for _ in range(3):
        assert line(begun("first", "a")).split() == ["GuardRejection", BreakerState.OPEN.value]
