"""How to install what an extra of this package brings."""

from __future__ import annotations

import re
import shlex
from typing import Final

DISTRIBUTION: Final = "autoglm-throttle"


def how_to_install(extra: str) -> str:
    """The command that installs the packages of an extra, such as ``pip install 'redis[hiredis]>=6.0'``.

    It names the packages themselves: that is right wherever this one came from, an index or a clone.

    Args:
        extra: a key of ``[project.optional-dependencies]``.

    Returns:
        The command; where this package is not installed itself, so that nothing tells what the extra
        brings, a sentence.
    """
    from importlib import metadata  # it takes milliseconds, and hardly anybody comes here

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
