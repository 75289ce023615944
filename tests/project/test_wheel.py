"""What users install is the wheel, so the wheel is tried where the sources are out of reach."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.project.wheel import ROOT, build, check, differences, problems, sdist_problems

pytestmark = pytest.mark.slow

SCRIPTS = """
import pathlib
import autoglm_throttle as package
home = pathlib.Path(package.__file__).parent
for path in sorted(home.rglob("*.lua")):
    print(path.relative_to(home).as_posix(), path.stat().st_size)
"""

SMOKE = """
import importlib.metadata, pathlib, sys
import autoglm_throttle as package
from autoglm_throttle import Settings, Throttle, ThrottleMiddleware
from autoglm_throttle.testing import throttle_for_tests
home = pathlib.Path(package.__file__).parent
assert home.is_relative_to(sys.prefix), home
assert (home / "py.typed").is_file()
assert importlib.metadata.version("autoglm-throttle") == package.__version__
throttle = throttle_for_tests()
throttle.gpu.utilization_pct = 97.0
print(throttle.tick(3).factor)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of commands of an environment with the wheel, and the dependencies of this one."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False, symlinks=True)
    commands = folder / "bin"
    (packages,) = folder.glob("lib/python*/site-packages")
    pip = [sys.executable, "-m", "pip", "--python", str(commands / "python"), "install", "--quiet"]
    offline = ["--no-deps", "--no-index", "--disable-pip-version-check", str(wheel)]
    subprocess.run([*pip, *offline], check=True)
    # After the wheel's own folder on the path, and without the .pth files of this environment, one of which
    # leads to the sources.
    (packages / "dependencies.pth").write_text(str(Path(pytest.__file__).parents[1]) + "\n")
    return commands


def run(installed: Path, *command: str) -> str:
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "COV", "AUTOGLM_"))
    }
    done = subprocess.run(
        [str(installed / command[0]), *command[1:]],
        cwd=installed,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    assert problems(zipfile.ZipFile(wheel).namelist()) == []


@pytest.mark.parametrize(
    ("lost", "extra", "said"),
    [
        ("autoglm_throttle/py.typed", "", "py.typed is missing"),
        ("autoglm_throttle/limiting/token_bucket.py", "", "not in the wheel: autoglm_throttle/limiting"),
        (
            "autoglm_throttle/store/fleet_gpu.lua",
            "",
            "not in the wheel: autoglm_throttle/store/fleet_gpu.lua",
        ),
        ("", "tests/conftest.py", "no part of the package: tests/conftest.py"),
        ("", "autoglm_throttle/left_over.py", "does not belong in the wheel"),
        (".dist-info/licenses/LICENSE", "", "the licence is missing"),
    ],
)
def test_a_wrong_wheel_is_noticed(wheel: Path, lost: str, extra: str, said: str) -> None:
    names = [name for name in zipfile.ZipFile(wheel).namelist() if not (lost and name.endswith(lost))]
    assert any(said in problem for problem in problems([*names, *([extra] if extra else [])]))


def test_both_files_are_equal_when_built_twice(tmp_path: Path) -> None:
    assert check(tmp_path / "dist", tmp_path / "scratch") == []


def test_a_file_that_differs_is_noticed(tmp_path: Path) -> None:
    for folder, content in (("first", "a"), ("second", "b")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.whl").write_text(content)
    (tmp_path / "first" / "x.tar.gz").write_text("only here")
    assert differences(tmp_path / "first", tmp_path / "second") == [
        "built twice, and not equal: x.tar.gz",
        "built twice, and not equal: x.whl",
    ]


def test_a_wrong_source_distribution_is_noticed() -> None:
    found = sdist_problems(["x-1/README.md", "x-1/dist/x.whl"])
    assert "not in the source distribution: LICENSE" in found
    assert "does not belong there: dist/x.whl" in found


def test_the_installed_package_works_without_its_sources(installed: Path) -> None:
    assert run(installed, "python", "-c", SMOKE) == "0.0\n"


def test_the_installed_command_works_without_its_sources(installed: Path) -> None:
    assert run(installed, "autoglm-throttle", "--version").startswith("autoglm-throttle ")
    assert run(installed, "autoglm-throttle", "tiers")
    assert run(installed, "python", "-m", "autoglm_throttle", "check")


def test_the_installed_package_has_every_script_that_it_sends_to_a_store(installed: Path) -> None:
    home = ROOT / "autoglm_throttle"
    scripts = [(path.relative_to(home).as_posix(), path.stat().st_size) for path in home.rglob("*.lua")]
    assert len(scripts) >= 3
    found = run(installed, "python", "-c", SCRIPTS)
    assert found == "".join(f"{name} {size}\n" for name, size in sorted(scripts))
