"""Labels of devices in metrics and tables: short and unique."""

from __future__ import annotations

from collections.abc import Iterable

from autoglm_throttle.types import GpuSample


def labelled(devices: Iterable[GpuSample]) -> list[tuple[str, GpuSample]]:
    """Give each device its label.

    A GPU's label is its index, an engine's its ``host:port``; on another host the host's name comes first.
    Two sources that number their devices alike and report no common UUID would share a label. Prometheus
    rejects a scrape with two equal series, so the second one is called ``0#2``.

    Args:
        devices: in the order of the view, which does not change while the devices stay the same.
    """
    taken: dict[tuple[bool, str], int] = {}
    result = []
    for device in devices:
        plain = _plain(device)
        key = (device.kind == "engine", plain)  # an engine and a GPU may both be named "0"
        taken[key] = taken.get(key, 0) + 1
        result.append((plain if taken[key] == 1 else f"{plain}#{taken[key]}", device))
    return result


def _plain(device: GpuSample) -> str:
    if device.kind == "engine":
        return device.device if device.host in {"", device.device} else f"{device.host}/{device.device}"
    return f"{device.host}/{device.index}" if device.host else str(device.index)
