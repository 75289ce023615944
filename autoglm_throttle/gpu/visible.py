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
class Instance:
    """A MIG instance."""

    slot: int
    """Its place in the device's list."""
    uuid: str
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True, slots=True)
class Card:
    """A device as the driver lists it."""

    index: int
    """NVML's number."""
    uuid: str
    """Empty if the device does not answer."""
    name: str = ""
    bus_id: str = ""
    """PCI address; empty if unknown."""
    instances: tuple[Instance, ...] | None = None
    """None if the device is not in MIG mode."""

    @property
    def targets(self) -> tuple[Target, ...]:
        """Everything on the device that can be measured: itself, or its MIG instances."""
        if self.instances is None:
            return ((self.index, None),)
        return tuple((self.index, instance.slot) for instance in self.instances)

    def part(self, instance: Instance) -> str:
        """Return the part of the device that a MIG instance has to itself, ``<UUID>/<GPU instance>``.

        Empty if the driver does not report it, or if several compute instances share the part.
        """
        number = instance.gpu_instance
        sharing = [one for one in self.instances or () if one.gpu_instance == number]
        return f"{self.uuid}/{number}" if number is not None and len(sharing) == 1 else ""


@dataclass(frozen=True, slots=True)
class Choice:
    """Result of a list of devices."""

    targets: tuple[Target, ...]
    unknown: tuple[str, ...] = ()
    """Entries that name no device present, or more than one."""
    guessed: bool = False
    """Indexes were read in PCI order although CUDA may count by speed; UUIDs would be certain."""


def every(cards: Iterable[Card]) -> Choice:
    """Select all devices."""
    return Choice(tuple(target for card in cards for target in card.targets))


def named(entries: Iterable[str], cards: Sequence[Card]) -> Choice:
    """Select by our own list, with indexes of NVML; unknown entries are faults to be reported."""
    targets: list[Target] = []
    unknown: list[str] = []
    numbered = {card.index: card for card in cards}
    for entry in entries:
        card = numbered.get(int(entry)) if entry.isdecimal() else None
        found = card.targets if card else _by_uuid(entry, cards)
        targets += found
        if not found:
            unknown.append(entry)
    return Choice(tuple(dict.fromkeys(targets)), tuple(unknown))


def cuda(value: str, cards: Sequence[Card], *, order: str = "") -> Choice:
    """Select as CUDA does.

    Args:
        value: ``CUDA_VISIBLE_DEVICES``. Empty means no device, and an invalid entry,
            such as ``-1``, ends the list.
        devices: the devices present.
        order: ``CUDA_DEVICE_ORDER``. Unless it is ``PCI_BUS_ID``, CUDA numbers by speed,
            fastest first, which NVML does not report; with devices of one name that is PCI order, too.
    """
    ordered = sorted(cards, key=lambda card: (card.bus_id, card.index))
    certain = order.upper() == "PCI_BUS_ID" or len({card.name for card in cards}) <= 1
    targets: list[Target] = []
    guessed = False
    for entry in map(str.strip, value.split(",")):
        number = int(entry) if entry.isdecimal() else None
        if number is None:
            found = _by_uuid(entry, cards)
        else:
            found = ordered[number].targets if number < len(ordered) else ()
            guessed = guessed or not certain
        if not found:
            return Choice(tuple(dict.fromkeys(targets)), (entry,), guessed)
        targets += found
    return Choice(tuple(dict.fromkeys(targets)), (), guessed)


def _by_uuid(entry: str, cards: Sequence[Card]) -> tuple[Target, ...]:
    """Find the only device or instance with a UUID that begins with ``entry``; nothing if ambiguous."""
    wanted = entry.casefold()
    if wanted.startswith("mig-gpu-") and "/" in wanted:
        return _by_legacy(wanted, cards)
    if wanted.startswith("mig-") and len(wanted) > 4:
        slots = [
            (card.index, instance.slot)
            for card in cards
            for instance in card.instances or ()
            if instance.uuid.casefold().startswith(wanted)
        ]
        return tuple(slots) if len(slots) == 1 else ()
    if wanted.startswith("gpu-") and len(wanted) > 4:
        found = [card for card in cards if card.uuid.casefold().startswith(wanted)]
        return found[0].targets if len(found) == 1 else ()
    return ()


def _by_legacy(wanted: str, cards: Sequence[Card]) -> tuple[Target, ...]:
    """Find ``mig-gpu-<uuid>/<gpu instance>/<compute instance>``."""
    parent, *place = wanted.removeprefix("mig-").split("/")
    return tuple(
        (card.index, instance.slot)
        for card in cards
        if card.uuid.casefold() == parent
        for instance in card.instances or ()
        if [str(instance.gpu_instance), str(instance.compute_instance)] == place
    )
