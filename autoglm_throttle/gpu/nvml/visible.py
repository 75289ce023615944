"""Lists the devices and MIG instances of the driver, and selects those to measure.

NVML ignores ``CUDA_VISIBLE_DEVICES``. The rules are those of NVIDIA's page on CUDA environment variables:
an entry is an index, a ``GPU-`` or ``MIG-`` UUID of which a unique beginning is enough, or the older
``MIG-GPU-<uuid>/<gpu instance>/<compute instance>``.

All look-ups go by index: the look-up by UUID fails for every device if any of them fell off the bus.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from autoglm_throttle.gpu.nvml.calls import (
    LOST_CODES,
    NO_PERMISSION,
    NOT_FOUND,
    UNINITIALIZED,
    UNSUPPORTED_CODES,
    Binding,
    Call,
    CallResult,
    DeviceLostError,
    Handle,
    NvmlError,
)

# NVML index of a device, and the slot of a MIG instance on it; None for the whole device.
Target = tuple[int, int | None]


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A MIG instance."""

    slot: int
    uuid: str
    gpu_instance: int | None = None
    compute_instance: int | None = None
    handle: Handle = None  # None if the device was lost when it was listed; the same holds for a device


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device as the driver lists it."""

    index: int
    uuid: str  # Empty if the device does not answer
    name: str = ""
    bus_id: str = ""
    instances: tuple[MigInstance, ...] | None = None  # None if the device is not in MIG mode
    handle: Handle = None
    error: NvmlError = None

    @property
    def targets(self) -> tuple[Target, ...]:
        """Everything on the device that can be measured: itself, or its MIG instances."""
        if self.instances is None:
            return ((self.index, None),)
        return tuple((self.index, instance.slot) for instance in self.instances)

    def gpu_instance_of(self, instance: MigInstance) -> str:
        """Return ``<UUID>/<GPU instance>`` of a MIG instance that has the part alone, else nothing."""
        number = instance.gpu_instance
        sharing = [one for one in self.instances or () if one.gpu_instance == number]
        return f"{self.uuid}/{number}" if number is not None and len(sharing) == 1 else ""


@dataclass(frozen=True, slots=True)
class DeviceSelection:
    """Result of a list of devices."""

    targets: tuple[Target, ...]
    unknown: tuple[str, ...] = ()  # Entries that name no device present, or more than one
    # Indexes were read in PCI order although CUDA may count by speed; UUIDs would be certain.
    guessed: bool = False


def select_all(devices: Iterable[DeviceInfo]) -> DeviceSelection:
    """Select all devices."""
    return DeviceSelection(tuple(target for gpu in devices for target in gpu.targets))


def select_listed(entries: Iterable[str], devices: Sequence[DeviceInfo]) -> DeviceSelection:
    """Select by our own list, with indexes of NVML; unknown entries are faults to be reported."""
    numbered = {device.index: device.targets for device in devices}
    named = {
        entry: numbered.get(int(entry), ()) if entry.isdecimal() else _by_uuid(entry, devices)
        for entry in entries
    }
    targets = dict.fromkeys(target for targets in named.values() for target in targets)
    return DeviceSelection(tuple(targets), tuple(entry for entry, targets in named.items() if not targets))


def select_cuda(value: str, devices: Sequence[DeviceInfo], *, order: str = "") -> DeviceSelection:
    """Select as CUDA does, by ``CUDA_VISIBLE_DEVICES``: an invalid entry, such as ``-1``, ends the list.

    Unless the order is ``PCI_BUS_ID``, CUDA numbers by speed, which NVML does not report.
    """
    ordered = sorted(devices, key=lambda gpu: (gpu.bus_id, gpu.index))
    certain = order.upper() == "PCI_BUS_ID" or len({gpu.name for gpu in devices}) <= 1
    targets: list[Target] = []
    guessed = False
    for entry in map(str.strip, value.split(",")):
        number = int(entry) if entry.isdecimal() else None
        if number is None:
            targets_of_entry = _by_uuid(entry, devices)
        else:
            targets_of_entry = ordered[number].targets if number < len(ordered) else ()
            guessed = guessed or not certain
        if not targets_of_entry:
            return DeviceSelection(tuple(dict.fromkeys(targets)), (entry,), guessed)
        targets += targets_of_entry
    return DeviceSelection(tuple(dict.fromkeys(targets)), (), guessed)


def _by_uuid(entry: str, devices: Sequence[DeviceInfo]) -> tuple[Target, ...]:
    """Find the only device or instance with a UUID that begins with ``entry``; nothing if ambiguous."""
    wanted = entry.casefold()
    if wanted.startswith("mig-gpu-") and "/" in wanted:
        parent, *place = wanted.removeprefix("mig-").split("/")
        return tuple(
            (gpu.index, one.slot)
            for gpu in devices
            if gpu.uuid.casefold() == parent
            for one in gpu.instances or ()
            if [str(one.gpu_instance), str(one.compute_instance)] == place
        )
    if wanted.startswith("mig-") and len(wanted) > 4:
        slots = [
            (gpu.index, instance.slot)
            for gpu in devices
            for instance in gpu.instances or ()
            if instance.uuid.casefold().startswith(wanted)
        ]
        return tuple(slots) if len(slots) == 1 else ()
    if wanted.startswith("gpu-") and len(wanted) > 4:
        matches = [gpu for gpu in devices if gpu.uuid.casefold().startswith(wanted)]
        return matches[0].targets if len(matches) == 1 else ()
    return ()


def list_devices(nvml: Binding, known: dict[int, DeviceInfo]) -> list[DeviceInfo]:
    """List all devices, those with an error included, and update those that were known by index.

    Devices that this user may not read belong to another job and are left out. Raises the binding's error if
    the library is not open, or no device works and none of them is lost.
    """
    devices: list[DeviceInfo] = []
    denied: NvmlError = None
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            one = known[index] = _device_info(nvml, index)
        except nvml.NVMLError as error:
            if error.value == UNINITIALIZED:
                raise
            if error.value == NO_PERMISSION:
                denied = error
                continue
            before = known.get(index, DeviceInfo(index, f"index-{index}"))
            lost = tuple(replace(instance, handle=None) for instance in before.instances or ())
            one = replace(before, handle=None, error=error, instances=lost or before.instances)
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
    """Look up the handles of one device again: its own, and that of the whole device it is on."""
    index, slot = target
    parent = nvml.nvmlDeviceGetHandleByIndex(index)
    handle = parent if slot is None else nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, slot)
    present = _text(nvml.nvmlDeviceGetUUID(handle))
    if present != uuid:
        raise DeviceLostError(f"{present} is at its place")
    return handle, parent


def _device_info(nvml: Binding, index: int) -> DeviceInfo:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    pci = _optional(nvml, nvml.nvmlDeviceGetPciInfo, handle)
    info = DeviceInfo(
        index,
        _text(nvml.nvmlDeviceGetUUID(handle)),
        _text(_optional(nvml, nvml.nvmlDeviceGetName, handle) or ""),
        "" if pci is None else _text(pci.busId),
        handle=handle,
    )
    mode = _optional(nvml, nvml.nvmlDeviceGetMigMode, handle)
    if mode is None or mode[0] != nvml.NVML_DEVICE_MIG_ENABLE:
        return info
    instances = []
    for slot in range(_optional(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        mig = _optional(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, slot)
        if mig is not None:
            uuid = _text(nvml.nvmlDeviceGetUUID(mig))
            gpu_instance = _optional(nvml, nvml.nvmlDeviceGetGpuInstanceId, mig)
            compute_instance = _optional(nvml, nvml.nvmlDeviceGetComputeInstanceId, mig)
            instances.append(MigInstance(slot, uuid, gpu_instance, compute_instance, mig))
    return replace(info, instances=tuple(instances))


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
