"""Stores the GPU rows of other hosts, and decides how long they count.

The rows of a silent host count for four of its intervals. Then its devices are lost: their weight
leaves the capacity and they are never read as idle. While the store itself is unavailable, nothing is
known of the other hosts. That is a different case: they are left out, and with them their weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from autoglm_throttle.gpu.sample_builder import BELIEVED_PERIODS
from autoglm_throttle.gpu.sanity import lost

if TYPE_CHECKING:
    from autoglm_throttle.store.gpu_payload import PublishedSamples
    from autoglm_throttle.types import GpuSample

FORGET_S: Final = 300.0
"""Silence after which a host counts as removed on purpose: its weight is no missing capacity."""

STALE_INTERVALS: Final = 4.0
STALE_LEAST_S: Final = 4.0
"""The rows of a silent host count for four of its intervals, and for four seconds at least. One failed call
and the pause after it make three intervals without a publication.
"""

MOST_HOSTS: Final = 1024


@dataclass(slots=True)
class _RemoteHost:
    published_s: float
    """Time of its newest payload, on our clock."""
    published: PublishedSamples
    stale_after_s: float
    rows: dict[str, GpuSample]
    """Every device it has listed within `FORGET_S`, the lost ones included."""


class HostTable:
    """The other hosts of a fleet.

    Args:
        stale_after_s: time for which the rows of a silent host count; None: four of its own intervals.
    """

    def __init__(self, stale_after_s: float | None = None) -> None:
        self.ignored: int = 0
        """Invalid payloads of other hosts."""
        self._stale_after_s = stale_after_s
        self._hosts: dict[str, _RemoteHost] = {}
        self._answers_since_s = -math.inf
        """Start of the current run of answers from the store; infinite while it fails."""

    def __repr__(self) -> str:
        return f"HostTable({', '.join(sorted(self._hosts)) or 'none'})"

    def __len__(self) -> int:
        return len(self._hosts)

    def record_answer(self, now: float) -> None:
        """Record an answer of the store: a host missing from it is silent, unless the outage hid it."""
        self._answers_since_s = min(self._answers_since_s, now)

    def record_failure(self) -> None:
        """Record a failure of the store: the silence of the hosts means nothing now."""
        self._answers_since_s = math.inf

    def receive(self, host: str, age_s: float, published: PublishedSamples, now: float) -> None:
        """Store the publication of a host, ``age_s`` seconds old; ignore a repetition."""
        known = self._hosts.get(host)
        if known is None and len(self._hosts) >= MOST_HOSTS:
            return
        published_s = now - age_s
        # Equal rows within half an interval are one publication: age jitter is smaller than that.
        if (
            known is not None
            and published == known.published
            and published_s - known.published_s < published.interval_s / 2
        ):
            return
        before = {} if known is None else known.rows
        rows = {
            row.device: replace(
                row,
                taken_at_s=published_s + row.taken_at_s,
                period_s=max(row.period_s or 0.0, published.interval_s),
            )
            for row in published.rows
        }
        for device, row in before.items():
            if device not in rows and now - row.taken_at_s <= FORGET_S:
                rows[device] = lost(row, "vanished: its host no longer lists it")
        stale_after_s = (
            default_stale_after_s(published.interval_s)
            if self._stale_after_s is None
            else max(self._stale_after_s, published.interval_s)
        )
        self._hosts[host] = _RemoteHost(published_s, published, stale_after_s, rows)

    def rows(self, now: float) -> list[GpuSample]:
        """Return the rows of all devices of the other hosts as they count now."""
        for name in [n for n, host in self._hosts.items() if now - host.published_s > FORGET_S]:
            del self._hosts[name]
        rows: list[GpuSample] = []
        for host in self._hosts.values():
            silent_s = now - host.published_s
            if silent_s <= host.stale_after_s:
                rows += (_valid_or_lost(row, now, host.stale_after_s) for row in host.rows.values())
            # Silence means loss only after the store has answered that long; else the outage may hide it.
            elif now - self._answers_since_s > host.stale_after_s:
                rows += (
                    lost(row, f"stale: its host is silent for {silent_s:.0f} s") for row in host.rows.values()
                )
        return rows


def default_stale_after_s(interval_s: float) -> float:
    """Return the seconds for which the rows of a silent host count, by its interval."""
    return max(STALE_INTERVALS * interval_s, STALE_LEAST_S)


def _valid_or_lost(row: GpuSample, now: float, stale_after_s: float) -> GpuSample:
    """Return the row, or a lost one after two and a half periods of a slow source on its host."""
    age_s = now - row.taken_at_s
    if age_s <= max(stale_after_s, BELIEVED_PERIODS * (row.period_s or 0.0)):
        return row
    return lost(row, f"stale: its host has not read it for {age_s:.0f} s")
