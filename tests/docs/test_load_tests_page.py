"""Runs the load-test commands of the pages against the service that the pages start."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoglm_throttle import Settings, Throttle, ThrottleMiddleware
from autoglm_throttle.settings import PREFIX
from autoglm_throttle.testing import ManualClock
from autoglm_throttle.testing.simulated import SimulatedGpu, service
from autoglm_throttle.traffic.inproc import run_inprocess
from autoglm_throttle.traffic.plan import Arrivals, LoadShape, PriorityMix, make_plan
from autoglm_throttle.traffic.record import Recorder, RecorderMiddleware, RecorderSettings
from autoglm_throttle.traffic.request_source import PlannedRequest, RequestSource
from tests.docs.pages import LOAD_TEST_COMMANDS, ROOT, Command, commands

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.xdist_group("load")]

LOAD_TESTS = [command for command in commands() if command.words[1:2] in LOAD_TEST_COMMANDS]
SERVICE = ["uvicorn", "examples.simulated_service:app"]
TOO_SLOW = 3
"""The exit status of a run that a busy machine held up."""

PORT = "127.0.0.1:8000"


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """The service of the page's first line, on a free port; where it listens."""
    command = next(command for command in commands() if command.words[:2] == SERVICE)
    clean = {name: text for name, text in os.environ.items() if not name.startswith(PREFIX)}
    server = subprocess.Popen(
        [sys.executable, "-m", *command.words[:-1], "0"],
        cwd=ROOT,
        env=clean | {f"{PREFIX}GPU": "none"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stderr is not None
        said = iter(server.stderr.readline, "")
        yield next(found[1] for line in said if (found := re.search(r"http://(127\.0\.0\.1:\d+)", line)))
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=20.0)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A recording of two seconds of the simulated service, and the other files that the commands name."""
    (tmp_path / "body.json").write_text("{}")
    gor = "1 a 5 0\nGET / HTTP/1.1\r\n\r\n\n\U0001f435\U0001f648\U0001f649\n"
    (tmp_path / "requests.gor").write_text(gor, newline="")
    clock = ManualClock()
    sim = SimulatedGpu(clock=clock)
    throttle = Throttle(Settings(gpu="none"), gpu=sim, sampling="manual", clock=clock)
    recorder = Recorder(RecorderSettings(path=tmp_path / "traffic.jsonl"), clock=clock)
    app = RecorderMiddleware(ThrottleMiddleware(service(sim), throttle=throttle), recorder)
    load = RequestSource(
        make_plan(LoadShape.parse("fixed:20:2s"), Arrivals.POISSON, PriorityMix(clients=5), 1),
        (PlannedRequest(),),
    )
    run_inprocess(app, load, clock=clock)
    recorder.close()
    return tmp_path


def typed(command: Command, address: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, against the address that stands in for the printed one, its times cut."""
    words = [re.sub(r"\b(\d+)s$", "1s", word.replace(PORT, address)) for word in command.words[1:]]
    return subprocess.run(
        [sys.executable, "-m", "autoglm_throttle", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60.0,
        check=False,
    )


@pytest.mark.parametrize("command", LOAD_TESTS, ids=str)
def test_command_behaves_as_documented(command: Command, served: str, recorded: Path) -> None:
    done = typed(command, served, recorded)
    fine = {0} if command.words[1] == "record" else {0, TOO_SLOW}
    assert done.returncode in fine, done.stdout + done.stderr
    if "--html" in command.words:
        assert (recorded / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_documented_service_answers_at_the_documented_url(served: str) -> None:
    asked = urllib.request.Request(f"http://{served}/v1/generate", data=b"{}", method="POST")
    with urllib.request.urlopen(asked, timeout=10.0) as answer:
        assert json.loads(answer.read())["tokens"] == 1
