"""Probes CPU and memory of a process and its descendants, such as the workers of a server.

Linux provides them in ``/proc``; elsewhere, as on macOS, ``ps`` does.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.watch.prober import ProbeTargetLostError

PROC: Final = Path("/proc")
CHILD_SEARCH_SAMPLES: Final = 10
"""Samples between two searches for new children.

On a host with thousands of processes a search takes tens of milliseconds, and servers start their workers at
the beginning.
"""

PS_TIMEOUT_S: Final = 2.0

COLUMNS: Final = ("pid", "ppid", "rss", "time", "stat")
"""Columns of ``ps``, each with an option of its own: BSD takes all text after ``pid=`` as its heading."""


class Usage(NamedTuple):
    """CPU time and memory of one process."""

    pid: int
    parent: int
    started: str
    """Start time as written by the system; distinguishes processes with a reused number."""
    cpu_s: float
    rss_bytes: int


ProcessTable = Mapping[int, Usage]
"""Processes by number."""

Read = Callable[[frozenset[int] | None], ProcessTable]
"""Reads these processes, or all; missing ones are left out."""


def parse_stat(text: str, tick_hz: int, page_bytes: int) -> Usage | None:
    """Parse a line of ``/proc/PID/stat``; None for a zombie or dead process.

    Args:
        text: the line. Its second field is a name in brackets that may hold blanks and brackets itself.
        tick_hz: clock ticks per second.
        page_bytes: size of a memory page.

    Raises:
        ValueError: it is no such line.
    """
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    if len(fields) < 22:
        raise ValueError("not a line of stat")
    if fields[0] in "ZXx":
        return None
    cpu_s = (int(fields[11]) + int(fields[12])) / tick_hz
    return Usage(int(head.split()[0]), int(fields[1]), fields[19], cpu_s, int(fields[21]) * page_bytes)


def parse_ps(text: str) -> dict[int, Usage]:
    """Parse the `COLUMNS` written by ``ps``; memory there is in KiB.

    Raises:
        ValueError: an invalid line.
    """
    rows = (line.split() for line in text.splitlines() if line.strip())
    usages = (
        Usage(int(pid), int(parent), "", _clock_s(time), int(rss) * 1024)
        for pid, parent, rss, time, state in rows
        if not state.startswith("Z")
    )
    return {usage.pid: usage for usage in usages}


def _clock_s(text: str) -> float:
    """Parse ``1-02:03:04``, ``02:03:04`` or, on macOS, ``3:04.52`` to seconds."""
    days, _, rest = text.rpartition("-")
    first, *others = rest.split(":")
    seconds = float(first) + float(days or 0) * 24.0  # the day prefix is followed by hours
    for part in others:
        seconds = seconds * 60.0 + float(part)
    return seconds


def read_proc(pids: frozenset[int] | None) -> dict[int, Usage]:
    """Read processes from ``/proc``.

    Args:
        pids: the processes; None: all.
    """
    tick_hz, page_bytes = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    wanted: Iterable[int] = pids if pids is not None else _all_pids()
    table = {}
    for pid in wanted:
        try:
            text = (PROC / str(pid) / "stat").read_text("utf-8", "replace")
        except OSError:
            continue
        usage = parse_stat(text, tick_hz, page_bytes)
        if usage is not None:
            table[pid] = usage
    return table


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]


def read_ps(pids: frozenset[int] | None) -> dict[int, Usage]:
    """Read processes from ``ps``.

    Args:
        pids: the processes; None: all.

    Raises:
        OSError: there is no ``ps``.
        subprocess.TimeoutExpired: it hangs.
    """
    selection = ["-A"] if pids is None else ["-p", ",".join(map(str, sorted(pids)))]
    columns = [option for name in COLUMNS for option in ("-o", f"{name}=")]
    command = ["ps", *selection, *columns]
    done = subprocess.run(  # noqa: S603 - fixed words and numbers
        command, capture_output=True, text=True, check=False, timeout=PS_TIMEOUT_S
    )
    return parse_ps(done.stdout)


class ProcessProbe:
    """Probes a process and all its descendants.

    Args:
        pid: the process; of a server with workers, their parent.
        read: reads processes; None: chosen by the system.

    Raises:
        TrafficError: there is no such process.
    """

    def __init__(self, pid: int, read: Read | None = None) -> None:
        self.name: str = f"process {pid}"
        self._pid = pid
        self._read = read or (read_proc if (PROC / "self" / "stat").exists() else read_ps)
        self._sample_count = 0
        self._family: frozenset[int] = frozenset((pid,))
        self._before: ProcessTable = self._read_table()
        self._before_s: float | None = None
        if pid not in self._before:
            raise TrafficError(f"there is no process {pid} to watch")

    def sample(self, now: float) -> dict[str, float]:
        """Return ``rss_bytes`` and, from the second sample on, ``cpu_share`` in cores.

        Args:
            now: seconds, monotonic.

        Raises:
            ProbeTargetLostError: the process has ended.
        """
        table = self._read_table()
        mine = table.get(self._pid)
        if mine is None or mine.started != self._before[self._pid].started:
            raise ProbeTargetLostError(f"process {self._pid} has ended")
        values = {"rss_bytes": float(sum(usage.rss_bytes for usage in table.values()))}
        if self._before_s is not None and now > self._before_s:
            used_s = sum(self._used_s(usage) for usage in table.values())
            values["cpu_share"] = used_s / (now - self._before_s)
        self._before, self._before_s = table, now
        return values

    def _used_s(self, usage: Usage) -> float:
        """Return the CPU seconds of a process since the last sample; 0 in its first sample."""
        # CPU time before the first sample is unknown, so a new process counts from its second one.
        before = self._before.get(usage.pid)
        if before is None or before.started != usage.started:
            return 0.0
        return max(0.0, usage.cpu_s - before.cpu_s)

    def _read_table(self) -> ProcessTable:
        if self._sample_count % CHILD_SEARCH_SAMPLES == 0:
            all_processes = self._read(None)
            self._family = descendants(all_processes, self._pid)
            table: ProcessTable = {pid: all_processes[pid] for pid in self._family}
        else:
            table = self._read(self._family)
        self._sample_count += 1
        return table


def descendants(table: ProcessTable, pid: int) -> frozenset[int]:
    """Return a process of a table and all its descendants; empty if it is not there."""
    children: dict[int, list[int]] = {}
    for usage in table.values():
        children.setdefault(usage.parent, []).append(usage.pid)
    found: set[int] = set()
    pending = [pid] if pid in table else []
    while pending:
        one = pending.pop()
        if one not in found:
            found.add(one)
            pending += children.get(one, ())
    return frozenset(found)
