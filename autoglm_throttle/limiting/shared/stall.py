"""When a deadline was missed by the event loop itself and not by the store."""

from __future__ import annotations

from typing import Final

from autoglm_throttle.model import STALL_S

__all__ = ["GRACE_S", "STALL_S"]

GRACE_S: Final = 0.010
"""Seconds that replies get to be read after a stall. Without it, stalls of 100 and 200 ms made up to 10
of 10 decisions time out with the reply already in the socket; with it, none of 240."""
