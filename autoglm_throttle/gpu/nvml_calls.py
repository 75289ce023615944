"""The driver calls of one device, and what each error means for it.

A call that the device, the driver or the binding does not have makes its field None and is not
tried again until the driver is opened anew: asking for ever costs time and fills the log.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("autoglm_throttle")

Binding = Any
"""The module ``pynvml``, which has no types."""
Handle = Any
"""A device or a sample as the library names it: a pointer."""
Refusal = Any
"""The binding's ``NVMLError``: an exception with the library's code in ``value``."""
Call = Any
"""A function of the binding."""
Answer = Any
"""What such a function returns: a number or one of the library's structures."""

told: Final = object.__getattribute__
"""Reads a number out of a structure past the binding, which looks in Python at each access whether it is
text: that was a fifth of the time of a reading."""

UNINITIALIZED: Final = 1
NO_PERMISSION: Final = 4
NOT_FOUND: Final = 6
NEVER: Final = frozenset({3, 13, 25, 26})
"""NotSupported, FunctionNotFound, ArgumentVersionMismatch, Deprecated: asking again cannot help."""
GONE: Final = frozenset({NOT_FOUND, 15, 16, 28})
"""NotFound (a MIG instance was destroyed), GpuIsLost, ResetRequired, GpuNotFound."""

NEWER: Final = frozenset({"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetTemperatureV"})
"""Calls that have an older one in reserve, so that their absence costs nothing."""


class Gone(Exception):
    """The device fell off the bus or needs a reset."""


class Uninitialized(Exception):
    """Somebody shut the library down; every handle is dead."""


class Calls:
    """Guarded calls, with a memory of those that cannot work.

    Args:
        nvml: the binding.
        uuid: of the device, for the log.
    """

    __slots__ = ("_lacking", "_passing", "error", "nvml", "uuid")

    def __init__(self, nvml: Binding, uuid: str) -> None:
        self.nvml: Binding = nvml
        self.uuid: str = uuid
        self.error: Refusal = None
        """The last error in this reading that was neither lasting nor fatal."""
        self._lacking: dict[str, str] = {}
        self._passing: list[str] = []

    def begin(self) -> None:
        """A new reading begins: what only passed is forgotten."""
        self.error = None
        self._passing.clear()

    @property
    def notes(self) -> tuple[str, ...]:
        """What the device does not tell at all, then what it did not tell this time."""
        lasting = (why for name, why in self._lacking.items() if name not in NEWER)
        return (*lasting, *self._passing)

    def note(self, text: str) -> None:
        """Say something about this reading."""
        self._passing.append(text)

    def lacks(self, name: str) -> bool:
        """Whether a call is known never to work."""
        return name in self._lacking

    def ask(self, name: str, *arguments: Answer) -> Answer:
        """Make one call of the binding; None if there is no answer."""
        if name in self._lacking:
            return None
        try:
            return getattr(self.nvml, name)(*arguments)
        except AttributeError:
            self.remember(name, "not in this binding")
        except self.nvml.NVMLError as error:
            self.refused(name, error)
        return None

    def guarded(self, name: str, call: Callable[[], Answer]) -> Answer:
        """Do something with the binding under a name of its own; None if there is no answer."""
        if name in self._lacking:
            return None
        try:
            return call()
        except AttributeError:
            self.remember(name, "not in this binding")
        except self.nvml.NVMLError as error:
            self.refused(name, error)
        return None

    def refused(self, name: str, error: Refusal) -> None:
        """Act on an error: remember it, note it or give the device up.

        Raises:
            Uninitialized: the library must be opened again.
            Gone: the device is lost.
        """
        if error.value == UNINITIALIZED:
            raise Uninitialized(str(error)) from error
        if error.value in GONE:
            raise Gone(str(error)) from error
        if error.value in NEVER:
            self.remember(name, str(error))
        else:
            self.error = error
            self.note(f"{name}: {error}")

    def remember(self, name: str, why: str) -> None:
        """Never ask this again, and say so once."""
        self._lacking[name] = f"{name}: {why}"
        _log.info("GPU telemetry: %s does not tell %s: %s", self.uuid, name, why)
