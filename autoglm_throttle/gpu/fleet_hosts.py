"""What is known of the GPUs of other hosts, and for how long it is believed.

A host that falls silent is believed for four of its intervals, then its devices are lost: their weight
leaves the capacity and they are never read as idle. While the store itself is away nothing is known of the
other hosts, which is something else: they are left out, and with them their weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from autoglm_throttle.gpu.readings import BELIEVED_PERIODS
from autoglm_throttle.gpu.row import lost

if TYPE_CHECKING:
    from autoglm_throttle.gpu.fleet_payload import Published
    from autoglm_throttle.model import GpuSample

FORGET_S: Final = 300.0
"""A host that is silent for so long was taken away on purpose: its weight is no capacity that is missing."""

STALE_INTERVALS: Final = 4.0
STALE_LEAST_S: Final = 4.0
"""A silent host is believed for four of its intervals, and for four seconds at least: one call that failed,
and the pause after it, make three without a word."""

MOST_HOSTS: Final = 1024


@dataclass(slots=True)
class _Host:
    published_s: float
    """Of its newest payload, on our clock."""
    said: Published
    stale_after_s: float
    rows: dict[str, GpuSample]
    """Every device it has named within `FORGET_S`, the lost ones included."""


class Hosts:
    """The other hosts of a fleet.

    Args:
        stale_after_s: for how long a silent host is believed; None: four of its own intervals.
    """

    def __init__(self, stale_after_s: float | None = None) -> None:
        self._stale_after_s = stale_after_s
        self._hosts: dict[str, _Host] = {}
        self._answers_since_s = -math.inf
        """Since when the store answers without a failure; infinite while it does not."""

    def __repr__(self) -> str:
        return f"Hosts({', '.join(sorted(self._hosts)) or 'none'})"

    def __len__(self) -> int:
        return len(self._hosts)

    def answered(self, now: float) -> None:
        """The store has answered: who is not in its answers is silent, but for those it was away for, too."""
        self._answers_since_s = min(self._answers_since_s, now)

    def away(self) -> None:
        """The store has not answered: nobody is silent, we are deaf."""
        self._answers_since_s = math.inf

    def heard(self, host: str, age_s: float, said: Published, now: float) -> None:
        """Take in what a host published ``age_s`` seconds ago, or nothing if that was heard before."""
        known = self._hosts.get(host)
        if known is None and len(self._hosts) >= MOST_HOSTS:
            return
        published_s = now - age_s
        if known is not None and said == known.said and published_s - known.published_s < said.interval_s / 2:
            return
        before = {} if known is None else known.rows
        rows = {
            row.device: replace(
                row,
                taken_at_s=published_s + row.taken_at_s,
                period_s=max(row.period_s or 0.0, said.interval_s),
            )
            for row in said.rows
        }
        for device, row in before.items():
            if device not in rows and now - row.taken_at_s <= FORGET_S:
                rows[device] = lost(row, "vanished: its host no longer lists it")
        least = max(STALE_INTERVALS * said.interval_s, STALE_LEAST_S)
        stale_after_s = least if self._stale_after_s is None else max(self._stale_after_s, said.interval_s)
        self._hosts[host] = _Host(published_s, said, stale_after_s, rows)

    def rows(self, now: float) -> list[GpuSample]:
        """What can be said of all devices of the other hosts now."""
        for name in [n for n, host in self._hosts.items() if now - host.published_s > FORGET_S]:
            del self._hosts[name]
        found: list[GpuSample] = []
        for host in self._hosts.values():
            silent_s = now - host.published_s
            if silent_s <= host.stale_after_s:
                found += (_believed(row, now, host.stale_after_s) for row in host.rows.values())
            elif now - self._answers_since_s > host.stale_after_s:
                found += (
                    lost(row, f"stale: its host is silent for {silent_s:.0f} s") for row in host.rows.values()
                )
        return found


def _believed(row: GpuSample, now: float, stale_after_s: float) -> GpuSample:
    """One that its host has from a slow source is believed for two and a half of that one's periods."""
    age_s = now - row.taken_at_s
    if age_s <= max(stale_after_s, BELIEVED_PERIODS * (row.period_s or 0.0)):
        return row
    return lost(row, f"stale: its host has not read it for {age_s:.0f} s")
