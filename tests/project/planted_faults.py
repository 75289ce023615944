"""Plants faults in a copy of the package and reports whether the tests named for each of them fail.

``python -m tests.project.planted_faults [FILE.toml ...] [--stage before|now] [--tree DIRECTORY]`` reads the
lists in ``tests/project/planted``. A fault is a table with the property that it breaks and, for each stage,
the file, the text to find in it (once), the text to put in its place and the tests that must fail.
``before`` is the code as it was when the list was made, ``now`` the code as it stands; a fault without
``now`` has the same text in both.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
COPIED = ("autoglm_throttle", "benchmarks", "docs", "examples", "tests", "pyproject.toml", "README.md")


def faults_of(paths: list[Path], stage: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the property and the description of each fault at one stage."""
    for path in paths:
        for fault in tomllib.loads(path.read_text("utf-8"))["fault"]:
            yield f"{path.stem}: {fault['property']}", fault.get(stage, fault["before"])


def copy_tree(tree: Path, target: Path) -> None:
    """Copy what the tests need."""
    for name in COPIED:
        source = tree / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
        elif source.exists():
            shutil.copy(source, target / name)


def is_found(root: Path, fault: dict[str, Any]) -> str:
    """Plant one fault, run its tests, and return ``found`` or what was not as it should be."""
    path = root / fault["file"]
    text = path.read_text("utf-8") if path.exists() else ""
    if text.count(fault["find"]) != 1:
        return f"NOT PLANTED: the text stands {text.count(fault['find'])} times in {fault['file']}"
    path.write_text(text.replace(fault["find"], fault["replace"]), "utf-8")
    try:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *fault["tests"]]
        ended = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired:
        return "found (the tests hung)"
    finally:
        path.write_text(text, "utf-8")
    if ended.returncode == 1:
        return "found"
    return f"NOT FOUND: pytest ended with {ended.returncode}: {ended.stdout.strip().splitlines()[-1:]}"


def main() -> int:
    """Plant every fault listed; returns 1 if one of them was not found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lists", nargs="*", type=Path)
    parser.add_argument("--stage", choices=("before", "now"), default="now")
    parser.add_argument("--tree", type=Path, default=HERE.parents[1])
    asked = parser.parse_args()
    lists = asked.lists or sorted((HERE / "planted").glob("*.toml"))
    missed = total = 0
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        copy_tree(asked.tree.resolve(), root)
        for name, fault in faults_of(lists, asked.stage):
            verdict = is_found(root, fault)
            total += 1
            missed += not verdict.startswith("found")
            print(f"{name}: {verdict}", flush=True)
    print(f"{total - missed} of {total} planted faults found ({asked.stage})")
    return 1 if missed or not total else 0


if __name__ == "__main__":
    sys.exit(main())
