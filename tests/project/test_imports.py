"""What ``import autoglm_throttle`` loads and costs, each time in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

OPTIONAL = ("fastapi", "httptools", "httpx", "prometheus_client", "psutil", "pynvml", "redis", "uvicorn")
"""Packages of extras and of peers: a user who has not asked for one must not pay for it, or need it."""

DEPENDENCIES = (
    *("anyio", "limits", "pydantic.main", "pydantic.types"),
    *("starlette.requests", "starlette.routing"),
)

OWN_CALLS = 140_000
"""Calls that the import of the package itself may make, with bytecode; 107,505 under Python 3.11."""

NAMES = "from autoglm_throttle import Settings, Throttle, ThrottleMiddleware"
"""The import of every service; the package itself loads its names on first use."""

LOADED = f"""
import json, sys
{NAMES}
print(json.dumps(sorted(sys.modules)))
"""

DOTENV = """
import sys
from autoglm_throttle import Settings
Settings.from_env({{"AUTOGLM_THROTTLE_SLO_S": "3"}})
assert "dotenv" not in sys.modules
Settings.from_env({{}}, env_file={path!r})
assert "dotenv" in sys.modules
"""

COUNTED = f"""
import importlib, sys
for name in {DEPENDENCIES!r}:
    importlib.import_module(name)
calls = 0
def count(frame, event, argument):
    global calls
    calls += event in {{"call", "c_call"}}
sys.setprofile(count)
{NAMES}
sys.setprofile(None)
print(calls)
"""

PACKAGES = {
    "fastapi": "fastapi",
    "httpx": "httpx",
    "nvml": "pynvml",
    "prometheus": "prometheus_client",
    "traffic": "httptools",
}
"""The package that each extra brings."""

HIDDEN = """
import sys
for name in {hidden!r}:
    sys.modules[name] = None
from tests.project import extras
extras.main(*{kept!r})
"""


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which bytecode is written, and no measuring of coverage slows the child."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV"))}
    return kept | {"PYTHONPYCACHEPREFIX": str(tmp_path_factory.mktemp("bytecode"))}


def run(code: str, environ: dict[str, str]) -> str:
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_package_loads_no_optional_package(environ: dict[str, str]) -> None:
    loaded = {name.split(".")[0] for name in json.loads(run(LOADED, environ))}
    assert loaded.isdisjoint(OPTIONAL), sorted(loaded.intersection(OPTIONAL))


@pytest.mark.slow
@pytest.mark.parametrize("kept", [(), *((extra,) for extra in PACKAGES), tuple(PACKAGES)], ids=" ".join)
def test_what_an_extra_brings_works_and_what_is_missing_is_named(
    kept: tuple[str, ...], environ: dict[str, str]
) -> None:
    hidden = [package for extra, package in PACKAGES.items() if extra not in kept]
    unknown = [name for name in OPTIONAL if name not in PACKAGES.values()]
    code = HIDDEN.format(hidden=hidden + unknown, kept=kept)
    assert run(code, environ).count("works") == len(kept)


@pytest.mark.slow
def test_the_package_adds_little_to_the_import_of_its_dependencies(environ: dict[str, str]) -> None:
    """Calls are counted, since seconds depend on the machine; the first run writes the bytecode."""
    run(COUNTED, environ)
    assert int(run(COUNTED, environ)) <= OWN_CALLS


@pytest.mark.slow
def test_dotenv_is_loaded_for_an_env_file_alone(environ: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text("AUTOGLM_THROTTLE_SLO_S=4\n")
    run(DOTENV.format(path=str(path)), environ)
