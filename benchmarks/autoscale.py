"""A simulated day of an LLM service whose replicas follow ``desired_replicas_ratio``.

Run: ``python -m benchmarks.autoscale [--hours 24] [--speeds 1 2 3] [--write]``. Nothing waits: time is
virtual. Each replica is a batching server behind a throttle of its own, and starts in 90 s. Every 15 s the
rule of examples/autoscale is applied: wanted replicas are the sum of the ratios over `HEADROOM`, up at once,
down slowly. The load is one synthetic hour, repeated under a daily sine of 0.3 to 1.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import math
import random
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from autoglm_throttle import Demand, Permit, Priority, Rejection, Settings, Throttle
from benchmarks import harness
from benchmarks.shared.bars import Bar

RPS, NOISE, MEMORY_S = 5.5, 0.3, 60.0
"""Mean arrivals of the hour, deviation of their logarithm within it, and its correlation time."""
TOKENS, SPREAD, TOKEN_S = 211.0, 0.8, 0.02
"""Mean tokens of an answer, deviation of their logarithm, and seconds of one token."""
BATCH = 8
"""Answers that a replica generates at full speed; more share it."""
CAPACITY_RPS = BATCH / (TOKENS * TOKEN_S)
START_S, SYNC_S, TOLERANCE = 90.0, 15.0, 0.1
"""Start of a replica; period and tolerance of the autoscaler, as by default in Kubernetes."""
DOWN_S, STABLE_S = 300.0, 1800.0
"""At most one replica less in the first time, and no fewer than were wanted at any moment of the second."""
SMOOTH_S = 600.0
"""Time over which the query averages the sum of the ratios."""
HEADROOM = 0.75
"""Share of its capacity at which a replica is to run: the divisor of the query. At 0.85 four replicas reject
2.3 %, as the free part of one is small while another starts."""
ORACLE_LOAD = 0.9
"""The same of the oracle, which knows the rate of every five minutes in advance."""
LAG_S = 600.0
"""Start of the service, not evaluated."""
REVERSALS, REJECTED, OVER_ORACLE = 2.0, 0.02, 1.3

SETTINGS: dict[str, Any] = {"gpu": "none", "rate_mid_rps": 1e6, "slo_s": 30.0, "user_limit": "off"}


class Clock:
    """Virtual seconds."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Replica:
    """A server that generates answers at full speed while it has at most `BATCH`, behind its throttle."""

    def __init__(self, clock: Clock, ready_s: float) -> None:
        self.throttle = Throttle(Settings(**SETTINGS), sampling="manual", clock=clock)
        self.ready_s = ready_s
        self.running: list[tuple[float, int, Permit]] = []
        self.waiting: dict[Any, float] = {}
        self._clock, self._order = clock, itertools.count()
        self._work_s, self._at_s = 0.0, clock.now

    @property
    def load(self) -> int:
        """Requests inside."""
        return len(self.running) + len(self.waiting)

    def _advance(self) -> None:
        self._work_s += (self._clock.now - self._at_s) * self._speed()
        self._at_s = self._clock.now

    def _speed(self) -> float:
        return min(1.0, BATCH / max(1, len(self.running)))

    def ask(self, takes_s: float) -> int:
        """Send a request; return the number of rejections that are known now."""
        result = self.throttle.try_admit(Demand(Priority.MID))
        if isinstance(result, Permit):
            self._run(result, takes_s)
        elif isinstance(result, Rejection):
            return 1
        else:
            self.waiting[result] = takes_s
        return self._collect()

    def end_s(self) -> float:
        """Return when the next answer is complete."""
        return self._at_s + (self.running[0][0] - self._work_s) / self._speed() if self.running else math.inf

    def end(self) -> int:
        """Complete an answer; return the rejections that are known by it."""
        self._advance()
        heapq.heappop(self.running)[2].settle()
        return self._collect()

    def _run(self, permit: Permit, takes_s: float) -> None:
        self._advance()
        heapq.heappush(self.running, (self._work_s + takes_s, next(self._order), permit))

    def _collect(self) -> int:
        rejected = 0
        for ticket, result in self.throttle.called() if self.waiting else ():
            takes_s = self.waiting.pop(ticket)
            if isinstance(result, Permit):
                self._run(result, takes_s)
            else:
                rejected += 1
        return rejected

    def ratio(self) -> float:
        """Return the metric; a replica without one counts as content."""
        ratio = self.throttle.snapshot().replicas_ratio
        return 1.0 * HEADROOM if ratio is None else ratio


def hour(seed: int) -> list[float]:
    """Make the arrivals per second of one hour, with the mean `RPS`."""
    dice, level, levels = random.Random(seed), 0.0, []
    keep = math.exp(-1.0 / MEMORY_S)
    for _ in range(3600):
        level = keep * level + dice.gauss(0.0, NOISE * math.sqrt(1 - keep * keep))
        levels.append(math.exp(level))
    return [RPS * one * 3600 / sum(levels) for one in levels]


def rate_at(rates: list[float], second: int, speed: float) -> float:
    """Return the arrivals per second under the daily sine, from the night on."""
    return speed * rates[second % 3600] * (0.65 - 0.35 * math.cos(2 * math.pi * second / 86_400))


def arrivals(rates: list[float], seconds: int, speed: float, dice: random.Random) -> Iterator[float]:
    """Yield the times of a Poisson process."""
    for second in range(seconds):
        at_s, rate = float(second), rate_at(rates, second, speed)
        while (at_s := at_s + dice.expovariate(rate)) < second + 1:
            yield at_s


