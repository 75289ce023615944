"""Builds the command that installs the packages of an extra."""

from __future__ import annotations

import re
import shlex
from typing import Final

DISTRIBUTION: Final = "autoglm-throttle"


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra's packages, such as ``pip install 'redis[hiredis]>=6.0'``.

    It names the packages themselves: that is right for an installation from an index or a clone.

    Args:
        extra: a key of ``[project.optional-dependencies]``.

    Returns:
        The command; a sentence where this package is not installed itself, so that the packages of the
        extra are unknown.
    """
    from importlib import metadata  # takes milliseconds and is rarely needed

    try:
        requirements = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        requirements = []
    of_extra = re.compile(rf"extra\s*==\s*['\"]{re.escape(extra)}['\"]")
    parts = (requirement.partition(";") for requirement in requirements)
    needed = [package for package, _, marker in parts if of_extra.search(marker)]
    if not needed:
        return f"install {DISTRIBUTION} with its extra {extra}"
    return " ".join(["pip install", *(shlex.quote(package.strip()) for package in needed)])
