"""What the load lab raises when a run cannot begin."""

from __future__ import annotations

from autoglm_throttle.model import ThrottleError


class TrafficError(ThrottleError):
    """A load cannot be made as asked; the text says what to change. Nothing was sent."""
