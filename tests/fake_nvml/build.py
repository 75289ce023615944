"""Building the compiled stand-in for NVIDIA's library, and the environment in which the loader finds it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMPILER = shutil.which("cc")


def build(folder: Path) -> dict[str, str]:
    """Compile the library into ``folder``; return the environment of a process that shall load it."""
    name = folder / "libnvidia-ml.so.1"
    identity = f"-Wl,-install_name,{name}" if sys.platform == "darwin" else "-Wl,-soname,libnvidia-ml.so.1"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", identity]
    sources = [str(source) for source in sorted(Path(__file__).parent.glob("*.c"))]
    subprocess.run([str(COMPILER), *flags, "-o", str(name), *sources], check=True)
    # Only a path set before the process starts is searched, by both the Linux and the macOS loader.
    return os.environ | {
        "LD_LIBRARY_PATH": str(folder),
        "DYLD_LIBRARY_PATH": str(folder),
        "FAKE_NVML_FILE": str(folder / "state"),
        "PYTHONPATH": str(ROOT),
    }
