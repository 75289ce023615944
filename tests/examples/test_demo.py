"""The demonstration itself: real processes, real HTTP, a few seconds."""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from autoglm_throttle.settings import Settings
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.types import Policy
from examples.demo import command
from examples.demo import store as demo_store
from examples.demo.command import SERVER, main, write_page
from examples.demo.process import ROOT, DemoProcess
from examples.demo.scenario import STATE_PATH, environment
from tests.traffic.test_trace import synthetic, written

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("load")]

DEADLINE_S = 60.0
SETTINGS = environment(Policy.TIERS)
ASKED = {"environment": SETTINGS, "speed": None, "length_s": 60.0}


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The page is written into the working directory: no test may leave it in this one."""
    monkeypatch.chdir(tmp_path)


def parsed(*words: str) -> argparse.Namespace:
    return command.parser().parse_args(words)


def listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) == 0


def gone(port: int) -> bool:
    """Whether a service closes its port within the deadline."""
    pause = threading.Event()
    give_up_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < give_up_s:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            pass
        pause.wait(0.05)
    return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "why"), [(Policy.ADAPTIVE, "queue:slow"), (Policy.TIERS, "rate:low")], ids=str
)
def test_overload_is_rejected_with_reasons_and_counted(
    policy: Policy, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--seconds", "5", "--policy", policy]) == 0
    out = capsys.readouterr().out
    assert f"AUTOGLM_THROTTLE_POLICY={policy}" in out
    assert "AUTOGLM_THROTTLE_USER_LIMIT=60/second" in out
    assert "SECRET" not in out
    assert re.search(r"^  live page: http://127\.0\.0\.1:\d+/demo/page/$", out, re.MULTILINE)
    overloaded = [line for line in out.splitlines() if line.startswith("5x ") and " low " in line]
    assert why in overloaded[0]
    assert "user:user-1s" in out
    assert "user limits on Valkey 9" in out
    assert re.search(r"Valkey 9[.\d]* made \d{3,} decisions on user limits in \d{3,} round trips", out)
    assert out.splitlines()[-1].startswith("GPU utilization rose to ")


@pytest.mark.slow
def test_llm_engine_streams_and_rejects_under_overload(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seconds", "10", "--engine", "llm"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("an LLM engine with a capacity of ")
    overloaded = [line for line in out.splitlines() if line.startswith("5x ") and " low " in line]
    assert "queue:slow" in overloaded[0]
    assert out.splitlines()[-1].startswith("KV cache utilization rose to ")
    assert ", 0 failed;" in out


def test_policy_option_defaults_to_the_settings() -> None:
    assert parsed().policy == Settings().control.policy.value
    assert parsed("--policy", "fixed").policy == "fixed"


@pytest.mark.slow
def test_a_trace_is_driven_to_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "made.csv", synthetic())
    assert main(["--trace", str(path), "--speed", "30", "--policy", "fixed"]) == 0
    last = capsys.readouterr().out.splitlines()
    total = next(line for line in last if line.startswith("all"))
    sent, admitted, limited, shed, failed = map(int, total.split()[1:6])
    assert sent == 200
    assert (admitted + limited + shed, failed) == (200, 0)


def test_demo_that_cannot_start_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--trace", str(tmp_path / "none.csv")]) == 2
    assert "none.csv: cannot be read" in capsys.readouterr().err
    assert main(["--report", str(tmp_path / "nowhere" / "page.html")]) == 2
    assert "page.html cannot be written" in capsys.readouterr().err


def test_missing_uvicorn_is_reported_before_the_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "uvicorn" else name)
    assert main(["--report", str(tmp_path / "page.html")]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.startswith("autoglm-throttle demo: this needs uvicorn: ")) == ("", True)
    assert "uvicorn>=" in told.err


def test_report_page_write_error_is_printed(tmp_path: Path) -> None:
    assert write_page(tmp_path / "gone" / "page.html", "page").startswith("The report page could not be")
    assert write_page(tmp_path / "page.html", "page") == f"Report page: {tmp_path / 'page.html'}"
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == "page"


@pytest.mark.parametrize(
    "words",
    [
        ("--seconds", "0"),
        ("--seconds", "soon"),
        ("--speed", "-1"),
        ("--speed", "x"),
        ("--policy", "anything"),
        ("--second", "5"),
    ],
)
def test_impossible_options_are_usage_errors(words: tuple[str, str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parsed(*words)


def test_failed_service_start_reports_the_reason() -> None:
    with (
        pytest.raises(TrafficError, match=r"(?s)did not start.*USER_LIMIT"),
        DemoProcess(SERVER, ASKED | {"environment": SETTINGS | {"AUTOGLM_THROTTLE_USER_LIMIT": "many"}}),
    ):
        pass


@pytest.mark.slow
async def test_child_reports_the_concurrency_limiter() -> None:
    adaptive = {"environment": environment(Policy.ADAPTIVE), "speed": None, "length_s": 60.0}
    with DemoProcess(SERVER, adaptive) as child:
        state = await child.request(STATE_PATH)
    assert state is not None
    assert (state["policy"], state["armed"], state["budget_rps"]) == ("adaptive", False, None)
    assert state["concurrency"] == {
        "in_flight": 0,
        "limit": 16.0,
        "service_rps": None,
        "waiting": {"high": 0, "mid": 0, "low": 0},
    }


async def test_the_child_shows_its_throttle_and_ends_with_the_block() -> None:
    with DemoProcess(SERVER, ASKED) as child:
        assert child.running
        state = await child.request(STATE_PATH)
        assert state is not None
        assert state["rate_rps"] == {"high": 1000.0, "mid": 500.0, "low": 100.0}
        assert (state["policy"], state["table_factor"], state["concurrency"]) == ("tiers", 1.0, None)
        assert state["tiers"] == [[85.0, 0.7], [90.0, 0.4], [95.0, 0.0]]
        assert await child.request("/nowhere") is None
        port = child.port
    assert gone(port)
    assert await child.request(STATE_PATH) is None


PARENT = """
import sys
from autoglm_throttle.types import Policy
from examples.demo.process import DemoProcess
from examples.demo.command import SERVER
from examples.demo.scenario import environment
options = {"environment": environment(Policy.TIERS), "speed": None, "length_s": 60.0}
with DemoProcess(SERVER, options) as child:
    print(child.port, flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_killed_parent_leaves_no_child_process() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        port = int(parent.stdout.readline())
        socket.create_connection(("127.0.0.1", port), timeout=60.0).close()
        parent.kill()
    assert gone(port)


@pytest.mark.slow
def test_ctrl_c_still_prints_the_table() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "examples.demo", "--seconds", "60"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "calm" in line:
                break
        demo.send_signal(signal.SIGINT)
        rest, _ = demo.communicate(timeout=DEADLINE_S)
    assert demo.returncode == 130
    assert "reasons" in rest
    assert rest.splitlines()[-1].startswith("GPU utilization rose to ")


@pytest.mark.slow
def test_without_a_store_program_user_limits_stay_in_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_store, "store_programs", lambda: iter(()))
    main(["--seconds", "1", "--policy", "fixed"])
    out = capsys.readouterr().out
    assert "user limits in memory: no Redis or Valkey server was found on this machine" in out
    assert "REDIS_URL" not in out
    assert "round trips" not in out


