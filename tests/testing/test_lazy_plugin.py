"""A pytest run that uses no fixture of the plugin does not import the library."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

EMPTY = """
import json, sys
import pytest

class Loaded:
    def pytest_sessionfinish(self):
        names = (name for name in sys.modules if name.split(".")[0] in {names!r})
        print("\\nLOADED", json.dumps(sorted(names)))

sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", {arguments}], plugins=[Loaded()]))
"""

HEAVY = ("autoglm_throttle", "pydantic", "starlette", "limits", "anyio")

PLUGIN = [
    "autoglm_throttle",
    "autoglm_throttle.testing",
    "autoglm_throttle.testing.plugin",
    "autoglm_throttle.version",
]
"""The modules that pytest loads where the package is installed."""


def loaded(path: str, *arguments: str) -> list[str]:
    """Run pytest on a file in a process of its own and return the modules of the library that it loaded."""
    listed = ", ".join(map(repr, (path, *arguments)))
    done = subprocess.run(
        [sys.executable, "-c", EMPTY.format(names=HEAVY, arguments=listed)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: list[str] = json.loads(done.stdout.partition("LOADED ")[2].splitlines()[0])
    return found


def test_plugin_imports_nothing_without_a_fixture(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("empty")
    file = folder / "test_it.py"
    file.write_text("def test_it(): pass\n")
    # The plugin of anyio, which is registered in every environment that has anyio, imports anyio itself.
    assert [name for name in loaded(str(file), "-p", "no:anyio") if not name.startswith("anyio")] == PLUGIN


def test_plugin_imports_the_library_for_a_fixture(tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("used") / "test_it.py"
    file.write_text("def test_it(fake_clock): assert fake_clock() > 0\n")
    assert "autoglm_throttle.testing.manual_throttle" in loaded(str(file))
