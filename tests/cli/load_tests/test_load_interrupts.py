"""Reports survive a closed pipe, Ctrl-C and a service that goes down."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from autoglm_throttle.cli import replay
from autoglm_throttle.cli import run as runs
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.generator.launch import on_stop_signal
from autoglm_throttle.traffic.plan import Arrivals, LoadLevel, LoadShape, PriorityMix, make_plan
from autoglm_throttle.traffic.record import RecordedRequest, RecordingHeader
from autoglm_throttle.traffic.report import dumps, make
from autoglm_throttle.traffic.request_log import RequestLog, RequestResult
from autoglm_throttle.traffic.request_source import RequestSource
from autoglm_throttle.traffic.results import Result, RunCost
from tests.cli.load_tests.conftest import Run, finished, process
from tests.traffic.page.drawn_page import shown

URL = "http://127.0.0.1:9"
SOON = ("load", URL, "--shape", "fixed:5:1s", "--quiet", "--json", "r.json", "--html", "r.html")

SEARCH = ("load", URL, "--find-peak", "10:20:1s", "--quiet")

Launch = Callable[..., Result]
Put = Callable[[Launch], None]


def answered(load: RequestSource, *_: object, **__: object) -> Result:
    """Instead of sending: everything was answered within 2 ms."""
    sheet = RequestLog(len(load.plan))
    for index in range(len(load.plan)):
        sheet.close(index, RequestResult.OK, 0.002)
        sheet.lag_s[index] = 0.0
        sheet.service_s[index] = sheet.first_byte_s[index] = 0.002
        sheet.statuses[index] = 200
    return Result(load, sheet, RunCost(elapsed_s=load.plan.duration_s))


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> Put:
    """Puts this in the place of the generator."""
    return lambda act: monkeypatch.setattr(runs, "launch", act)


FAKED = """
from autoglm_throttle.cli import run
from tests.cli.load_tests.test_load_interrupts import answered
run.launch = answered
"""


@pytest.mark.slow
@pytest.mark.parametrize("gone", ["stdout", "stderr"])
def test_closed_output_pipe_keeps_files_and_exit_status(gone: str, tmp_path: Path) -> None:
    """As with `load ... | head -0`; standard error may go the same way."""
    close = (
        f"import os\nread, write = os.pipe()\nos.dup2(write, {1 if gone == 'stdout' else 2})\nos.close(read)"
    )
    words = [word for word in SOON if word != "--quiet"]
    done = finished(
        process(*words, "--slo", "p99<1us", code=f"{close}\nos.close(write)\n{FAKED}", cwd=tmp_path)
    )
    assert done.status == 1
    assert json.loads((tmp_path / "r.json").read_text())["verdict"]["status"] == 1
    assert list(shown((tmp_path / "r.html").read_text()).iter("svg"))
    assert ("p99<1us" in done.out) is (gone == "stderr")
    assert "Traceback" not in done.err


def pressing(act: Callable[..., Any]) -> Callable[..., Any]:
    """This, and Ctrl-C before it and after it."""

    def pressed(*args: Any, **named: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        result = act(*args, **named)
        signal.raise_signal(signal.SIGINT)
        return result

    return pressed


def record(path: Path) -> None:
    entries = (RecordedRequest(id=number, t_s=number / 4, method="GET", target="/") for number in range(5))
    path.write_text("\n".join([RecordingHeader().to_line(), *(entry.to_line() for entry in entries), ""]))


@pytest.mark.parametrize("command", ["load", "replay"])
def test_ctrl_c_during_the_report_is_deferred(
    command: str, run: Run, launch: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    def after(*args: Any, **named: Any) -> Result:
        result = answered(*args, **named)
        signal.raise_signal(signal.SIGINT)
        return result

    launch(after)
    monkeypatch.setattr(runs, "make", pressing(make))
    monkeypatch.setattr(replay, "make", pressing(make))
    monkeypatch.setattr(runs, "dumps", pressing(dumps))
    record(Path("r.jsonl"))
    words = SOON if command == "load" else ("replay", "r.jsonl", URL, "--quiet", "--json", "r.json")
    done = run(*words)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("127.0.0.1:9, ")
    assert json.loads(Path("r.json").read_text())["totals"]["classes"]["ok"] == 5


def test_ctrl_c_before_the_start_stops_the_sender(run: Run, launch: Put) -> None:
    """The generator handles it itself, but not yet."""
    asked = []

    def late(
        load: RequestSource, *_: object, on_progress: Callable[[float, int, int], None], **__: object
    ) -> Result:
        signal.raise_signal(signal.SIGINT)
        with on_stop_signal(lambda: asked.append("stop")):
            on_progress(1.0, 1, 0)
            on_progress(2.0, 1, 0)
        return answered(load)

    launch(late)
    run(*SOON)
    assert asked == ["stop"]


def test_ctrl_c_between_two_trials_ends_the_search(
    run: Run, launch: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch(answered)
    monkeypatch.setattr(runs, "make", pressing(make))
    done = run(*SEARCH, "--slo", "p99<1s", "--json", "r.json")
    assert done.status == 130
    assert done.out.endswith("peak: stopped before the end; the objectives hold at 10/s\n")
    assert json.loads(Path("r.json").read_text())["load"]["planned"] == 10


def test_peak_search_keeps_its_trials_if_the_service_goes_down(run: Run, launch: Put) -> None:
    def until(load: RequestSource, *_: object, **__: object) -> Result:
        if len(load.plan) > 10:
            raise TrafficError("nobody answers")
        return answered(load)

    launch(until)
    done = run(*SEARCH, "--slo", "p99<1s", "--json", "r.json")
    assert done.status == 1
    known = "stopped before the end; the objectives hold at 10/s; after 1 trials, at 20/s: nobody answers"
    assert done.out.endswith(f"peak: {known}\n")
    found = json.loads(Path("r.json").read_text())
    assert (found["load"]["planned"], found["title"].endswith(known)) == (10, True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--shape", "fixed:5:1s", "--arrivals", "poisson"), "poisson"),
        (("--shape", "trace:r.jsonl"), "recorded"),
        (("--shape", "users:5:1s"), "closed-loop"),
    ],
)
def test_report_names_the_arrival_process(words: Sequence[str], told: str, run: Run, launch: Put) -> None:
    launch(
        lambda what, *_, **__: answered(
            RequestSource(make_plan(LoadShape([LoadLevel(5, 1)]), Arrivals.UNIFORM, PriorityMix(), 0))
        )
    )
    record(Path("r.jsonl"))
    done = run("load", URL, "--quiet", *words, "--json", "r.json")
    assert json.loads(Path("r.json").read_text())["load"]["arrivals"] == told
    assert f"{told} arrivals" in done.out
