"""Make or bring up to date the virtual environment that the Makefile works in.

    python3 .ci/environment.py FOLDER [GROUP ...]

Everything is pinned by constraints.txt beside this file. A mark in the folder says what is in it; it is taken
away before anything is installed and written after, so an environment that somebody stopped half way is made
anew. Two calls at once wait for each other. A Python too old for the project gets as far as being told so.
"""

import sys

OLDEST = (3, 11)


def too_old() -> str:
    """Return what is wrong, and a Python of this machine that would do."""
    import shutil

    names = [f"python3.{minor}" for minor in range(20, OLDEST[1] - 1, -1)]
    found = next(filter(shutil.which, names), "python3.12")
    here = ".".join(map(str, sys.version_info[:2]))
    oldest = ".".join(map(str, OLDEST))
    return (
        f"Python {oldest} or newer is needed, and {sys.executable} is {here}. "
        f"Name another one: make PYTHON={found} ..."
    )


if sys.version_info < OLDEST:
    sys.exit(too_old())

# Not above: tomllib is younger than the oldest Python that gets here.
import fcntl
import hashlib
import json
import os
import subprocess
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / ".ci" / "constraints.txt"
PROJECT = ROOT / "pyproject.toml"


def wanted() -> str:
    """Return a digest of all that decides what the environment holds."""
    project = tomllib.loads(PROJECT.read_text())
    parts = [project["build-system"], project["project"], project.get("dependency-groups")]
    python = [sys.version_info[:2], sys.base_prefix]
    text = json.dumps([*parts, CONSTRAINTS.read_text(), str(ROOT), python], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def present(folder: Path, mark: Path) -> dict[str, Any]:
    """Return what the mark says, or nothing if the environment cannot be trusted."""
    try:
        said = json.loads(mark.read_text())
        subprocess.run([str(folder / "bin" / "python"), "-c", ""], check=True, capture_output=True)
    except (OSError, ValueError, subprocess.CalledProcessError):
        return {}
    return said if isinstance(said, dict) else {}


def create(folder: Path) -> None:
    """Make an empty environment; its pip must know dependency groups (25.1) and build constraints (25.3)."""
    print(f"making {folder} with Python {sys.version.split()[0]}; this takes a minute or two", flush=True)
    made = subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=False)
    if made.returncode:
        sys.exit(
            "The module venv of this Python does not work; on Debian the package python3-venv brings it."
        )
    install(folder, ["--upgrade", "pip"])


def install(folder: Path, what: list[str]) -> None:
    """Install into the environment, in the versions of constraints.txt alone."""
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*pip, "--constraint", str(CONSTRAINTS), *what], cwd=ROOT, check=False)
    if done.returncode:
        sys.exit("pip could not install; its reason stands above. The next call begins anew.")


def bring_up(folder: Path, groups: set[str]) -> None:
    """Make the environment hold the package, all extras and ``groups``."""
    mark = folder / "ready.json"
    digest, said = wanted(), present(folder, mark)
    has = {str(group) for group in said.get("groups", [])} if said.get("digest") == digest else None
    if has is not None and groups <= has:
        return
    if not os.access(folder if folder.exists() else folder.absolute().parent, os.W_OK):
        sys.exit(f"{folder} cannot be written by this user. Name another folder: make VENV=... ...")
    mark.unlink(missing_ok=True)
    if has is None:
        create(folder)
    total = sorted(groups | (has or set()))
    named = [word for group in total for word in ("--group", group)]
    install(folder, ["--build-constraint", str(CONSTRAINTS), "--editable", ".[all]", *named])
    mark.write_text(json.dumps({"digest": digest, "groups": total}))


def main(folder: str, *groups: str) -> None:
    """Bring up the environment, one caller at a time."""
    with PROJECT.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        bring_up(Path(folder), set(groups))


if __name__ == "__main__":
    main(*sys.argv[1:])
