"""Detects deadlines that the event loop missed, not the store."""

from __future__ import annotations

from typing import Final

from autoglm_throttle.types import STALL_S

__all__ = ["GRACE_S", "STALL_S"]

GRACE_S: Final = 0.010
"""Seconds for reading replies after a stall. Without it, stalls of 100 and 200 ms made up to 10
of 10 decisions time out with the reply already in the socket; with it, 0 of 240.
"""
