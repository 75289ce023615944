"""Build the wheel with what is installed, and say what is wrong with what it holds."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build(folder: Path) -> Path:
    """Return the wheel of the working tree, built into ``folder``."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


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


def main() -> None:
    """Build, look, and leave with 1 if something is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        names = zipfile.ZipFile(build(Path(folder))).namelist()
    wrong = problems(names)
    print("\n".join(wrong) or f"the wheel is right: {len(names)} files, py.typed, the licence, no tests")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
