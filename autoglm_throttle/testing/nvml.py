"""NVIDIA's library as a plain Python object: no compiler and no GPU, but the real binding above it.

The binding ``pynvml`` calls ``getattr(nvmlLib, name)(handle, byref(struct))``, and ``byref(x)._obj`` is
``x``. An object with methods of these names is therefore enough for fast tests of code that reads GPUs.
A plain object never releases the GIL, so it cannot show the effect of a hanging call on other threads.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Self

from autoglm_throttle.testing.nvml_library import CALLS, DRIVER, VALUES, FakeNvmlLibrary

_BY_NUMBER: Final = re.compile(r"(field|gpm)_\d+", re.ASCII)


class FakeNvml:
    """Replaces the library that the binding opens, with devices set by the test.

    A device without set values is an idle Hopper GPU that answers every call.

    Args:
        devices: number of devices.

    Example:
        >>> from autoglm_throttle.testing import FakeNvml
        >>> from autoglm_throttle.gpu.nvml import NvmlProvider
        >>> library = FakeNvml(devices=2)
        >>> library.set(0, gpu=92, power_mw=612_500)
        >>> library.fail(1, "any", 15)
        >>> with library.installed():
        ...     rows = NvmlProvider(environ={}).read()
        >>> [(row.utilization_pct, row.health) for row in rows]
        [(92, 'ok'), (None, 'lost')]
    """

    def __init__(self, devices: int = 1) -> None:
        self._library = FakeNvmlLibrary({(DRIVER, "count"): devices})

    def __repr__(self) -> str:
        return f"FakeNvml({self._library.state[DRIVER, 'count']} devices, opened {self.references} times)"

    @property
    def calls(self) -> list[str]:
        """The calls that were made, in order, by their short names."""
        return self._library.calls

    @property
    def opened(self) -> int:
        """Number of times the library was opened."""
        return self._library.opened

    @property
    def references(self) -> int:
        """Openings that were not closed."""
        return self._library.references

    @property
    def samples(self) -> int:
        """GPM samples that were allocated and not freed."""
        return len(self._library.samples)

    def set(self, device: int, **values: int) -> None:
        """Set the values that a device reports from now on.

        Args:
            device: index of the device; 100 x (device + 1) + slot for a MIG instance; -1 for the driver.
            values: in NVML's own units. For a device ``gpu`` and ``mem`` (per cent), ``total``, ``used`` and
                ``reserved`` (bytes), ``power_mw``, ``limit_mw``, ``limit_default_mw``, ``energy_mj``,
                ``temp`` and ``margin`` (degrees), ``smclk`` and ``smclk_max`` (MHz), ``reasons`` (bits),
                ``field_<id>``, ``gpm`` (whether it has GPM), ``gpm_<id>`` (hundredths), ``uuid`` (a number),
                ``model``, ``bus``, ``mig`` (whether it is in MIG mode), ``mig_count``, ``mig_max``; for an
                instance also ``gi`` and ``ci``; for the driver ``count``, ``driver_major`` and
                ``driver_minor``.

        Raises:
            AttributeError: a name is none of these.
        """
        _check_names(values, VALUES, "value")
        self._library.state |= {(device, key): value for key, value in values.items()}

    def fail(self, device: int, call: str, code: int) -> None:
        """Make a call about a device return an error.

        Args:
            device: as for `set`; -1 for the calls that are about no device.
            call: its short name. ``any`` for all of a device; ``handle``, ``uuid``, ``name``, ``pci``,
                ``util``, ``memory``, ``memory_old``, ``power_mw``, ``limit_mw``, ``limit_default_mw``,
                ``energy_mj``, ``temp``, ``temp_old``, ``margin``, ``clock``, ``clock_max``, ``reasons``,
                ``mig``, ``gi``, ``ci``, ``fields``, ``field_<id>``, ``gpm_support``, ``gpm``,
                ``gpm_metrics``, ``gpm_<id>``; for device -1 ``init``, ``shutdown``, ``driver``, ``count``,
                ``gpm_alloc``, ``gpm_free``.
            code: NVML's error code, such as 15 for a lost GPU; 0: no error any more.

        Raises:
            AttributeError: no call has this name.
        """
        _check_names((call,), CALLS, "call")
        self._library.state[device, "err" if call == "any" else f"err_{call}"] = code

    @contextmanager
    def installed(self) -> Iterator[Self]:
        """Replace the loaded library by this object, and restore it afterwards.

        It touches two private names of the binding, ``nvmlLib`` and its cache of functions, and sets both
        back. One at a time; nothing else in the process may use the binding meanwhile.

        Raises:
            ImportError: the package nvidia-ml-py is not installed; the text names the extra.
        """
        try:
            binding: Any = importlib.import_module("pynvml")
        except ImportError as error:
            from autoglm_throttle._runtime.install_hint import how_to_install

            raise ImportError(f"the package nvidia-ml-py is missing: {how_to_install('nvml')}") from error
        cache = binding._nvmlGetFunctionPointer_cache  # noqa: SLF001 - see above
        library, functions = binding.nvmlLib, dict(cache)
        cache.clear()
        binding.nvmlLib = self._library
        try:
            yield self
        finally:
            binding.nvmlLib = library
            cache.clear()
            cache.update(functions)


def _check_names(names: Iterable[str], known: frozenset[str], kind: str) -> None:
    unknown = [name for name in names if name not in known and not _BY_NUMBER.fullmatch(name)]
    if unknown:
        there = ", ".join([*sorted(known), "field_<id>", "gpm_<id>"])
        raise AttributeError(f"no {kind} is called {', '.join(unknown)}; there are {there}")
