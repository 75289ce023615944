"""Compares the results of the same requests in the recording and in the replay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from autoglm_throttle.traffic.histogram import Histogram
from autoglm_throttle.traffic.replay.prepare import Replay, ReplayIndex
from autoglm_throttle.traffic.request_log import OPEN, UNSENT, RequestResult
from autoglm_throttle.traffic.results import Result

SECONDS = 20  # Number of listed seconds, those with the most differences

PERCENTILES = {"p50_s": 0.5, "p95_s": 0.95, "p99_s": 0.99}

Outcome = tuple[str, int]  # Decision and status
Side = Counter[Outcome]


def client_outcome(status: int, *, degraded: bool) -> str:
    """Classify a request from the client's view, in the same way for recording and replay.

    A response does not show whether a throttle or the application sent its 429 or 503. Status 0 is none.
    """
    if degraded and 200 <= status < 300:
        return "degraded"
    return {0: "none", 429: "limited", 503: "shed"}.get(status, "admitted")


def compare_results(replay: Replay, result: Result) -> dict[str, Any] | None:
    """Compare the results of the same requests in the recording and in the replay.

    Both sides are classified by the response, so that an unchanged service never differs from itself.
    Requests that were not sent, or had not ended, are excluded on both sides.

    Returns:
        None where the file contains no responses. Else, ready for JSON: ``decisions`` and ``statuses``
        (0 is no response) with ``recorded`` and ``replayed`` counts; ``served``, percentiles of the time
        from arrival in the recording, and from the write in the replay; ``changed``, one by one, and
        ``differ``, by second, each with ``requests`` and ``ratio``; the 20 most different ``seconds``.
    """
    if replay.recorded is None or not any(replay.recorded.statuses):
        return None
    seconds: dict[int, tuple[Side, Side]] = {}
    served = (Histogram(), Histogram())
    changed = _count_changes(replay.recorded, result, seconds, served)
    recorded, replayed = Side(), Side()
    for before, after in seconds.values():
        recorded.update(before)
        replayed.update(after)
    requests = recorded.total()
    differ = sum(_differ(*sides) for sides in seconds.values())
    return {
        "requests": requests,
        "decisions": _side_by_side(recorded, replayed, lambda outcome: outcome[0]),
        "statuses": _side_by_side(recorded, replayed, lambda outcome: str(outcome[1])),
        "served": {
            name: {"recorded": served[0].percentile(share), "replayed": served[1].percentile(share)}
            for name, share in PERCENTILES.items()
        },
        "changed": {"requests": changed, "ratio": changed / requests if requests else 0.0},
        "differ": {"requests": differ, "ratio": differ / requests if requests else 0.0},
        "seconds": _worst(seconds),
    }


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


def _count_changes(
    recorded: ReplayIndex,
    result: Result,
    seconds: dict[int, tuple[Side, Side]],
    served: tuple[Histogram, Histogram],
) -> int:
    """Fill in outcomes by second and times of served requests; return the number of changed requests."""
    plan, request_log = result.load.plan, result.request_log
    changed = 0
    for index, number in enumerate(request_log.results):
        if number in (OPEN, UNSENT) or (result.aborted and number == RequestResult.UNANSWERED):
            continue
        position = index % len(recorded)
        status, status_after = recorded.statuses[position], request_log.statuses[index]
        degraded = recorded.has_decisions and number == RequestResult.DEGRADED
        before = client_outcome(status, degraded=bool(recorded.degraded[position])), status
        after = client_outcome(status_after, degraded=degraded), status_after
        sides = seconds.setdefault(int(plan.offsets[index]), (Side(), Side()))
        sides[0][before] += 1
        sides[1][after] += 1
        # A limiter rejects an arbitrary one of several equal requests, so this count overstates differences.
        changed += before != after
        if 200 <= status < 400:
            served[0].record(recorded.ms[position] / 1e3)
        if RequestResult(number).served:
            served[1].record(request_log.service_s[index])
    return changed


def _differ(recorded: Side, replayed: Side) -> int:
    """Return the number of requests that would need another outcome to make both sides equal."""
    return (recorded - replayed).total()


def _side_by_side(
    recorded: Side, replayed: Side, name: Callable[[Outcome], str]
) -> dict[str, dict[str, int]]:
    table: dict[str, dict[str, int]] = {}
    for outcome in sorted(recorded.keys() | replayed.keys()):
        row = table.setdefault(name(outcome), {"recorded": 0, "replayed": 0})
        row["recorded"] += recorded[outcome]
        row["replayed"] += replayed[outcome]
    return table


def _worst(seconds: Mapping[int, tuple[Side, Side]]) -> list[dict[str, Any]]:
    worst = sorted(seconds.items(), key=lambda row: (-_differ(*row[1]), row[0]))[:SECONDS]
    return [
        {
            "second": second,
            "requests": recorded.total(),
            "differ": _differ(recorded, replayed),
            "recorded": _named(recorded),
            "replayed": _named(replayed),
        }
        for second, (recorded, replayed) in worst
        if _differ(recorded, replayed)
    ]


def _named(counts: Side) -> dict[str, int]:
    return {f"{decision} {status}": counts[decision, status] for decision, status in sorted(counts)}
