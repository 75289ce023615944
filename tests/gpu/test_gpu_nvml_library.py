"""The NVML provider over a compiled stand-in for the library: the real binding, the real ABI.

The library is built here and loaded by one process of its own, in which every case runs.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fake_nvml.compiled import LIBRARY_CASES

ROOT = Path(__file__).parents[2]
COMPILER = shutil.which("cc")

pytestmark = pytest.mark.skipif(
    COMPILER is None, reason="no C compiler (cc) to build the fake NVIDIA library with"
)


def build(folder: Path) -> None:
    name = folder / "libnvidia-ml.so.1"
    identity = f"-Wl,-install_name,{name}" if sys.platform == "darwin" else "-Wl,-soname,libnvidia-ml.so.1"
    source = ROOT / "tests" / "fake_nvml" / "fake_nvml.c"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", identity]
    subprocess.run([str(COMPILER), *flags, "-o", str(name), str(source)], check=True)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    folder = tmp_path_factory.mktemp("nvml")
    build(folder)
    # Only a path set before the process starts is searched, by both the Linux and the macOS loader.
    environ = os.environ | {
        "LD_LIBRARY_PATH": str(folder),
        "DYLD_LIBRARY_PATH": str(folder),
        "FAKE_NVML_FILE": str(folder / "state"),
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-m", "tests.fake_nvml.compiled"],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, str | None] = json.loads(done.stdout)
    return said


@pytest.mark.parametrize("case", LIBRARY_CASES)
def test_case(case: str, results: dict[str, str | None]) -> None:
    assert results[case] is None, results[case]
