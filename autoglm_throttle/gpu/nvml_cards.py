"""Lists the devices and MIG instances of the driver, with their handles.

All look-ups go by index: the look-up by UUID fails for every device if any of them fell off the bus.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autoglm_throttle.gpu.nvml_calls import GONE, NEVER, NO_PERMISSION, NOT_FOUND, UNINITIALIZED, Gone
from autoglm_throttle.gpu.visible import Card, Instance, Target

if TYPE_CHECKING:
    from autoglm_throttle.gpu.nvml_calls import Answer, Binding, Call, Handle, Refusal


@dataclass(slots=True)
class Found:
    """A device with its handles."""

    card: Card
    handle: Handle = None
    slots: dict[int, Handle] = field(default_factory=dict)
    """Handles of its MIG instances."""
    error: Refusal = None
    """Error of the device; None if it works."""


def look_up(nvml: Binding, seen: dict[int, Card]) -> list[Found]:
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
    found: list[Found] = []
    denied: Refusal = None
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            one = _card(nvml, index)
            seen[index] = one.card
        except nvml.NVMLError as error:
            if error.value == UNINITIALIZED:
                raise
            if error.value == NO_PERMISSION:
                denied = error
                continue
            one = Found(seen.get(index, Card(index, f"index-{index}")), error=error)
        found.append(one)
    errors = [one.error for one in found if one.error is not None and one.error.value not in GONE]
    if denied is not None and not found:
        raise denied
    if errors and len(errors) == len(found):
        raise errors[-1]
    return found


def driver_version(nvml: Binding) -> str:
    """Return the driver's version; empty if it is not reported."""
    try:
        return _text(nvml.nvmlSystemGetDriverVersion())
    except nvml.NVMLError as error:
        if error.value == UNINITIALIZED:
            raise
        return ""


def find(nvml: Binding, target: Target, uuid: str) -> tuple[Handle, Handle]:
    """Look up the handles of one device again: its own, and that of the whole device it is on.

    Raises:
        DeviceLostError: another device is at its index.
        pynvml.NVMLError: the look-up failed.
    """
    index, slot = target
    card = nvml.nvmlDeviceGetHandleByIndex(index)
    handle = card if slot is None else nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, slot)
    present = _text(nvml.nvmlDeviceGetUUID(handle))
    if present != uuid:
        raise Gone(f"{present} is at its place")
    return handle, card


def _card(nvml: Binding, index: int) -> Found:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    uuid = _text(nvml.nvmlDeviceGetUUID(handle))
    name = _text(_optional(nvml, nvml.nvmlDeviceGetName, handle) or "")
    pci = _optional(nvml, nvml.nvmlDeviceGetPciInfo, handle)
    bus_id = "" if pci is None else _text(pci.busId)
    mode = _optional(nvml, nvml.nvmlDeviceGetMigMode, handle)
    if mode is None or mode[0] != nvml.NVML_DEVICE_MIG_ENABLE:
        return Found(Card(index, uuid, name, bus_id), handle)
    count = _optional(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
    at = (
        (slot, _optional(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, slot))
        for slot in range(count)
    )
    slots = {slot: instance for slot, instance in at if instance is not None}
    instances = tuple(_instance(nvml, slot, instance) for slot, instance in slots.items())
    return Found(Card(index, uuid, name, bus_id, instances), handle, slots)


def _instance(nvml: Binding, slot: int, handle: Handle) -> Instance:
    return Instance(
        slot,
        _text(nvml.nvmlDeviceGetUUID(handle)),
        _optional(nvml, nvml.nvmlDeviceGetGpuInstanceId, handle),
        _optional(nvml, nvml.nvmlDeviceGetComputeInstanceId, handle),
    )


def _optional(nvml: Binding, call: Call, handle: Handle, *arguments: int) -> Answer:
    """Make a call that the device may not support; None then."""
    try:
        return call(handle, *arguments)
    except nvml.NVMLError as error:
        if error.value in NEVER or error.value == NOT_FOUND:
            return None
        raise


def _text(value: str | bytes) -> str:
    """Older bindings give bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
