"""The NVML provider over a compiled fake library: the real binding, the real ABI.

The library is built here and loaded by one process of its own, in which every case runs.
"""

import json
import subprocess
import sys

import pytest

from tests.fake_nvml.build import COMPILER, ROOT, build
from tests.fake_nvml.compiled import LIBRARY_CASES

pytestmark = pytest.mark.skipif(
    COMPILER is None, reason="no C compiler (cc) to build the fake NVIDIA library with"
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    folder = tmp_path_factory.mktemp("nvml")
    environ = build(folder)
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-m", "tests.fake_nvml.compiled"],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    message: dict[str, str | None] = json.loads(done.stdout)
    return message


@pytest.mark.parametrize("case", LIBRARY_CASES)
def test_case(case: str, results: dict[str, str | None]) -> None:
    assert results[case] is None, results[case]
