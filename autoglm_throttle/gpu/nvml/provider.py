"""Opens NVIDIA's management library (NVML), and chooses and reads its devices.

Everything happens in ``read`` and ``close``, thus on the sampler's thread: some drivers hang when opened.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Final

from autoglm_throttle._runtime import how_to_install
from autoglm_throttle.gpu.nvml import calls, visible
from autoglm_throttle.gpu.nvml.calls import NO_PERMISSION, Binding, NvmlError, NvmlUninitializedError
from autoglm_throttle.gpu.nvml.device import NvmlDevice
from autoglm_throttle.gpu.nvml.visible import DeviceInfo
from autoglm_throttle.types import Clock, GpuSample, ProviderMisconfigured, ProviderUnavailable
from autoglm_throttle.types.errors import NotPresentError, PackageMissingError

_log = logging.getLogger("autoglm_throttle")
NO_DRIVER: Final = 9
NO_LIBRARY: Final = 12
REMEDIES: Final[dict[int, str]] = {
    NO_PERMISSION: "this user may not read the GPUs; in a container give it the driver capability 'utility'",
    NO_DRIVER: "the NVIDIA driver is not loaded",
    NO_LIBRARY: "libnvidia-ml.so.1 was not found; in a container give it the driver capability 'utility'",
    18: "the driver was replaced under the running system: reboot, or reload it and restart the container",
    999: "the GPUs were taken from this container, for example by 'systemctl daemon-reload': restart it",
}

READ_SHARE: Final = 0.5
LEAST_S: Final = 0.2
# A reading may take this share of the time since the previous one, within these bounds: the shortest
# interval, and half the longest. After that the remaining devices are read in brief.
MOST_S: Final = 5.0
# A reading in which no device has any of these is a failure.
READABLE: Final = ("utilization_pct", "memory_used_bytes", "power_w", "temperature_c", "sm_clock_mhz")
EXTRA: Final = "nvml"


class NvmlProvider:
    """Samples the NVIDIA GPUs of this host: ``devices``, by NVML index or beginning of a UUID, also MIG.

    Without any it reads those of ``CUDA_VISIBLE_DEVICES``, or all if that is not set; ``environ`` has these
    variables, and is read at each opening.
    """

    name: str = "nvml"
    # The driver averages utilization over 1/6 to 1 s: reading faster repeats the same number.
    min_interval_s: float = 0.2

    def __init__(
        self,
        devices: Sequence[str] = (),
        *,
        environ: Mapping[str, str] | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._wanted = tuple(entry.strip() for entry in devices if entry.strip())
        self._environ = os.environ if environ is None else environ
        self._clock = clock
        self._begun_s: float | None = None
        # The binding, and the process that opened the library.
        self._library: tuple[Binding, int] | None = None
        self._devices: list[NvmlDevice] = []
        # Devices by index, retained over re-opening: a lost one no longer reports its UUID and instances.
        self._known_devices: dict[int, DeviceInfo] = {}
        # UUIDs once chosen; after that a missing device is a loss and no fault of the setting.
        self._chosen: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"NvmlProvider({', '.join(device.identity.device for device in self._devices) or 'not open'})"

    def read(self) -> Sequence[GpuSample]:
        """Read all devices, a row each; open the driver first if this process has not yet."""
        if self._library is not None and self._library[1] != os.getpid():
            self.reset_after_fork()
        try:
            with contextlib.suppress(NvmlUninitializedError):
                return self._rows()
            self.reset_after_fork()  # other code closed the library: open it again, once
            return self._rows()
        except NvmlUninitializedError as error:
            raise ProviderUnavailable(f"NVML is shut down again and again: {error}") from error

    def close(self) -> None:
        """Close the library, if this process opened it."""
        library, devices = self._library, self._devices
        self.reset_after_fork()
        # A forked child must not close handles of its parent.
        if library is None or library[1] != os.getpid():
            return
        for device in devices:
            device.gpm.close()
        nvml = library[0]
        try:
            nvml.nvmlShutdown()
        except nvml.NVMLError as error:
            _log.debug("NVML shutdown: %s", error)

    def reset_after_fork(self) -> None:
        """Drop the library and all handles without calling it."""
        self._library, self._devices = None, []

    def _rows(self) -> list[GpuSample]:
        if not self._devices:
            self._open()
        # A reading is too long by the time since the previous one began.
        now, before = self._clock(), self._begun_s
        self._begun_s = now
        gap_s = 1.0 if before is None else now - before
        deadline_s = now + min(max(READ_SHARE * gap_s, LEAST_S), MOST_S)
        rows = [device.read(brief=self._clock() > deadline_s) for device in self._devices]
        errors = [device.calls.error for device in self._devices if device.calls.error is not None]
        if errors and not any(getattr(row, name) is not None for row in rows for name in READABLE):
            raise _unavailable(errors[-1])
        return rows

    def _open(self) -> None:
        if self._library is None:
            self._library = (_open_library(), os.getpid())
        nvml = self._library[0]
        try:
            driver = visible.driver_version(nvml)
            devices = visible.list_devices(nvml, self._known_devices)
        except nvml.NVMLError as error:
            if error.value == calls.UNINITIALIZED:
                raise NvmlUninitializedError(str(error)) from error
            raise _unavailable(error) from error
        chosen = self._choose(devices)
        self._devices = [NvmlDevice(nvml, driver, info, self.name, self._clock) for info in chosen]
        self._chosen = tuple(device.identity.device for device in self._devices)

    def _choose(self, devices: Sequence[DeviceInfo]) -> list[DeviceInfo]:
        listed, guessed = self._environ.get("CUDA_VISIBLE_DEVICES"), False
        if self._wanted or (self._chosen and listed is not None):
            # Re-opening selects the UUIDs of the first opening: a missing one is lost now, not misconfigured.
            named = visible.select_listed(self._chosen or self._wanted, devices)
            unknown = [entry for entry, found in named.items() if not found]
            if unknown and not self._chosen:
                present = [f"{device.index} = {device.uuid}" for device in devices]
                present += [part.uuid for device in devices for part in device.instances or ()]
                text = f"no such GPU: {', '.join(unknown)}; present are {', '.join(present) or 'none'}"
                raise ProviderMisconfigured(text)
            chosen = visible.select_all(one for found in named.values() for one in found)
        elif listed is not None:
            chosen, guessed = visible.select_cuda(listed, devices, self._environ.get("CUDA_DEVICE_ORDER", ""))
        else:
            chosen = visible.select_all(devices)
        if not chosen:
            raise NotPresentError(_no_device_text(devices, listed))
        if guessed:
            _log.warning(
                "CUDA_VISIBLE_DEVICES holds indexes and the devices differ: CUDA's numbers are taken for PCI "
                "order, which may be wrong; use UUIDs or set CUDA_DEVICE_ORDER=PCI_BUS_ID"
            )
        return chosen


def _open_library() -> Binding:
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError as error:
        raise PackageMissingError(
            f"the Python package nvidia-ml-py is not installed: {how_to_install(EXTRA)}"
        ) from error
    if not hasattr(nvml, "nvmlInitWithFlags"):
        raise PackageMissingError(
            "the installed module pynvml is not that of nvidia-ml-py: "
            f"remove the packages pynvml and nvidia-ml-py3, then {how_to_install(EXTRA)}"
        )
    try:
        # NO_GPUS: do not fail without a GPU; the list of devices shows that there is none.
        nvml.nvmlInitWithFlags(nvml.NVML_INIT_FLAG_NO_GPUS)
    except nvml.NVMLError as error:
        raise _unavailable(error) from error
    return nvml


def _unavailable(error: NvmlError) -> ProviderUnavailable:
    kind = NotPresentError if error.value in {NO_DRIVER, NO_LIBRARY} else ProviderUnavailable
    remedy = REMEDIES.get(error.value)
    return kind(f"NVML {error.value} {error}" + (f": {remedy}" if remedy else ""))


def _no_device_text(devices: Sequence[DeviceInfo], listed: str | None) -> str:
    if not devices:
        return "the NVIDIA driver lists no GPU"
    if listed is not None:
        return f"CUDA_VISIBLE_DEVICES={listed!r} names none of the {len(devices)} GPUs present"
    return "every GPU is in MIG mode and has no instance"
