"""The contracts between the rooms hold, and each of them notices the fault it is there for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
NAMES = {contract["id"]: " ".join(contract["name"].split()) for contract in CONTRACTS}


class Fault(NamedTuple):
    """A line planted at the end of a file, or in a new one, and the contract that must break."""

    file: str
    line: str
    broken: str


FAULTS = [
    Fault("types/__init__.py", "from autoglm_throttle import settings", "layers"),
    Fault("settings/field_types.py", "from autoglm_throttle.control import table", "layers"),
    Fault("limiting/token_bucket.py", "from autoglm_throttle import throttle", "layers"),
    Fault("gpu/nvml.py", "from autoglm_throttle import asgi", "layers"),
    Fault("admission/snapshot.py", "from autoglm_throttle import throttle", "layers"),
    Fault("throttle.py", "from autoglm_throttle import asgi", "layers"),
    Fault("asgi/routes.py", "from autoglm_throttle import fastapi", "layers"),
    Fault("observe/logs.py", "from autoglm_throttle import cli", "layers"),
    Fault("helpers.py", "", "layers"),
    Fault("gpu/aggregate.py", "from autoglm_throttle.gpu import sampler", "gpu"),
    Fault("gpu/rocm.py", "", "gpu"),
    Fault(
        "store/window_protocol.py",
        "from autoglm_throttle.store import redis_batch",
        "shared",
    ),
    Fault("store/mongo.py", "", "shared"),
    Fault("resilience/fallback.py", "from autoglm_throttle.resilience import guard", "resilience"),
    Fault("resilience/retry.py", "", "resilience"),
    Fault("resilience/http/answer.py", "from autoglm_throttle.resilience.http import call", "http"),
    Fault("resilience/http/brotli.py", "", "http"),
    Fault(
        "store/breakers/protocol.py",
        "from autoglm_throttle.store.breakers import sync_sender",
        "breakers",
    ),
    Fault("store/breakers/etcd.py", "", "breakers"),
    Fault("resilience/guard_state.py", "from autoglm_throttle.gpu import aggregate", "capabilities"),
    Fault("store/client.py", "from autoglm_throttle.limiting import token_bucket", "layers"),
    Fault("control/table.py", "from autoglm_throttle.gpu import aggregate", "capabilities"),
    Fault("gpu/sampler.py", "from autoglm_throttle.limiting import token_bucket", "capabilities"),
    Fault("limiting/user_limits.py", "def f():\n    from autoglm_throttle import control", "capabilities"),
    Fault("traffic/request_log.py", "from autoglm_throttle import testing", "edges"),
    Fault("traffic/summary.py", "from autoglm_throttle.traffic import report", "traffic"),
    Fault("traffic/soap.py", "", "traffic"),
    Fault("fastapi.py", "from autoglm_throttle import observe", "edges"),
    *(
        Fault(file, f"import {module}", "pure")
        for file, module in [
            ("control/controller.py", "time"),
            ("gpu/aggregate.py", "asyncio"),
            ("gpu/sanity.py", "anyio.lowlevel"),
            ("gpu/recording.py", "prometheus_client"),
            ("gpu/schedule.py", "threading"),
            ("gpu/device_selection.py", "pynvml"),
            ("types/identity.py", "time"),
            ("store/health.py", "time"),
            ("resilience/degradation.py", "time"),
            ("store/shared_limits.py", "asyncio"),
            ("limiting/sliding_window.py", "redis.asyncio"),
            ("types/demand.py", "starlette.types"),
        ]
    ),
    Fault("asgi/responses.py", "from autoglm_throttle import __version__", "root_package"),
]


LINTER = """
import contextlib, io, json, os, sys
from importlinter.cli import lint_imports
for line in sys.stdin:
    root = line.strip()
    os.chdir(root)
    sys.path.insert(0, root)
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(said):
        status = lint_imports(no_cache=True)
    sys.path.remove(root)
    print(json.dumps([status, said.getvalue()]), flush=True)
"""
"""It lints one folder after another: to start takes three times as long as to look."""

Lint = Callable[[Path], tuple[int, str]]


@pytest.fixture(scope="module")
def lint() -> Iterator[Lint]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "PYTHON"))}
    with subprocess.Popen(
        [sys.executable, "-P", "-c", LINTER],
        env=environ | {"COLUMNS": "200", "NO_COLOR": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as linter:
        assert linter.stdin is not None
        assert linter.stdout is not None
        asked, answers = linter.stdin, linter.stdout

        def linted(root: Path) -> tuple[int, str]:
            asked.write(f"{root}\n")
            asked.flush()
            status, said = json.loads(answers.readline())
            return status, said

        yield linted


def broken(said: str) -> set[str]:
    return {key for key, name in NAMES.items() if f"{name} BROKEN" in said}


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A copy of the package to do damage in."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "autoglm_throttle", tmp_path / "autoglm_throttle", ignore=ignored)
    return tmp_path


def test_all_contracts_are_kept(house: Path, lint: Lint) -> None:
    status, said = lint(house)
    assert status == 0, said
    assert all(f"{name} KEPT" in said for name in NAMES.values()), said


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.file}: {fault.line.split()[-1:]}")
def test_a_planted_fault_breaks_its_contract(fault: Fault, house: Path, lint: Lint) -> None:
    with (house / "autoglm_throttle" / fault.file).open("a") as file:
        file.write(f"\n\n{fault.line}\n")
    status, said = lint(house)
    assert status == 1, said
    assert fault.broken in broken(said), said


def test_every_contract_is_tried_with_a_fault() -> None:
    assert {fault.broken for fault in FAULTS} == set(NAMES)
