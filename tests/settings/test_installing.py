"""What is said to whom a package is missing: a command that works, from a clone as from an index."""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from autoglm_throttle import Settings, ThrottleError
from autoglm_throttle._runtime import how_to_install
from autoglm_throttle.gpu.nvml.provider import NvmlProvider
from autoglm_throttle.gpu.select import providers
from autoglm_throttle.observe import collector
from autoglm_throttle.settings.groups.gpu import GpuSettings
from autoglm_throttle.store.client import require_redis
from autoglm_throttle.testing import throttle_for_tests
from autoglm_throttle.traffic.generator.connection import load_httptools

ROOT = Path(__file__).parents[2]
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
    "optional-dependencies"
]

REQUIRES = [
    "anyio>=4.4",
    "redis[hiredis]>=6.0; extra == 'redis'",
    'httptools>=0.6.3; extra == "traffic"',
    "uvicorn>=0.30 ; python_version > '3' and extra == 'traffic'",
    "redis[hiredis]>=6.0; extra == 'redistribution'",
]


@pytest.mark.parametrize(
    ("extra", "reported"),
    [
        ("redis", "pip install 'redis[hiredis]>=6.0'"),
        ("traffic", "pip install 'httptools>=0.6.3' 'uvicorn>=0.30'"),
        ("edis", "install autoglm-throttle with its extra edis"),
    ],
)
def test_the_packages_of_an_extra_are_named(
    extra: str, reported: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "requires", lambda name: REQUIRES)
    assert how_to_install(extra) == reported


def test_where_nothing_is_installed_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", nothing)
    assert how_to_install("redis") == "install autoglm-throttle with its extra redis"
    monkeypatch.setattr(metadata, "requires", lambda name: None)
    assert how_to_install("nvml") == "install autoglm-throttle with its extra nvml"


@pytest.mark.parametrize("extra", sorted(EXTRAS.keys() - {"all"}))
def test_it_is_what_the_project_requires(extra: str) -> None:
    assert shlex.split(how_to_install(extra))[2:] == EXTRAS[extra]


def _redis_url() -> None:
    Settings(redis_url="redis://localhost")


def _gpu() -> None:
    NvmlProvider().read()


def _named_gpu() -> None:
    providers(GpuSettings(gpu=("nvml",)))


def _metrics() -> None:
    collector(throttle_for_tests())


def _generator() -> None:
    load_httptools()


@pytest.mark.parametrize(
    ("package", "needs", "extra"),
    [
        ("redis", _redis_url, "redis"),
        ("redis", require_redis, "redis"),
        ("pynvml", _gpu, "nvml"),
        ("pynvml", _named_gpu, "nvml"),
        ("prometheus_client", _metrics, "prometheus"),
        ("httptools", _generator, "traffic"),
    ],
)
def test_missing_package_error_gives_the_install_command(
    package: str, needs: Callable[[], None], extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.asyncio", None)
    with pytest.raises((ThrottleError, ImportError, ValueError), match=re.escape(how_to_install(extra))):
        needs()


FROM_AN_INDEX = re.compile(r"pip install [^\n`]*autoglm-throttle")
"""Nobody can follow that before there is a release."""


def texts() -> list[Path]:
    folders = ("autoglm_throttle", "docs", "examples")
    found = [
        path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".md"}
    ]
    return [*found, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


def test_no_text_installs_this_package_from_an_index() -> None:
    wrong = [str(path) for path in texts() if FROM_AN_INDEX.search(path.read_text("utf-8"))]
    assert wrong == []
