"""The ways of finding nothing to read, told apart from a source that fails.

No source at all means that nothing is expected and nothing is missing: the limits apply unchanged.
A source that was there and cannot be read makes the service blind, which is worth an alert.
"""

from __future__ import annotations

from autoglm_throttle.model import ProviderMisconfigured, ProviderUnavailable


class NotPresent(ProviderUnavailable):
    """This machine has no driver of the kind, or no device of it: nothing is broken."""


class PackageMissing(ProviderMisconfigured):
    """The Python package that speaks to the driver is not installed, or another one has its name."""


class NoSource(ProviderUnavailable):
    """The automatic choice found nothing; the text says what was tried.

    The sampler does not count it as a failure and looks again once a minute.
    """