@pytest.mark.slow
def test_unusable_store_programs_are_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = list(demo_store.store_programs())
    monkeypatch.setattr(demo_store, "START_S", 0.2)
    mute = tmp_path / "mute"
    mute.write_text("#!/bin/sh\n[ $1 = --version ] && echo 'Redis server v=9.9.9' || exit 1\n")
    mute.chmod(0o755)
    programs = [Path("/bin/true"), tmp_path / "absent", mute]
    monkeypatch.setattr(demo_store, "store_programs", lambda: iter(programs))
    with demo_store.DemoStore() as store:
        assert store.url is None
    monkeypatch.setattr(demo_store, "START_S", 2.0)
    programs += found
    with demo_store.DemoStore() as store:
        assert store.url is not None
        folder = Path(store.url.removeprefix("unix://")).parent
        assert folder.exists()
    assert not folder.exists()


@pytest.mark.slow
def test_store_process_ends_with_its_parent() -> None:
    code = """
import os, signal
from examples.demo.store import DemoStore
store = DemoStore().__enter__()
print(store.url, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    started = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    path = started.stdout.strip().removeprefix("unix://")
    give_up_s = time.monotonic() + DEADLINE_S
    pause = threading.Event()
    while listens(path):
        assert time.monotonic() < give_up_s
        pause.wait(0.05)
    shutil.rmtree(Path(path).parent)
