"""Log events of GPUs: lost, recovered, and verdicts."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from autoglm_throttle.journal.line import Line, plain
from autoglm_throttle.model import (
    DeviceKey,
    Finding,
    GpuSample,
    GpuView,
    Verdict,
)

FAULTS: Final[Mapping[Finding, int]] = {
    Finding.STALLED: logging.ERROR,
    Finding.DEGRADED: logging.WARNING,
    Finding.THROTTLED: logging.WARNING,
    Finding.STARVED: logging.WARNING,
}
"""Verdicts that are logged, with their level. A lost GPU has an event of its own."""

MOST_CARDS: Final = 16
"""Devices with an event each for one change of the view; above it one event has their number. A large host
has 16 devices. An exporter that renames its devices at every reading would otherwise fill the disk.
"""


def view_changes(before: GpuView | None, after: GpuView) -> Iterator[Line]:
    """Yield the log events of a new view of the devices."""
    yield from device_changes(() if before is None else before.devices, after.devices)
    yield from verdict_changes(before, after)


def device_changes(before: Sequence[GpuSample], after: Sequence[GpuSample]) -> Iterator[Line]:
    """Yield the log events of lost and recovered devices."""
    were, are = _lost(before), _lost(after)
    known = sum(row.kind != "engine" for row in after)
    usable = known - len(are)
    for devices, word, level in ((are - were, "lost", logging.ERROR), (were - are, "back", logging.INFO)):
        if len(devices) > MOST_CARDS:
            text = f"{len(devices)} GPUs are {word}: {usable} of {known} usable"
            keys: dict[str, object] = {"cards": len(devices), "usable": usable, "known": known}
            yield Line(f"gpu_{word}", level, text, keys)
            continue
        for key in sorted(devices):
            text = f"{_called(key)} is {word}: {usable} of {known} usable"
            yield Line(f"gpu_{word}", level, text, {**_which(key), "usable": usable, "known": known})


def _lost(samples: Sequence[GpuSample]) -> set[DeviceKey]:
    return {(sample.host, sample.device) for sample in samples if sample.health == "lost"}


def verdict_changes(before: GpuView | None, after: GpuView) -> Iterator[Line]:
    """Yield the log events of faulty devices, and of recovered ones.

    A change between idle and working is not logged, and a lost device has its own event.
    """
    were = {} if before is None else before.verdicts
    lines = [
        line for key in sorted(after.verdicts) if (line := _change(key, after.verdicts[key], were.get(key)))
    ]
    if len(lines) <= MOST_CARDS:
        yield from lines
        return
    level = max(line.level for line in lines)
    found = Counter(str(line.keys["verdict"]) for line in lines)
    told = ", ".join(f"{count} {finding}" for finding, count in sorted(found.items()))
    yield Line("gpu_verdict", level, f"new verdicts on {len(lines)} GPUs: {told}", {"cards": len(lines)})


def _change(key: DeviceKey, verdict: Verdict, was: Verdict | None) -> Line | None:
    if was is not None and was.finding is verdict.finding:
        return None
    if verdict.finding in FAULTS:
        return _fault(key, verdict, was)
    over = was is not None and was.finding in FAULTS and verdict.finding is not Finding.LOST
    return _over(key, verdict, was) if over and was is not None else None


def _fault(key: DeviceKey, verdict: Verdict, was: Verdict | None) -> Line:
    rests_on = ", ".join(f"{name} {value:.3g}" for name, value in verdict.evidence.items())
    text = f"{_called(key)} is {verdict.finding}, {verdict.confidence:.0%} sure"
    keys = {
        **_which(key),
        "verdict": verdict.finding.value,
        "verdict_before": None if was is None else was.finding.value,
        "confidence": verdict.confidence,
        "evidence": dict(verdict.evidence),
    }
    level = FAULTS[verdict.finding]
    return Line("gpu_verdict", level, f"{text}: {rests_on}" if rests_on else text, keys)


def _over(key: DeviceKey, verdict: Verdict, was: Verdict) -> Line:
    lasted_s = max(0.0, verdict.since_s - was.since_s)
    text = f"{_called(key)} is {verdict.finding}, no longer {was.finding} after {lasted_s:.0f} s"
    keys = {
        **_which(key),
        "verdict": verdict.finding.value,
        "verdict_before": was.finding.value,
        "lasted_s": lasted_s,
    }
    return Line("gpu_verdict", logging.INFO, text, keys)


def _which(key: DeviceKey) -> dict[str, object]:
    return {"device": plain(key[1]), "host": plain(key[0])}


def _called(key: DeviceKey) -> str:
    host, device = map(plain, key)
    return f"{device} on {host}" if host else device
