"""Checks that run in a forked child."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable


def forked(check: Callable[[], object]) -> None:
    """Run a check in a forked child; AssertionError here if it raised there, with the traceback printed."""
    child = os.fork()
    if not child:
        try:
            check()
        except BaseException:  # noqa: BLE001 - the child must not return into the test runner
            traceback.print_exc(file=sys.__stderr__)
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
