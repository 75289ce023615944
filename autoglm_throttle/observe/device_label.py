"""What a device is called in the labels of metrics and in tables: short, and never twice the same."""

from __future__ import annotations

from collections.abc import Iterable

from autoglm_throttle.model import GpuSample


def labelled(devices: Iterable[GpuSample]) -> list[tuple[str, GpuSample]]:
    """Give each device its label.

    A card's is its index, an engine's its ``host:port``; those of another host begin with its name. Two
    sources that number their cards alike and tell no common UUID would share one, and a scrape with two
    equal series is refused as a whole: the second is called ``0#2``.

    Args:
        devices: in the order of the view, which does not change while the devices stay the same.
    """
    taken: dict[tuple[bool, str], int] = {}
    found = []
    for device in devices:
        plain = _plain(device)
        key = (device.kind == "engine", plain)
        taken[key] = taken.get(key, 0) + 1
        found.append((plain if taken[key] == 1 else f"{plain}#{taken[key]}", device))
    return found


def _plain(device: GpuSample) -> str:
    if device.kind == "engine":
        return device.device if device.host in {"", device.device} else f"{device.host}/{device.device}"
    return f"{device.host}/{device.index}" if device.host else str(device.index)
