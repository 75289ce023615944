"""Formats the live view and the final table: pure functions from numbers to text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autoglm_throttle.traffic.summary import Summary, Tally
from autoglm_throttle.types import Priority

BAR = 60
"""Characters for 0..100 %: enough to label tier marks that are 5 % apart."""

GREEN, YELLOW, RED, RESET = "\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[0m"


@dataclass(frozen=True, slots=True)
class ClassFrame:
    """One priority in the live view; rates in requests/s."""

    rate_rps: float
    """Current refill rate."""
    waiting: int | None
    """Queued requests; None where the policy has no queue."""
    admitted_rps: float
    limited_rps: float
    shed_rps: float
    p95_s: float | None


@dataclass(frozen=True, slots=True)
class ConcurrencyFrame:
    """State of the concurrency limiter."""

    in_flight: int
    limit: float
    service_rps: float | None
    """Throughput; None before the first completion."""


@dataclass(frozen=True, slots=True)
class TierTableFrame:
    """The tier table, and its use."""

    tiers: Sequence[Sequence[float]]
    """Pairs of utilization in percent and the factor above it."""
    factor: float
    """Current factor of the table, applied or not."""
    status: str
    """Whether the factor is applied, and the reason."""


@dataclass(frozen=True, slots=True)
class DownstreamFrame:
    """The downstream of the service, as reported by its guard."""

    name: str
    state: str
    """State of its breaker."""
    retry_after_s: float
    level: str
    """Degradation level."""
    fallback_count: int
    """Calls answered by a fallback so far."""


@dataclass(frozen=True, slots=True)
class ProgressFrame:
    """Progress of the load."""

    elapsed_s: float
    length_s: float
    phase: str
    offered_rps: float
    open: int
    """Requests that have not ended for their clients."""


@dataclass(frozen=True, slots=True)
class GpuFrame:
    """Readings of the GPU."""

    utilization_pct: float | None
    power_w: float | None


@dataclass(frozen=True, slots=True)
class ControlFrame:
    """State of the control loop."""

    table: TierTableFrame
    factor: float
    cause: str
    budget_rps: float | None
    """Limit for all classes together; None: not in force."""


@dataclass(frozen=True, slots=True)
class ScreenFrame:
    """Content of the live view."""

    progress: ProgressFrame
    gpu: GpuFrame
    control: ControlFrame
    concurrency: ConcurrencyFrame | None
    classes: Mapping[Priority, ClassFrame]
    downstream: DownstreamFrame | None
    """None before its first call."""

    @property
    def waiting(self) -> int:
        """Requests in all queues."""
        return sum(one.waiting or 0 for one in self.classes.values())


def draw(frame: ScreenFrame, *, color: bool) -> list[str]:
    """Format the live view: always the same number of lines, at most 80 characters each."""
    known = frame.gpu.utilization_pct is not None
    gpu = f"{frame.gpu.utilization_pct:5.1f} %" if known else "unknown"
    power = "" if frame.gpu.power_w is None else f"{frame.gpu.power_w:5.0f} W"
    progress, control, tiers = frame.progress, frame.control, frame.control.table.tiers
    budget = "" if control.budget_rps is None else f"   at most {control.budget_rps:.0f}/s in all"
    lines = [
        f"{progress.elapsed_s:5.1f} of {progress.length_s:.0f} s   phase {progress.phase:<9}"
        f" offered {progress.offered_rps:6.0f}/s   open {progress.open:5}",
        f"GPU     [{bar(frame.gpu.utilization_pct or 0.0, tiers, color=color)}] {gpu}",
        f"{power:8}" + scale(tiers),
        "table   "
        + ", ".join(f"above {edge:g} % x {factor:g}" for edge, factor in tiers)
        + f"; now x {control.table.factor:g}",
        f"        {control.table.status}",
        f"factor  {_colored(f'{control.factor:4.2f}', _shade(1.0 - control.factor), color)}"
        f"  ({control.cause}){budget}",
        f"limit   {_concurrency(frame)}",
        f"guard   {_colored(_guard(frame.downstream), _downstream_color(frame.downstream), color)}",
        "         rate now   waiting  admitted   limited      shed       p95",
    ]
    for priority, one in frame.classes.items():
        waiting = "-" if one.waiting is None else str(one.waiting)
        lines.append(
            f"{priority.label:<8}{one.rate_rps:7.0f}/s {waiting:>9} {one.admitted_rps:7.0f}/s"
            f" {one.limited_rps:7.0f}/s {one.shed_rps:7.0f}/s {seconds(one.p95_s):>9}"
        )
    return lines


def plain(frame: ScreenFrame) -> str:
    """Format the live view as one line, for output that is no terminal."""
    gpu = "unknown" if frame.gpu.utilization_pct is None else f"{frame.gpu.utilization_pct:.0f} %"
    classes = "  ".join(
        f"{priority.label} {one.admitted_rps:.0f}/{one.limited_rps:.0f}/{one.shed_rps:.0f}"
        f" p95 {seconds(one.p95_s)}"
        for priority, one in frame.classes.items()
    )
    progress, control = frame.progress, frame.control
    start = f"{progress.elapsed_s:5.1f} s  {progress.phase:<8}  GPU {gpu:>5}  factor {control.factor:4.2f}"
    tiers = f"table {control.table.factor:g}, {control.table.status}"
    guard = f"guard {_guard(frame.downstream)}"
    return f"{start}  {tiers}  limit {_concurrency(frame)}  {guard}  admitted/limited/shed per s: {classes}"


def _concurrency(frame: ScreenFrame) -> str:
    concurrency = frame.concurrency
    if concurrency is None:
        return "none under this policy"
    service = "not known yet" if concurrency.service_rps is None else f"{concurrency.service_rps:.0f}/s"
    in_flight = f"{concurrency.in_flight} of {concurrency.limit:.0f} in flight"
    return f"{in_flight}, {frame.waiting} queued, service {service}"


def _guard(downstream: DownstreamFrame | None) -> str:
    if downstream is None:
        return "no call to the downstream yet"
    probe = f", probe in {downstream.retry_after_s:.1f} s" if downstream.retry_after_s else ""
    fallbacks = f"{downstream.fallback_count} by fallback"
    return f"{downstream.name} {downstream.state}{probe}; {fallbacks}; degradation {downstream.level}"


def _downstream_color(downstream: DownstreamFrame | None) -> str:
    return _shade(
        0.0
        if downstream is None or downstream.state == "closed"
        else 1.0
        if downstream.state == "open"
        else 0.5
    )


def bar(utilization_pct: float, tiers: Sequence[Sequence[float]], *, color: bool) -> str:
    """Draw a bar of 0..100 % with a mark where each tier begins."""
    filled = round(BAR * min(100.0, utilization_pct) / 100.0)
    marks = {min(BAR - 1, int(BAR * edge / 100.0)) for edge, _ in tiers}
    cells = [("|" if cell in marks else "#" if cell < filled else " ") for cell in range(BAR)]
    passed = sum(utilization_pct > edge for edge, _ in tiers)
    return _colored("".join(cells), _shade(passed / max(1, len(tiers))), color)


def scale(tiers: Sequence[Sequence[float]]) -> str:
    """Format the numbers below the tier marks, shifted to the right where two would overlap."""
    text = ""
    for edge, _ in tiers:
        text = text.ljust(1 + min(BAR - 1, int(BAR * edge / 100.0)))
        text += f"{' ' if text[-1:].strip() else ''}{edge:g}"
    return text


def _shade(badness: float) -> str:
    return GREEN if badness <= 0.0 else RED if badness >= 1.0 else YELLOW


def _colored(text: str, shade: str, color: bool) -> str:
    return f"{shade}{text}{RESET}" if color else text


def seconds(duration_s: float | None) -> str:
    """Format a duration in ms or s; a dash for None."""
    if duration_s is None:
        return "-"
    return f"{1e3 * duration_s:.0f} ms" if duration_s < 1.0 else f"{duration_s:.1f} s"


HEADINGS = ("phase", "priority", "sent", "admitted", "limited", "shed", "failed", "p95", "reasons")


def table(summary: Summary) -> list[str]:
    """Format the results by phase and priority, and their sum."""
    rows: list[tuple[str, ...]] = [HEADINGS]
    for segment, name in enumerate(summary.segments):
        rows += [
            _cells(name, priority.label, summary.tallies[segment, priority])
            for priority in Priority
            if summary.tallies[segment, priority].sent
        ]
    rows.append(_cells("all", "", summary.total()))
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    return [_line(row, widths) for row in rows]


def _cells(name: str, label: str, row: Tally) -> tuple[str, ...]:
    numbers = (row.sent, row.admitted, row.limited, row.shed, row.failed)
    reasons = ", ".join(f"{reason or 'not given'} {count}" for reason, count in row.reasons.most_common())
    return (name, label, *map(str, numbers), seconds(row.latency.response.percentile(0.95)), reasons or "-")


def _line(cells: Iterable[str], widths: Sequence[int]) -> str:
    padded = [
        cell.rjust(width) if 2 <= column <= 7 else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(padded).rstrip()
