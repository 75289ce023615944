"""Compares the results of the same requests in the recording and in the replay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from autoglm_throttle.traffic.histogram import Histogram
from autoglm_throttle.traffic.replay.prepare import DECISIONS, Replay, ReplayIndex, client_outcome
from autoglm_throttle.traffic.request_log import OPEN, UNSENT, RequestLog, RequestResult
from autoglm_throttle.traffic.results import Result

SECONDS = 20  # Number of listed seconds, those with the most differences

PERCENTILES = {"p50_s": 0.5, "p95_s": 0.95, "p99_s": 0.99}

Outcome = tuple[str, int]  # Decision and status
Times = tuple[Histogram, Histogram]  # Recorded and replayed


@dataclass(slots=True)
class _ComparedSecond:
    """One second of the replay."""

    recorded: Counter[Outcome] = field(default_factory=Counter)
    replayed: Counter[Outcome] = field(default_factory=Counter)

    @property
    def differ(self) -> int:
        """Number of requests that would need another outcome to make both sides equal."""
        return (self.recorded - self.replayed).total()


def compare_results(replay: Replay, result: Result) -> dict[str, Any] | None:
    """Compare the results of the same requests in the recording and in the replay.

    Both sides are classified by the response, so that an unchanged service never differs from itself:
    429 counts as limited and 503 as shed, also if the application sent it. A fallback counts as degraded
    only if the recording contains decisions of a throttle.

    Requests that were not sent, or had not ended, are excluded on both sides.

    Returns:
        Ready for JSON. None where the file contains no responses. The keys are:

        - ``requests``: compared.
        - ``decisions`` and ``statuses`` (0 is no response), each with ``recorded`` and ``replayed`` counts.
        - ``served``: percentiles of the time from arrival to end in the recording, and from write to end in
          the replay.
        - ``changed``, one by one, and ``differ``, by second, each with ``requests`` and ``ratio``.
        - ``seconds``: the 20 most different of the replay.
    """
    if replay.recorded is None or not replay.recorded.has_outcomes:
        return None
    seconds, served, changed = _count_changes(replay.recorded, result)
    whole = _ComparedSecond()
    for second in seconds.values():
        whole.recorded.update(second.recorded)
        whole.replayed.update(second.replayed)
    requests = whole.recorded.total()
    differ = sum(second.differ for second in seconds.values())
    return {
        "requests": requests,
        "decisions": _side_by_side(whole, lambda outcome: outcome[0]),
        "statuses": _side_by_side(whole, lambda outcome: str(outcome[1])),
        "served": {
            name: {"recorded": served[0].percentile(share), "replayed": served[1].percentile(share)}
            for name, share in PERCENTILES.items()
        },
        "changed": {"requests": changed, "ratio": changed / requests if requests else 0.0},
        "differ": {"requests": differ, "ratio": differ / requests if requests else 0.0},
        "seconds": list(islice(_worst(seconds), SECONDS)),
    }


def is_above(comparison: Mapping[str, Any], limit: float) -> bool:
    """Return whether a comparison differs in more than ``limit``, a share of the requests from 0 to 1."""
    return bool(comparison["differ"]["ratio"] > limit)


def comparison_lines(comparison: Mapping[str, Any]) -> list[str]:
    """Format a comparison as lines of text."""
    lines = [f"{'':<12}{'recorded':>12}{'replayed':>12}"]
    for table in ("decisions", "statuses"):
        for name, counts in comparison[table].items():
            lines.append(f"{name:<12}{counts['recorded']:>12}{counts['replayed']:>12}")
    for name, times in comparison["served"].items():
        both = "".join(f"{'-' if time is None else f'{1e3 * time:.1f} ms':>12}" for time in times.values())
        lines.append(f"{'served ' + name.removesuffix('_s'):<12}{both}")
    differ, changed = comparison["differ"], comparison["changed"]
    lines.append(
        f"{differ['requests']} of {comparison['requests']} requests ({100.0 * differ['ratio']:.2f} %) had"
        f" a different outcome, counted by second; {changed['requests']} one by one"
    )
    lines += [f"  second {row['second']}: {_row(row)}" for row in comparison["seconds"]]
    return lines


def _row(row: Mapping[str, Any]) -> str:
    before, after = (
        ", ".join(f"{count} x {name}" for name, count in row[side].items())
        for side in ("recorded", "replayed")
    )
    return f"{row['differ']} of {row['requests']} different: {before} -> {after}"


def _count_changes(recorded: ReplayIndex, result: Result) -> tuple[dict[int, _ComparedSecond], Times, int]:
    plan, request_log = result.load.plan, result.request_log
    seconds: dict[int, _ComparedSecond] = {}
    served = (Histogram(), Histogram())
    changed = 0
    for index, number in enumerate(request_log.results):
        if number in (OPEN, UNSENT) or (result.aborted and number == RequestResult.UNANSWERED):
            continue
        number_before = index % len(recorded)
        before = DECISIONS[recorded.decisions[number_before]], recorded.statuses[number_before]
        after = _replayed_outcome(request_log, index, has_decisions=recorded.has_decisions)
        second = seconds.setdefault(int(plan.offsets[index]), _ComparedSecond())
        second.recorded[before] += 1
        second.replayed[after] += 1
        # A limiter rejects an arbitrary one of several equal requests, so this count overstates differences.
        changed += before != after
        if 200 <= before[1] < 400:
            served[0].record(recorded.ms[number_before] / 1e3)
        if RequestResult(number).served:
            served[1].record(request_log.service_s[index])
    return seconds, served, changed


def _replayed_outcome(request_log: RequestLog, index: int, *, has_decisions: bool) -> Outcome:
    status = request_log.statuses[index]
    degraded = has_decisions and request_log.results[index] == RequestResult.DEGRADED
    return client_outcome(status, degraded=degraded), status


def _side_by_side(whole: _ComparedSecond, name: Callable[[Outcome], str]) -> dict[str, dict[str, int]]:
    table: dict[str, dict[str, int]] = {}
    for outcome in sorted(whole.recorded.keys() | whole.replayed.keys()):
        row = table.setdefault(name(outcome), {"recorded": 0, "replayed": 0})
        row["recorded"] += whole.recorded[outcome]
        row["replayed"] += whole.replayed[outcome]
    return table


def _worst(seconds: Mapping[int, _ComparedSecond]) -> Iterator[dict[str, Any]]:
    for number, second in sorted(seconds.items(), key=lambda pair: (-pair[1].differ, pair[0])):
        if not second.differ:
            return
        yield {
            "second": number,
            "requests": second.recorded.total(),
            "differ": second.differ,
            "recorded": _named(second.recorded),
            "replayed": _named(second.replayed),
        }


def _named(counts: Counter[Outcome]) -> dict[str, int]:
    return {f"{decision} {status}": counts[decision, status] for decision, status in sorted(counts)}
