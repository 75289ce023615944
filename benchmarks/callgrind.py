"""Counts the instructions of a driver under callgrind, on this checkout or on another commit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[1]

NO_VALGRIND = "valgrind is not installed on this machine (Debian: the package valgrind); nothing was measured"

MARK = "getppid"
"""The C function that closes a profile; only the drivers call it, around each measured part."""

SUMMARY = re.compile(r"^summary: (\d+)$", re.MULTILINE)

KEPT = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH")
"""The variables a driver gets: reading the settings takes time for each variable of the environment."""


Measured = TypeVar("Measured")


def environ(checkout: Path, **more: str) -> dict[str, str]:
    """Build the environment of a driver: equal on every machine, and importing the checkout."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    return kept | {"PYTHONHASHSEED": "0", "PYTHONPATH": str(checkout)} | more


def output(command: list[str], environ: Mapping[str, str], folder: Path) -> str:
    """Run a command in a folder and return what it prints.

    Raises:
        RuntimeError: the command failed.
    """
    done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stdout


def profiles(
    driver: list[str], environ: Mapping[str, str], folder: Path, *, counts_at_start: bool = True
) -> list[int]:
    """Run a driver under callgrind and return the instructions of each profile, in order.

    Args:
        counts_at_start: False for a driver that switches counting on by itself.

    Raises:
        RuntimeError: the driver failed.
    """
    with tempfile.TemporaryDirectory(dir=folder) as dumps:
        out = Path(dumps) / "callgrind"
        command = ["valgrind", "--tool=callgrind", f"--dump-before={MARK}", f"--callgrind-out-file={out}"]
        if not counts_at_start:
            command.append("--instr-atstart=no")
        output([*command, "-q", sys.executable, "-P", *driver], environ, folder)
        paths = sorted(Path(dumps).glob("callgrind.*"), key=lambda path: int(path.suffix[1:]))
        texts = [path.read_text() for path in paths]
    return [int(match[1]) for text in texts if (match := SUMMARY.search(text))]


def at_commit(commit: str, measure: Callable[[Path], Measured]) -> Measured:
    """Measure a commit in a work tree of its own, which is removed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            return measure(tree)
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
