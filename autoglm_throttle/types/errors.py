"""Exceptions of this library."""

from __future__ import annotations


class ThrottleError(Exception):
    """The root of every exception this library raises on purpose."""


class ProviderUnavailable(ThrottleError):
    """A GPU provider can read nothing now; the sampler tries again."""


class ProviderMisconfigured(ThrottleError):
    """A GPU provider can never work as configured; the text names the necessary change."""


class NotPresentError(ProviderUnavailable):
    """This machine has no driver of the kind, or no device of it: nothing is broken."""


class PackageMissingError(ProviderMisconfigured):
    """The Python package for the driver is not installed, or another package has its name."""


class NoSourceError(ProviderUnavailable):
    """The automatic choice found nothing, so nothing is expected and nothing is missing.

    The text lists the candidates. The sampler does not count it as a failure and tries again once a minute.
    """
