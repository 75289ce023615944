"""Where the time comes from, and how exact a timer is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

Clock = Callable[[], float]
"""Monotonic seconds. ``time.monotonic`` in a service, a ``ManualClock`` in tests."""

STALL_S: Final = 0.005
"""Seconds: a timer that fires later than this was held up by the event loop itself, and so were the replies.
A deadline shorter than this would mean nothing."""