class Autoscaler:
    """The rule of the manifests: up at once, down by one replica in five minutes."""

    def __init__(self) -> None:
        self._sums: deque[float] = deque(maxlen=round(SMOOTH_S / SYNC_S))
        self._wanted: deque[tuple[float, int]] = deque()
        self._down_s = -math.inf

    def count(self, now: float, present: int, ratios: float) -> int:
        """Return the replicas to have, from the sum of the ratios of those that are ready."""
        self._sums.append(ratios)
        exact = sum(self._sums) / len(self._sums) / HEADROOM
        wanted = present if abs(exact / present - 1.0) <= TOLERANCE else max(1, math.ceil(exact))
        self._wanted.append((now, wanted))
        while self._wanted[0][0] < now - STABLE_S:
            self._wanted.popleft()
        if wanted > present:
            return wanted
        lowest = max(one for _, one in self._wanted)
        if lowest < present and now - self._down_s >= DOWN_S:
            self._down_s = now
            return present - 1
        return present


def oracle(rates: list[float], seconds: int, speed: float) -> float:
    """Return the replica-seconds of one that knows the load of every five minutes."""
    total = 0.0
    for start in range(0, seconds, 300):
        part = [rate_at(rates, second, speed) for second in range(start, min(start + 300, seconds))]
        total += len(part) * max(1, math.ceil(sum(part) / len(part) / (CAPACITY_RPS * ORACLE_LOAD)))
    return total


def run(hours: float, speed: float, seed: int = 1) -> dict[str, float]:
    """Simulate so many hours; return the figures."""
    seconds, rates, dice, clock = round(hours * 3600), hour(seed), random.Random(seed + 1), Clock()
    replicas, leaving, scaler = [Replica(clock, 0.0)], list[Replica](), Autoscaler()
    counts = {"requests": 0, "rejected": 0}
    changes: list[tuple[float, int]] = []
    used_s, most, sync_s = 0.0, 1, SYNC_S
    coming = arrivals(rates, seconds, speed, dice)
    next_s = next(coming)
    while next_s < math.inf:
        first = min((*replicas, *leaving), key=Replica.end_s)
        clock.now = now = min(next_s, sync_s, first.end_s())
        rejected = 0
        if now == sync_s:
            sync_s += SYNC_S
            ready = [one for one in replicas if one.ready_s <= now]
            count = scaler.count(now, len(replicas), sum(one.ratio() for one in ready))
            if count != len(replicas):
                changes.append((now, 1 if count > len(replicas) else -1))
            replicas += [Replica(clock, now + START_S) for _ in range(count - len(replicas))]
            leaving = [one for one in leaving if one.load] + replicas[count:]
            del replicas[count:]
            used_s, most = used_s + SYNC_S * len(replicas), max(most, len(replicas))
        elif now == next_s:
            next_s = next(coming, math.inf)
            ready = [one for one in replicas if one.ready_s <= now]
            pair = (dice.choice(ready), dice.choice(ready))
            takes_s = TOKEN_S * TOKENS * math.exp(dice.gauss(-SPREAD * SPREAD / 2, SPREAD))
            rejected = min(pair, key=lambda one: one.load).ask(takes_s)
            counts["requests"] += now >= LAG_S
        else:
            rejected = first.end()
        counts["rejected"] += rejected if now >= LAG_S else 0
    turns = [later[0] for before, later in itertools.pairwise(changes) if before[1] != later[1]]
    by_hour = [sum(start <= at_s < start + 3600 for at_s in turns) for start in range(0, seconds, 3600)]
    return {
        **counts,
        "rejected_share": counts["rejected"] / counts["requests"],
        "reversals_per_hour": max(by_hour),
        "changes": len(changes),
        "most_replicas": most,
        "replica_hours": used_s / 3600,
        "over_oracle": used_s / oracle(rates, seconds, speed),
    }


def bars(found: dict[str, dict[str, float]]) -> Iterator[Bar]:
    """Compute the bars of each speed."""
    for speed, figures in found.items():
        yield Bar(f"speed {speed}: reversals in an hour", figures["reversals_per_hour"], REVERSALS)
        yield Bar(f"speed {speed}: rejected share", figures["rejected_share"], REJECTED)
        yield Bar(f"speed {speed}: replica-hours over the oracle's", figures["over_oracle"], OVER_ORACLE)


def part(kept: Mapping[str, Any]) -> str:
    """Render the figures of each speed."""
    rows = "".join(
        f"| {speed} | {row['requests']:,.0f} | {row['rejected_share']:.1%} | {row['reversals_per_hour']} "
        f"| {row['most_replicas']} | {row['over_oracle']:.2f} |\n"
        for speed, row in kept["speeds"].items()
    )
    return (
        f"A day of {kept['hours']:g} hours at one, two and three times the load:\n\n"
        "| load | requests | rejected | most reversals in an hour | most replicas "
        "| replica-hours over those of a rule that knows the load |\n"
        f"|---|---|---|---|---|---|\n{rows}\n`benchmarks/autoscale.py`: {harness.line(kept)}.\n"
    )


def main() -> int:
    """Simulate, print and keep the record; returns 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--speeds", type=float, nargs="+", default=[1.0, 2.0, 3.0])
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results")
    options = parser.parse_args()
    found = {f"{speed:g}": run(options.hours, speed) for speed in options.speeds}
    evaluated = list(bars(found))
    print("\n".join(map(str, evaluated)))
    result = {**harness.machine(), "hours": options.hours, "speeds": found}
    result["bars"] = [bar.record() for bar in evaluated]
    print(json.dumps(result))
    if options.write:
        harness.keep("autoscale", result)
    return 1 if any(bar.verdict == "MISSED" for bar in evaluated) else 0


if __name__ == "__main__":
    sys.exit(main())
