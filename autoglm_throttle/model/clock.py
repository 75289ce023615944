"""Where the time comes from."""

from __future__ import annotations

from collections.abc import Callable

Clock = Callable[[], float]
"""Monotonic seconds. ``time.monotonic`` in a service, a ``ManualClock`` in tests."""
