"""Build the wheel and the source distribution with what is installed, and say what is wrong with them.

Run: ``python -m tests.project.wheel [FOLDER]``; the files stay in the folder, by default ``dist``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]

NEEDED = ("LICENSE", "README.md", "CHANGELOG.md", "PKG-INFO", "autoglm_throttle/version.py", "pyproject.toml")
"""Files of a source distribution, from which a wheel is built and the project is understood."""

FOREIGN = ("build/", "dist/", ".venv/", ".git/", "autoglm_throttle/.mypy_cache/")
"""Folders that no source distribution holds."""


def build(folder: Path, target: str = "wheel", root: Path = ROOT) -> Path:
    """Return the wheel or the source distribution (``sdist``) of a tree, built into ``folder``."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return built


def unpack(sdist: Path, folder: Path) -> Path:
    """Return the tree in a source distribution."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (tree,) = folder.iterdir()
    return tree


def shipped() -> set[str]:
    """Return the files of the package that belong into a wheel."""
    package = ROOT / "autoglm_throttle"
    files = {path.relative_to(ROOT).as_posix() for path in package.rglob("*") if path.is_file()}
    return {name for name in files if not name.endswith((".pyc", ".DS_Store"))}


def problems(names: list[str]) -> list[str]:
    """Return what is wrong with a wheel of these files."""
    found = set(names)
    own = {name for name in found if name.startswith("autoglm_throttle/")}
    about = found - own
    wrong = [f"not in the wheel: {name}" for name in sorted(shipped() - own)]
    wrong += [f"does not belong in the wheel: {name}" for name in sorted(own - shipped())]
    wrong += [f"no part of the package: {name}" for name in sorted(about) if ".dist-info/" not in name]
    if "autoglm_throttle/py.typed" not in own:
        wrong.append("py.typed is missing: nobody would see the types")
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in about):
        wrong.append("the licence is missing")
    return wrong


def sdist_problems(names: list[str]) -> list[str]:
    """Return what is wrong with a source distribution of these files, all in one folder."""
    inner = {name.partition("/")[2] for name in names}
    wrong = [f"not in the source distribution: {name}" for name in sorted({*NEEDED, *shipped()} - inner)]
    return wrong + [f"does not belong there: {name}" for name in sorted(inner) if name.startswith(FOREIGN)]


def differences(first: Path, second: Path) -> list[str]:
    """Return the files of one folder that are not equal, byte for byte, to those of the other."""
    names = {path.name for folder in (first, second) for path in folder.iterdir()}
    return [
        f"built twice, and not equal: {name}"
        for name in sorted(names)
        if not ((first / name).exists() and (second / name).exists())
        or (first / name).read_bytes() != (second / name).read_bytes()
    ]


def check(folder: Path, scratch: Path) -> list[str]:
    """Build both files into a folder, and once more from the unpacked source distribution, and compare."""
    sdist, wheel = build(folder, "sdist"), build(folder)
    tree = unpack(sdist, scratch / "another" / "place")
    (tree / "PKG-INFO").unlink()  # made by the build, which would add it once more
    again = scratch / "again"
    build(again, "sdist", tree)
    build(again, "wheel", tree)
    with tarfile.open(sdist) as archive:
        wrong = sdist_problems(archive.getnames())
    return wrong + problems(zipfile.ZipFile(wheel).namelist()) + differences(folder, again)


def main(folder: Path) -> None:
    """Build, look, and leave with 1 if something is wrong."""
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch:
        wrong = check(folder, Path(scratch))
    sizes = ", ".join(
        f"{path.name} ({path.stat().st_size / 1e6:.1f} MB)" for path in sorted(folder.iterdir())
    )
    print("\n".join(wrong) or f"right, and equal when built twice: {sizes}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist")
