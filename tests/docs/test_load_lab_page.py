"""The commands of the load lab's page, typed as they are printed, against the service that the page names."""

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
from autoglm_throttle.traffic.arrivals import Arrivals, Crowd, Shape, plan
from autoglm_throttle.traffic.inproc import run_inprocess
from autoglm_throttle.traffic.load import Load, Request
from autoglm_throttle.traffic.record import Recorder, RecorderMiddleware
from autoglm_throttle.traffic.simulate import SimGpu, service
from tests.docs.pages import ROOT, Command, commands

pytestmark = pytest.mark.server

TYPED = [command for command in commands() if command.block.page == PAGE]
LAB = [command for command in TYPED if command.words[0] == "autoglm-throttle"]
PORT = "127.0.0.1:8000"


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """The service of the page's first line, on a free port; where it listens."""
    (command,) = [command for command in TYPED if command.words[0] == "uvicorn"]
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
    """A recording of two seconds of the simulated service, where the page's commands look for it."""
    clock = ManualClock()
    sim = SimGpu(clock=clock)
    throttle = Throttle(Settings(gpu="none"), gpu=sim, sampling="manual", clock=clock)
    recorder = Recorder(tmp_path / "traffic.jsonl", clock=clock)
    app = RecorderMiddleware(ThrottleMiddleware(service(sim), throttle=throttle), recorder)
    load = Load(plan(Shape.parse("fixed:20:2s"), Arrivals.POISSON, Crowd(clients=5), 1), (Request(),))
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


@pytest.mark.parametrize("command", LAB, ids=str)
def test_a_command_of_the_page_does_what_it_says(command: Command, served: str, recorded: Path) -> None:
    done = typed(command, served, recorded)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_of_the_first_command_is_written(served: str, tmp_path: Path) -> None:
    first = next(command for command in LAB if "--html" in command.words)
    assert typed(first, served, tmp_path).returncode == 0
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_the_service_of_the_page_answers_where_the_page_sends_to(served: str) -> None:
    asked = urllib.request.Request(f"http://{served}/v1/generate", data=b"{}", method="POST")
    with urllib.request.urlopen(asked, timeout=10.0) as answer:
        assert json.loads(answer.read())["tokens"] == 1
