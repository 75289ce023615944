"""Exceptions of this library."""

from __future__ import annotations


class ThrottleError(Exception):
    """The root of every exception this library raises on purpose."""


class ProviderUnavailable(ThrottleError):
    """A GPU provider can read nothing now; the sampler tries again."""


class ProviderMisconfigured(ThrottleError):
    """A GPU provider can never work as configured; the text names the necessary change."""
