"""The error of a load test that cannot begin."""

from __future__ import annotations

from autoglm_throttle.types import ThrottleError


class TrafficError(ThrottleError):
    """A load test cannot start with these arguments; the text names the change needed. Nothing was sent."""
