"""Lists the devices and MIG instances of the driver, with their handles.

All look-ups go by index: the look-up by UUID fails for every device if any of them fell off the bus.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autoglm_throttle.gpu.device_selection import DeviceInfo, MigInstance, Target
from autoglm_throttle.gpu.nvml_calls import (
    LOST_CODES,
    NO_PERMISSION,
    NOT_FOUND,
    UNINITIALIZED,
    UNSUPPORTED_CODES,
    DeviceLostError,
)

if TYPE_CHECKING:
    from autoglm_throttle.gpu.nvml_calls import Binding, Call, CallResult, Handle, NvmlError


@dataclass(slots=True)
class DeviceMap:
    """A device with its handles."""

    device: DeviceInfo
    handle: Handle = None
    slots: dict[int, Handle] = field(default_factory=dict)
    """Handles of its MIG instances."""
    error: NvmlError = None
    """Error of the device; None if it works."""


def list_devices(nvml: Binding, known: dict[int, DeviceInfo]) -> list[DeviceMap]:
    """List all devices of this process.

    Args:
        nvml: the opened binding.
        known: devices by index as they were known before; updated in place.

    Returns:
        The devices, those with an error included. Devices that this user may not read
        belong to another job and are left out.

    Raises:
        pynvml.NVMLError: the library is not open, or no device works and none of them is lost.
    """
    devices: list[DeviceMap] = []
    denied: NvmlError = None
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            one = _map_device(nvml, index)
            known[index] = one.device
        except nvml.NVMLError as error:
            if error.value == UNINITIALIZED:
                raise
            if error.value == NO_PERMISSION:
                denied = error
                continue
            one = DeviceMap(known.get(index, DeviceInfo(index, f"index-{index}")), error=error)
        devices.append(one)
    errors = [one.error for one in devices if one.error is not None and one.error.value not in LOST_CODES]
    if denied is not None and not devices:
        raise denied
    if errors and len(errors) == len(devices):
        raise errors[-1]
    return devices


def driver_version(nvml: Binding) -> str:
    """Return the driver's version; empty if it is not reported."""
    try:
        return _text(nvml.nvmlSystemGetDriverVersion())
    except nvml.NVMLError as error:
        if error.value == UNINITIALIZED:
            raise
        return ""


def find_handles(nvml: Binding, target: Target, uuid: str) -> tuple[Handle, Handle]:
    """Look up the handles of one device again: its own, and that of the whole device it is on.

    Raises:
        DeviceLostError: another device is at its index.
        pynvml.NVMLError: the look-up failed.
    """
    index, slot = target
    parent = nvml.nvmlDeviceGetHandleByIndex(index)
    handle = parent if slot is None else nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, slot)
    present = _text(nvml.nvmlDeviceGetUUID(handle))
    if present != uuid:
        raise DeviceLostError(f"{present} is at its place")
    return handle, parent


def _map_device(nvml: Binding, index: int) -> DeviceMap:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    uuid = _text(nvml.nvmlDeviceGetUUID(handle))
    name = _text(_optional(nvml, nvml.nvmlDeviceGetName, handle) or "")
    pci = _optional(nvml, nvml.nvmlDeviceGetPciInfo, handle)
    bus_id = "" if pci is None else _text(pci.busId)
    mode = _optional(nvml, nvml.nvmlDeviceGetMigMode, handle)
    if mode is None or mode[0] != nvml.NVML_DEVICE_MIG_ENABLE:
        return DeviceMap(DeviceInfo(index, uuid, name, bus_id), handle)
    count = _optional(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
    at = (
        (slot, _optional(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, slot))
        for slot in range(count)
    )
    slots = {slot: instance for slot, instance in at if instance is not None}
    instances = tuple(_instance(nvml, slot, instance) for slot, instance in slots.items())
    return DeviceMap(DeviceInfo(index, uuid, name, bus_id, instances), handle, slots)


def _instance(nvml: Binding, slot: int, handle: Handle) -> MigInstance:
    return MigInstance(
        slot,
        _text(nvml.nvmlDeviceGetUUID(handle)),
        _optional(nvml, nvml.nvmlDeviceGetGpuInstanceId, handle),
        _optional(nvml, nvml.nvmlDeviceGetComputeInstanceId, handle),
    )


def _optional(nvml: Binding, call: Call, handle: Handle, *arguments: int) -> CallResult:
    """Make a call that the device may not support; None then."""
    try:
        return call(handle, *arguments)
    except nvml.NVMLError as error:
        if error.value in UNSUPPORTED_CODES or error.value == NOT_FOUND:
            return None
        raise


def _text(value: str | bytes) -> str:
    """Older bindings give bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
