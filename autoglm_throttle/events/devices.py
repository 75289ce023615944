"""Log events of GPUs: lost, recovered, and verdicts."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from autoglm_throttle.events.log_event import LogEvent, plain
from autoglm_throttle.types import (
    DeviceKey,
    GpuCondition,
    GpuSample,
    GpuVerdict,
    GpuView,
)

FAULTS: Final[Mapping[GpuCondition, int]] = {
    GpuCondition.STALLED: logging.ERROR,
    GpuCondition.DEGRADED: logging.WARNING,
    GpuCondition.THROTTLED: logging.WARNING,
    GpuCondition.STARVED: logging.WARNING,
}
"""Verdicts that are logged, with their level. A lost GPU has an event of its own."""

MAX_DEVICE_EVENTS: Final = 16
"""Devices with an event each for one change of the view; above it one event has their number. A large host
has 16 devices. An exporter that renames its devices at every reading would otherwise fill the disk.
"""


def gpu_view_events(before: GpuView | None, after: GpuView) -> Iterator[LogEvent]:
    """Yield the log events of a new view of the devices."""
    yield from device_events(() if before is None else before.devices, after.devices)
    yield from verdict_events(before, after)


def device_events(before: Sequence[GpuSample], after: Sequence[GpuSample]) -> Iterator[LogEvent]:
    """Yield the log events of lost and recovered devices."""
    were, are = _lost(before), _lost(after)
    known = sum(row.kind != "engine" for row in after)
    usable = known - len(are)
    for devices, word, level in (
        (are - were, "lost", logging.ERROR),
        (were - are, "recovered", logging.INFO),
    ):
        if len(devices) > MAX_DEVICE_EVENTS:
            text = f"{len(devices)} GPUs are {word}: {usable} of {known} usable"
            keys: dict[str, object] = {"devices": len(devices), "usable": usable, "known": known}
            yield LogEvent(f"gpu_{word}", level, text, keys)
            continue
        for key in sorted(devices):
            text = f"{_device_name(key)} is {word}: {usable} of {known} usable"
            yield LogEvent(
                f"gpu_{word}", level, text, {**_device_keys(key), "usable": usable, "known": known}
            )


def _lost(samples: Sequence[GpuSample]) -> set[DeviceKey]:
    return {(sample.host, sample.device) for sample in samples if sample.health == "lost"}


def verdict_events(before: GpuView | None, after: GpuView) -> Iterator[LogEvent]:
    """Yield the log events of faulty devices, and of recovered ones.

    A change between idle and working is not logged, and a lost device has its own event.
    """
    were = {} if before is None else before.verdicts
    events = [
        event
        for key in sorted(after.verdicts)
        if (event := _verdict_event(key, after.verdicts[key], were.get(key)))
    ]
    if len(events) <= MAX_DEVICE_EVENTS:
        yield from events
        return
    level = max(event.level for event in events)
    counts = Counter(str(event.keys["verdict"]) for event in events)
    text = ", ".join(f"{count} {finding}" for finding, count in sorted(counts.items()))
    yield LogEvent(
        "gpu_verdict", level, f"new verdicts on {len(events)} GPUs: {text}", {"devices": len(events)}
    )


def _verdict_event(key: DeviceKey, verdict: GpuVerdict, was: GpuVerdict | None) -> LogEvent | None:
    if was is not None and was.condition is verdict.condition:
        return None
    if verdict.condition in FAULTS:
        return _fault_event(key, verdict, was)
    over = was is not None and was.condition in FAULTS and verdict.condition is not GpuCondition.LOST
    return _recovery_event(key, verdict, was) if over and was is not None else None


def _fault_event(key: DeviceKey, verdict: GpuVerdict, was: GpuVerdict | None) -> LogEvent:
    rests_on = ", ".join(f"{name} {value:.3g}" for name, value in verdict.evidence.items())
    text = f"{_device_name(key)} is {verdict.condition}, {verdict.confidence:.0%} sure"
    keys = {
        **_device_keys(key),
        "verdict": verdict.condition.value,
        "verdict_before": None if was is None else was.condition.value,
        "confidence": verdict.confidence,
        "evidence": dict(verdict.evidence),
    }
    level = FAULTS[verdict.condition]
    return LogEvent("gpu_verdict", level, f"{text}: {rests_on}" if rests_on else text, keys)


def _recovery_event(key: DeviceKey, verdict: GpuVerdict, was: GpuVerdict) -> LogEvent:
    lasted_s = max(0.0, verdict.since_s - was.since_s)
    text = f"{_device_name(key)} is {verdict.condition}, no longer {was.condition} after {lasted_s:.0f} s"
    keys = {
        **_device_keys(key),
        "verdict": verdict.condition.value,
        "verdict_before": was.condition.value,
        "lasted_s": lasted_s,
    }
    return LogEvent("gpu_verdict", logging.INFO, text, keys)


def _device_keys(key: DeviceKey) -> dict[str, object]:
    return {"device": plain(key[1]), "host": plain(key[0])}


def _device_name(key: DeviceKey) -> str:
    host, device = map(plain, key)
    return f"{device} on {host}" if host else device
