"""Makes the driver calls of one device, and classifies their errors.

A call that the device, the driver or the binding lacks is not tried again until the driver is reopened.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

_log = logging.getLogger("autoglm_throttle")
Binding = Any  # The module ``pynvml``, which has no types
Handle = Any  # A device or a sample as the library identifies it: a pointer
NvmlError = Any  # The binding's ``NVMLError``: an exception with the library's code in ``value``
Call = Any
CallResult = Any  # Result of such a function: a number or one of the library's structures
# Reads a number out of a structure past the binding, whose check for text took a fifth of a reading.
raw_attribute: Final = object.__getattribute__
UNINITIALIZED: Final = 1
NO_PERMISSION: Final = 4
NOT_FOUND: Final = 6
# NotSupported, FunctionNotFound, ArgumentVersionMismatch, Deprecated: repeating the call cannot help.
UNSUPPORTED_CODES: Final = frozenset({3, 13, 25, 26})
# NotFound (a MIG instance was destroyed), GpuIsLost, ResetRequired, GpuNotFound.
LOST_CODES: Final = frozenset({NOT_FOUND, 15, 16, 28})
# Calls with an older fallback, so that a missing one costs nothing.
CALLS_WITH_FALLBACK: Final = frozenset({"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetTemperatureV"})


class NvmlUninitializedError(Exception):
    """Other code closed the library; every handle is dead."""


class NvmlCalls:
    """Guards the calls of one device, and remembers those that cannot work."""

    def __init__(self, nvml: Binding, uuid: str) -> None:
        self.nvml: Binding = nvml
        self.error: NvmlError = None  # The last error in this reading that was neither lasting nor fatal
        self.transient: list[str] = []  # Notes on this reading
        self._uuid = uuid
        self.unsupported: dict[str, str] = {}  # Calls known never to work, and why

    @property
    def notes(self) -> tuple[str, ...]:
        """Fields that the device lacks, then notes on this reading."""
        lasting = (reason for name, reason in self.unsupported.items() if name not in CALLS_WITH_FALLBACK)
        return (*lasting, *self.transient)

    def call(self, name: str, *arguments: CallResult) -> CallResult:
        """Make one call of the binding; None if it fails."""
        return self.run(name, lambda: getattr(self.nvml, name)(*arguments))

    def run(self, name: str, call: Callable[[], CallResult]) -> CallResult:
        """Run code that uses the binding, under a name of its own; None if it fails."""
        if name in self.unsupported:
            return None
        try:
            return call()
        except AttributeError:
            self.mark_unsupported(name, "not in this binding")
        except self.nvml.NVMLError as error:
            self.handle_error(name, error)
        return None

    def handle_error(self, name: str, error: NvmlError) -> None:
        """Mark the call as unsupported, note the error, or raise it: the device or the library is lost."""
        if error.value == UNINITIALIZED:
            raise NvmlUninitializedError(str(error)) from error
        if error.value in LOST_CODES:
            raise error
        if error.value in UNSUPPORTED_CODES:
            self.mark_unsupported(name, str(error))
        else:
            self.error = error
            self.transient.append(f"{name}: {error}")

    def mark_unsupported(self, name: str, reason: str) -> None:
        """Mark a call as unsupported, and log it once."""
        self.unsupported[name] = f"{name}: {reason}"
        _log.info("GPU telemetry: %s does not report %s: %s", self._uuid, name, reason)
