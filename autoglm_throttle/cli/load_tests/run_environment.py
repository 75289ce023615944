"""Environment of a run for its report: versions, machine and command. It is never compared."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from autoglm_throttle.traffic.report.schema import About
from autoglm_throttle.version import __version__


def environment_info(command: str, loop: str) -> About:
    """Describe this machine and these versions.

    Args:
        command: in a form without secrets.
        loop: event loop that sent.
    """
    return {
        "library": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": processor(),
        "cores": os.cpu_count() or 1,
        "loop": loop,
        "httptools": package_version("httptools"),
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def processor() -> str:
    """Return the processor's name, or its architecture if the name is unknown."""
    try:
        for line in read_cpuinfo():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        result = subprocess.run(  # noqa: S603 - fixed words
            command, capture_output=True, text=True, check=False, timeout=2.0
        )
        name = result.stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        name = ""
    return name or platform.machine()


def package_version(package: str) -> str:
    """Return the version of a package; empty if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def read_cpuinfo() -> list[str]:
    """Read the lines of ``/proc/cpuinfo``; none on another system."""
    try:
        return Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
