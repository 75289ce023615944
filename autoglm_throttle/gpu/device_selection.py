"""Selects the GPUs to measure: by our own list, or by that of CUDA.

NVML ignores ``CUDA_VISIBLE_DEVICES``, so a service that computes on one device of eight would
be measured by the other seven. The rules are those of NVIDIA's page on CUDA environment variables:
an entry is an index, a ``GPU-`` or ``MIG-`` UUID of which a unique beginning is enough,
or the older ``MIG-GPU-<uuid>/<gpu instance>/<compute instance>``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Target = tuple[int, int | None]
"""NVML index of a device, and the slot of a MIG instance on it; None for the whole device."""


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A MIG instance."""

    slot: int
    """Its place in the device's list."""
    uuid: str
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device as the driver lists it."""

    index: int
    """NVML's number."""
    uuid: str
    """Empty if the device does not answer."""
    name: str = ""
    bus_id: str = ""
    """PCI address; empty if unknown."""
    instances: tuple[MigInstance, ...] | None = None
    """None if the device is not in MIG mode."""

    @property
    def targets(self) -> tuple[Target, ...]:
        """Everything on the device that can be measured: itself, or its MIG instances."""
        if self.instances is None:
            return ((self.index, None),)
        return tuple((self.index, instance.slot) for instance in self.instances)

    def gpu_instance_of(self, instance: MigInstance) -> str:
        """Return the part of the device that a MIG instance has to itself, ``<UUID>/<GPU instance>``.

        Empty if the driver does not report it, or if several compute instances share the part.
        """
        number = instance.gpu_instance
        sharing = [one for one in self.instances or () if one.gpu_instance == number]
        return f"{self.uuid}/{number}" if number is not None and len(sharing) == 1 else ""


@dataclass(frozen=True, slots=True)
class DeviceSelection:
    """Result of a list of devices."""

    targets: tuple[Target, ...]
    unknown: tuple[str, ...] = ()
    """Entries that name no device present, or more than one."""
    guessed: bool = False
    """Indexes were read in PCI order although CUDA may count by speed; UUIDs would be certain."""


def select_all(devices: Iterable[DeviceInfo]) -> DeviceSelection:
    """Select all devices."""
    return DeviceSelection(tuple(target for gpu in devices for target in gpu.targets))


def select_listed(entries: Iterable[str], devices: Sequence[DeviceInfo]) -> DeviceSelection:
    """Select by our own list, with indexes of NVML; unknown entries are faults to be reported."""
    targets: list[Target] = []
    unknown: list[str] = []
    numbered = {device.index: device for device in devices}
    for entry in entries:
        device = numbered.get(int(entry)) if entry.isdecimal() else None
        targets_of_entry = device.targets if device else _by_uuid(entry, devices)
        targets += targets_of_entry
        if not targets_of_entry:
            unknown.append(entry)
    return DeviceSelection(tuple(dict.fromkeys(targets)), tuple(unknown))


def select_cuda(value: str, devices: Sequence[DeviceInfo], *, order: str = "") -> DeviceSelection:
    """Select as CUDA does.

    Args:
        value: ``CUDA_VISIBLE_DEVICES``. Empty means no device, and an invalid entry,
            such as ``-1``, ends the list.
        devices: the devices present.
        order: ``CUDA_DEVICE_ORDER``. Unless it is ``PCI_BUS_ID``, CUDA numbers by speed,
            fastest first, which NVML does not report; with devices of one name that is PCI order, too.
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
        return _by_legacy(wanted, devices)
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


def _by_legacy(wanted: str, devices: Sequence[DeviceInfo]) -> tuple[Target, ...]:
    """Find ``mig-gpu-<uuid>/<gpu instance>/<compute instance>``."""
    parent, *place = wanted.removeprefix("mig-").split("/")
    return tuple(
        (gpu.index, instance.slot)
        for gpu in devices
        if gpu.uuid.casefold() == parent
        for instance in gpu.instances or ()
        if [str(instance.gpu_instance), str(instance.compute_instance)] == place
    )
