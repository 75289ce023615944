"""What ``import autoglm_throttle`` loads and costs, each time in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.project import extras

OPTIONAL = (
    *("fastapi", "httptools", "httpx", "opentelemetry", "prometheus_client", "psutil", "pynvml", "redis"),
    *("shtab", "uvicorn"),
)
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
    "completion": {"shtab"},
    "fastapi": {"fastapi", "opentelemetry"},  # FastAPI itself imports its API, from some version on
    "gateway": {"httptools", "httpx", "uvicorn"},
    "host": {"psutil"},
    "httpx": {"httpx"},
    "nvml": {"pynvml"},
    "otel": {"opentelemetry"},
    "prometheus": {"prometheus_client"},
    "redis": {"redis"},
    "traffic": {"httptools", "psutil", "uvicorn"},
}
"""The packages that each extra brings."""

NEEDED = {**PACKAGES, "fastapi": {"fastapi"}, "gateway": {"httpx", "uvicorn"}, "traffic": {"httptools"}}
"""The packages without which the feature of an extra does not work."""

HIDDEN = """
import sys
class Finder:
    def __init__(self, inner):
        self.inner = inner
    def find_spec(self, name, *more):
        return None if name.partition(".")[0] in {hidden!r} else self.inner.find_spec(name, *more)
    def __getattr__(self, name):
        return getattr(self.inner, name)
sys.meta_path[:] = map(Finder, sys.meta_path)
from tests.project import extras
extras.main(*{works!r})
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
    brought = {package for extra in kept for package in PACKAGES[extra]}
    works = [extra for extra in extras.FEATURES if NEEDED[extra] <= brought]
    code = HIDDEN.format(hidden=set(OPTIONAL) - brought, works=works)
    assert run(code, environ).count("works") == len(works)


def test_every_extra_has_a_row() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert set(project["optional-dependencies"]) - {"all", "pynvml"} == set(PACKAGES)


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
