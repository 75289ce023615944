"""The files round the package agree with each other."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoglm_throttle import __version__
from tests.project.extras import FEATURES
from tests.project.wheel import ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TOPS = (ROOT, ROOT / "autoglm_throttle")
PINNED = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+")
GROUPS: dict[str, list[str | dict[str, str]]] = PROJECT["dependency-groups"]
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
REQUIRED: list[str] = PROJECT["project"]["dependencies"]


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def named(requirement: str) -> str:
    return plain(re.split(r"[\[>=<;! ]", requirement)[0])


def pins(file: str) -> dict[str, str]:
    lines = (ROOT / ".ci" / file).read_text().splitlines()
    assert [line for line in lines if not PINNED.fullmatch(line)] == []
    found = {plain(name): version for name, _, version in (line.partition("==") for line in lines)}
    assert len(found) == len(lines)
    return found


def bounds() -> Iterator[tuple[str, str]]:
    """What a user's installer may choose, and the lowest of it."""
    extras = (each for name, extra in EXTRAS.items() if name != "all" for each in extra)
    for requirement in {*REQUIRED, *extras}:
        yield named(requirement), requirement.partition(">=")[2].partition(";")[0]


def test_the_changelog_has_a_section_for_the_version() -> None:
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert __version__ in headings


def test_everything_declared_is_pinned() -> None:
    grouped = [each for group in GROUPS.values() for each in group if isinstance(each, str)]
    everything = [*REQUIRED, *EXTRAS["all"], *grouped, "pip"]
    missing = {named(each) for each in everything} - pins("constraints.txt").keys() - {"autoglm-throttle"}
    assert missing == set()


def test_the_extra_all_names_every_other() -> None:
    (everything,) = EXTRAS["all"]
    assert set(re.findall(r"[a-z]+", everything.partition("[")[2])) == EXTRAS.keys() - {"all", "pynvml"}


def test_the_lowest_versions_are_those_that_are_allowed() -> None:
    lowest = pins("lowest.txt")
    assert lowest.keys() == {name for name, _ in bounds()}
    for name, bound in bounds():
        assert f"{lowest[name]}.".startswith(f"{bound}."), (name, bound, lowest[name])


def test_the_rooms_of_the_guide_exist() -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    table = guide[guide.index("## Packages") : guide.index("## Import contract")]
    named = set(re.findall(r"`([a-z_/]+(?:\.py|/))`", table))
    assert len(named) > 30
    assert [name for name in named if not any((top / name).exists() for top in TOPS)] == []


def test_decisions_are_numbered_without_gaps() -> None:
    decisions = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
    assert [path.name[:4] for path in decisions] == [f"{n:04}" for n in range(1, len(decisions) + 1)]
    index = (ROOT / "docs" / "adr" / "README.md").read_text()
    assert re.findall(r"\((\d{4}-.*\.md)\)", index) == [path.name for path in decisions]
    for path in decisions:
        title = path.read_text().splitlines()[0].partition(". ")[2]
        assert f"({path.name}) | {title} |" in index


def test_the_interpreters_of_the_workflow_are_those_of_the_project() -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    (matrix,) = re.findall(r"python: \[(.+)\]", workflow)
    classified = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"]))
    assert re.findall(r"3\.\d+", matrix) == classified


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_hash_and_rights_are_few(workflow: Path) -> None:
    text = workflow.read_text()
    used = re.findall(r"uses: (\S+)", text)
    assert used
    assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action) for action in used)
    parsed = yaml.safe_load(text)
    assert parsed["permissions"] == {"contents": "read"}
    more = {name: job["permissions"] for name, job in parsed["jobs"].items() if "permissions" in job}
    assert more in ({}, {"publish": {"id-token": "write"}})


def test_the_programs_of_the_workflows_are_pinned() -> None:
    installs = [line for path in WORKFLOWS for line in path.read_text().splitlines() if "pip install" in line]
    assert installs
    for line in installs:
        words = line.partition("pip install ")[2].split()
        constrained = {"--constraint", "--pre"} & set(words) or words == ["--upgrade", "pip"]
        assert constrained or all("==" in word for word in words), line


def test_every_extra_is_tried_alone() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    rows = workflow["jobs"]["extras"]["strategy"]["matrix"]["include"]
    assert {row["extras"].strip("[]") for row in rows} == {"", *EXTRAS}
    named = {feature for row in rows for feature in row["has"].split()}
    assert named == set(FEATURES)


def test_the_machines_entry_can_be_run() -> None:
    listed = subprocess.run(["bash", "-n", ".ci/run"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert listed.returncode == 0, listed.stderr
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o100


def test_no_module_of_the_tests_hides_one_of_python() -> None:
    """Their folders are on the path of every process that a test starts."""
    names = {path.stem for path in (ROOT / "tests").rglob("*.py")} - {"__main__"}
    assert names.isdisjoint(sys.stdlib_module_names)
