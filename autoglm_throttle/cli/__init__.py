"""The command line: ``autoglm-throttle`` and ``python -m autoglm_throttle``."""

from autoglm_throttle.cli.main import main

__all__ = ["main"]
