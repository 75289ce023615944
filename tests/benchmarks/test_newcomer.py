"""A newcomer's path: each step of it as the pages say, with the packages of this environment."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from benchmarks import harness, newcomer

RECORD = json.loads((harness.RESULTS / "newcomer.json").read_text())

SCRIPT = """\
#!{python}
from uvicorn.main import main
main()
"""


def install(person: newcomer.Newcomer, wheel: Path) -> None:
    """Install the wheel without a download: its dependencies are those of this environment."""
    venv.create(person.commands.parent, with_pip=False, symlinks=True)
    python = person.commands / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", "--disable-pip-version-check", str(wheel)], check=True)
    (packages,) = person.commands.parent.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    uvicorn = person.commands / "uvicorn"
    uvicorn.write_text(SCRIPT.format(python=python))
    uvicorn.chmod(0o755)


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.xdist_group("load")
def test_each_step_of_the_pages_works_in_an_empty_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newcomer, "install", install)
    assert newcomer.walk(tmp_path).keys() == RECORD["steps"].keys()


def test_part_has_each_step_and_their_sum() -> None:
    machine = {"date": "2026-01-02", "processor": "x", "cores": 2, "python": "3.11", "versions": {}}
    text = newcomer.part({"steps": {"install": 20.0, "answer": 1.25}, "machine": machine})
    assert text.splitlines()[2:5] == ["| install | 20.0 s |", "| answer | 1.2 s |", "| all | 21.2 s |"]


def test_programs_and_commands_are_those_of_the_pages() -> None:
    assert newcomer.program("README.md", "# app.py").startswith("# app.py\n")
    served = newcomer.command("README.md", "uvicorn")
    assert served.environment == {"AUTOGLM_THROTTLE_USER_LIMIT": f"{newcomer.LIMIT}/minute"}
