"""Errors of sources with nothing to read, as distinct from a source that fails.

No source at all means that nothing is expected and nothing is missing: the limits apply unchanged.
A source that was there and cannot be read makes the service blind, which is worth an alert.
"""

from __future__ import annotations

from autoglm_throttle.types import ProviderMisconfigured, ProviderUnavailable


class NotPresentError(ProviderUnavailable):
    """This machine has no driver of the kind, or no device of it: nothing is broken."""


class PackageMissingError(ProviderMisconfigured):
    """The Python package for the driver is not installed, or another package has its name."""


class NoSourceError(ProviderUnavailable):
    """The automatic choice found nothing; the text lists the candidates.

    The sampler does not count it as a failure and tries again once a minute.
    """
