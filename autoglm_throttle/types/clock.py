"""The clock type, and the precision of timers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

Clock = Callable[[], float]
"""Monotonic seconds. ``time.monotonic`` in a service, a ``ManualClock`` in tests."""

STALL_S: Final = 0.005
"""Seconds: a timer that fires later than this was delayed by the event loop itself, and so were the replies.
A shorter deadline would mean nothing.
"""
