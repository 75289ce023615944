"""Lists the devices and MIG instances of the driver, and selects those to measure.

The rules of ``CUDA_VISIBLE_DEVICES`` are NVIDIA's: an entry is an index, the unique beginning of a ``GPU-``
or ``MIG-`` UUID, or the older ``MIG-GPU-<uuid>/<gpu instance>/<compute instance>``. All look-ups go by index:
the look-up by UUID fails for every device if any of them fell off the bus.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from autoglm_throttle.gpu.nvml import calls
from autoglm_throttle.gpu.nvml.calls import Binding, Call, CallResult, Handle, NvmlError


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device, or a MIG instance on one, as the driver lists it."""

    index: int  # NVML index of the whole device
    uuid: str  # Empty if the device does not answer
    name: str = ""
    bus_id: str = ""
    instances: tuple[DeviceInfo, ...] | None = None  # None if the device is not in MIG mode
    handle: Handle = None  # None if the device was lost when it was listed
    parent: Handle = None  # Handle of the whole device, which has the thermometer
    error: NvmlError = None
    slot: int | None = None  # Of a MIG instance, as the next two
    gpu_instance: int | None = None
    compute_instance: int | None = None
    part: str = ""  # ``<UUID>/<GPU instance>`` of a MIG instance that has this part of the device alone

    @property
    def targets(self) -> tuple[DeviceInfo, ...]:
        """Everything on the device that can be measured: itself, or its MIG instances."""
        return (self,) if self.instances is None else self.instances


def select_all(devices: Iterable[DeviceInfo]) -> list[DeviceInfo]:
    """Select everything on these devices, each once."""
    return list({(one.index, one.slot): one for device in devices for one in device.targets}.values())


def select_listed(entries: Iterable[str], devices: Sequence[DeviceInfo]) -> dict[str, list[DeviceInfo]]:
    """Select by our own list, with indexes of NVML; nothing for an entry that is unknown or ambiguous."""
    by_index = {str(device.index): [device] for device in devices}
    named = {entry: str(int(entry)) if entry.isdecimal() else entry for entry in entries}
    return {entry: select_all(by_index.get(name) or _by_uuid(name, devices)) for entry, name in named.items()}


def select_cuda(value: str, devices: Sequence[DeviceInfo], order: str = "") -> tuple[list[DeviceInfo], bool]:
    """Select as CUDA does, by ``CUDA_VISIBLE_DEVICES``: an invalid entry, such as ``-1``, ends the list.

    The second value: whether an index was taken for PCI order although CUDA may number by speed.
    """
    ordered = sorted(devices, key=lambda gpu: (gpu.bus_id, gpu.index))
    certain = order.upper() == "PCI_BUS_ID" or len({gpu.name for gpu in devices}) <= 1
    selected: list[DeviceInfo] = []
    guessed = False
    for entry in map(str.strip, value.split(",")):
        by_index = entry.isdecimal()
        found = select_all(ordered[int(entry) :][:1] if by_index else _by_uuid(entry, devices))
        guessed = guessed or (by_index and not certain)
        if not found:
            break
        selected += found
    return select_all(selected), guessed


def _by_uuid(entry: str, devices: Sequence[DeviceInfo]) -> list[DeviceInfo]:
    """Find the only device or instance with a UUID that begins with ``entry``; nothing if ambiguous."""
    wanted = entry.casefold()
    if wanted.startswith("mig-gpu-") and "/" in wanted:
        parent, *place = wanted.removeprefix("mig-").split("/")
        return [
            one
            for gpu in devices
            if gpu.uuid.casefold() == parent
            for one in gpu.instances or ()
            if [str(one.gpu_instance), str(one.compute_instance)] == place
        ]
    if not wanted.startswith(("mig-", "gpu-")) or len(wanted) <= 4:
        return []
    listed = devices if wanted[0] == "g" else [one for gpu in devices for one in gpu.instances or ()]
    found = [one for one in listed if one.uuid.casefold().startswith(wanted)]
    return found if len(found) == 1 else []


def list_devices(nvml: Binding, known: dict[int, DeviceInfo]) -> list[DeviceInfo]:
    """List all devices, those with an error included, and update those that were known by index.

    Raises the binding's error if the library is not open, or no device works and none of them is lost.
    """
    devices: list[DeviceInfo] = []
    denied: NvmlError = None
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            one = known[index] = _device_info(nvml, index)
        except nvml.NVMLError as error:
            if error.value == calls.UNINITIALIZED:
                raise
            if error.value == calls.NO_PERMISSION:
                denied = error
                continue
            before = known.get(index, DeviceInfo(index, f"index-{index}"))
            lost = {"handle": None, "parent": None, "error": error}
            instances = before.instances and tuple(replace(part, **lost) for part in before.instances)
            one = replace(before, instances=instances, **lost)
        devices.append(one)
    failed = [one.error for one in devices if one.error is not None]
    errors = [error for error in failed if error.value not in calls.LOST_CODES]
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
        if error.value == calls.UNINITIALIZED:
            raise
        return ""


def find_handles(nvml: Binding, info: DeviceInfo) -> tuple[Handle, Handle] | None:
    """Look up the handles again: its own, and that of the whole device; None if another is at its place."""
    parent = nvml.nvmlDeviceGetHandleByIndex(info.index)
    handle = parent if info.slot is None else nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, info.slot)
    return (handle, parent) if _text(nvml.nvmlDeviceGetUUID(handle)) == info.uuid else None


def _device_info(nvml: Binding, index: int) -> DeviceInfo:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    pci = _optional(nvml, nvml.nvmlDeviceGetPciInfo, handle)
    info = DeviceInfo(
        index,
        _text(nvml.nvmlDeviceGetUUID(handle)),
        _text(_optional(nvml, nvml.nvmlDeviceGetName, handle) or ""),
        "" if pci is None else _text(pci.busId),
        handle=handle,
        parent=handle,
    )
    mode = _optional(nvml, nvml.nvmlDeviceGetMigMode, handle)
    if mode is None or mode[0] != nvml.NVML_DEVICE_MIG_ENABLE:
        return info
    instances = []
    for slot in range(_optional(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        mig = _optional(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, slot)
        if mig is not None:
            instances.append(
                replace(
                    info,
                    uuid=_text(nvml.nvmlDeviceGetUUID(mig)),
                    handle=mig,
                    slot=slot,
                    gpu_instance=_optional(nvml, nvml.nvmlDeviceGetGpuInstanceId, mig),
                    compute_instance=_optional(nvml, nvml.nvmlDeviceGetComputeInstanceId, mig),
                )
            )
    numbers = [one.gpu_instance for one in instances]
    for position, number in enumerate(numbers):
        if number is not None and numbers.count(number) == 1:
            instances[position] = replace(instances[position], part=f"{info.uuid}/{number}")
    return replace(info, instances=tuple(instances))


def _optional(nvml: Binding, call: Call, handle: Handle, *arguments: int) -> CallResult:
    """Make a call that the device may not support; None then."""
    try:
        return call(handle, *arguments)
    except nvml.NVMLError as error:
        if error.value in calls.UNSUPPORTED_CODES or error.value == calls.NOT_FOUND:
            return None
        raise


def _text(value: str | bytes) -> str:
    """Older bindings give bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
