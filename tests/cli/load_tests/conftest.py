"""The simulated service as a real process, and the command as another one or in this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from autoglm_throttle.cli import main
from autoglm_throttle.traffic.report import verdict
from tests.servers.server import ROOT, Server

CAPACITY_RPS = 400
"""Of the service."""

WAIT_S = 180.0

BOUNDS = ("LAG_P99_S", "OVERRUN_S", "CPU_SHARE")
LENIENT = f"""
from autoglm_throttle.traffic.report import verdict
for name in {BOUNDS}:
    setattr(verdict, name, 60.0)
"""
"""A generator that a busy machine delays is believed here: what it may not do is another test."""

Start = Callable[..., Server]


class Done(NamedTuple):
    """A command that has ended."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Its output, parsed as JSON."""
        return json.loads(self.out)


Run = Callable[..., Done]


@pytest.fixture(scope="session")
def service() -> Iterator[Server]:
    """A service without a throttle."""
    server = Server("-m", "tests.cli.load_tests.simulated_service", "{port}", str(CAPACITY_RPS))
    yield server
    server.stop()


@pytest.fixture
def url(service: Server) -> str:
    """Where it answers."""
    return f"http://127.0.0.1:{service.port}/v1/predict"


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts services behind a throttle, with these settings."""
    servers: list[Server] = []

    def with_settings(**settings: str) -> Server:
        words = [f"{name}={value}" for name, value in settings.items()]
        servers.append(
            Server("-m", "tests.cli.load_tests.simulated_service", "{port}", str(CAPACITY_RPS), *words)
        )
        return servers[-1]

    yield with_settings
    for server in servers:
        server.stop()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs a command in this process, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for name in BOUNDS:
        monkeypatch.setattr(verdict, name, 60.0)

    def call(*argv: object) -> Done:
        status = main([str(word) for word in argv])
        return Done(status, *capsys.readouterr())

    return call


def process(*argv: object, code: str = "", **named: Any) -> subprocess.Popen[str]:
    """A command in a process of its own.

    Args:
        argv: the arguments.
        code: run first, in the same interpreter.
        named: of ``Popen``.
    """
    first = ["-c", f"{code}\nfrom autoglm_throttle.cli import main\nraise SystemExit(main())"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AUTOGLM_THROTTLE_")}
    return subprocess.Popen(
        [sys.executable, *(first if code else ["-m", "autoglm_throttle"]), *map(str, argv)],
        env=kept | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **named,
    )


def finished(child: subprocess.Popen[str]) -> Done:
    """Wait for its end."""
    out, err = child.communicate(timeout=WAIT_S)
    return Done(child.returncode, out, err)
