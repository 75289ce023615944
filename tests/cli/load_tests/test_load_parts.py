"""Parts of the commands that need no service."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from autoglm_throttle.cli import run as running
from autoglm_throttle.cli.options import run_command
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.generator import ClientOptions, UserSchedule
from autoglm_throttle.traffic.plan import PriorityMix, Users
from autoglm_throttle.traffic.request_log import RequestLog, RequestResult
from autoglm_throttle.traffic.results import Result, RunCost
from tests.cli.load_tests.conftest import Run

HERE = "http://127.0.0.1:9"
SEARCH = ("--find-peak", "10:20:1s", "--slo", "p99<1s")


@pytest.fixture
def users(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs users whose only response takes 5 ms, with progress after 5 s and 10 s."""

    def launch(load: UserSchedule, *_: object, observer: Any, on_progress: Any) -> Result:
        if observer is not None:
            observer(0, RequestResult.OK, 0.005)
        on_progress(5.0, 3, 2)
        on_progress(10.0, 6, 2)
        return Result(cast("Any", load), RequestLog(), RunCost(elapsed_s=10.0))

    def run_users(*, quiet: bool) -> None:
        schedule = UserSchedule(Users.parse("users:5:60s"), mix=PriorityMix())
        args = Namespace(quiet=quiet, probes=(), target=None, client=ClientOptions())
        running.run_load(schedule, args, running.SignalGuard())

    monkeypatch.setattr(running, "launch", launch)
    return run_users


def test_progress_of_users(users: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    users(quiet=False)
    assert capsys.readouterr().err.startswith("10/60 s  sent 6  done 1  in flight 2")


def test_quiet_run_writes_nothing(users: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    users(quiet=True)
    assert capsys.readouterr().err == ""


def test_ctrl_c_before_anything_was_sent() -> None:
    def stopped() -> int:
        raise KeyboardInterrupt

    assert run_command("load", stopped) == 130


def test_a_search_stopped_before_anything_was_sent(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "run_load", stopped)
    assert run("load", HERE, *SEARCH) == (130, "", "")


def test_peak_search_without_a_result_exits_with_2(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object, **__: object) -> None:
        raise TrafficError("nobody answers")

    monkeypatch.setattr(running, "run_load", lost)
    done = run("load", HERE, *SEARCH)
    assert done == (2, "", "autoglm-throttle load: after 0 trials, at 10/s: nobody answers\n")


def test_a_folder_that_must_not_be_written(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """``os.access`` is patched, since root may write everywhere."""
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    done = run("load", HERE, *SEARCH, "--json", "r.json")
    assert (done.status, done.err) == (2, "autoglm-throttle load: --json: r.json cannot be written\n")


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        (["processor : 0", "model name\t: Fast: 9000"], "Fast: 9000"),
        (["processor : 0"], "riscv"),
        (None, "riscv"),
    ],
)
def test_processor_name_by_platform(
    cpuinfo: list[str] | None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object, **__: object) -> str:
        if cpuinfo is None:
            raise FileNotFoundError
        return "\n".join(cpuinfo)

    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr("platform.machine", lambda: "riscv")
    assert running.processor() == name
