"""Cost of a limited request, ours and that of other libraries; in memory, and with limits on Redis.

Run: ``python -m benchmarks.peers``. Ratios hold on any machine, absolute figures only on the one named.
"""

from __future__ import annotations

import statistics
import tracemalloc
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from autoglm_throttle import Permit, Settings, Throttle
from autoglm_throttle.types import Demand, Priority
from benchmarks import asgi_rows as rows
from benchmarks import harness
from benchmarks.shared import apps
from benchmarks.shared.bench import Scale, redis_bench

MEMORY_USERS = 100_000

MAKERS: dict[str, Callable[[], rows.App]] = {
    "bare app": lambda: rows.bare,
    "empty wrapper": rows.wrapped,
    "autoglm_throttle": rows.ours,
    "asgi-ratelimit": rows.asgi_ratelimit,
    "limits-fixed": rows.limits_fixed,
    "limits-moving": rows.limits_moving,
    "starlette app": rows.starlette_alone,
    "slowapi": rows.slowapi,
}
REJECTING = ("autoglm_throttle", "asgi-ratelimit", "limits-fixed", "limits-moving", "slowapi")


def memory_ours() -> float:
    """Measure the bytes of 100 000 users, one request each, in the whole `Throttle`."""
    throttle = Throttle(Settings(user_limit="100/minute", rate_mid_rps=1e6, burst_s=10, gpu="none"))
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(MEMORY_USERS):
        verdict = throttle.try_admit(Demand(Priority.MID, f"{number:016x}"))
        if isinstance(verdict, Permit):
            verdict.settle()
    bytes_each = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    if throttle.snapshot().users != MEMORY_USERS:
        raise RuntimeError("not every user was remembered")
    return bytes_each


def memory_limits() -> float:
    """Measure the bytes in the fixed window of ``limits``, with a counter and an expiry for each user."""
    from limits import parse
    from limits.storage import MemoryStorage
    from limits.strategies import FixedWindowRateLimiter

    limiter, item = FixedWindowRateLimiter(MemoryStorage()), parse("100/minute")
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(MEMORY_USERS):
        limiter.hit(item, f"{number:016x}")
    bytes_each = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return bytes_each


def on_redis(rounds: int) -> dict[str, Any]:
    """Measure requests per second of 64 tasks through the app, limits on Redis; errors of all rounds."""
    failed: dict[str, Counter[str]] = {name: Counter() for name in apps.APPS}
    with redis_bench(Scale()) as bench:
        jobs = {name: partial(apps.rate, bench, make, failed[name]) for name, make in apps.APPS.items()}
        seen = harness.interleave(jobs, rounds)
        server = bench.server.binary.name
    return {
        "server": server,
        "tasks": apps.TASKS,
        "rows": {
            name: {
                "rps": statistics.median(rates),
                "ours_over_it": harness.ratio(seen, "autoglm_throttle", name),
                "errors": dict(failed[name]),
            }
            for name, rates in seen.items()
        },
    }


def row(make: Callable[[], rows.App], *, rejected: bool) -> Callable[[], float]:
    """Build a row for the harness."""
    return lambda: rows.seconds_each(make, rejected=rejected)


def main() -> None:
    """Measure, print and write the record."""
    options = harness.arguments(__doc__ or "", rounds=9)
    passing = {name: row(make, rejected=False) for name, make in MAKERS.items()}
    rejecting = {f"{name} refusing": row(MAKERS[name], rejected=True) for name in REJECTING}
    seen = harness.interleave(passing | rejecting, options.rounds)
    micros: dict[str, float] = {name: statistics.median(values) * 1e6 for name, values in seen.items()}

    print(f"{'added per admitted request':34}{'us':>8}{'ours / it':>12}")
    added: dict[str, Any] = {}
    for name in ("autoglm_throttle", "asgi-ratelimit", "limits-fixed", "limits-moving", "slowapi"):
        base = "starlette app" if name == "slowapi" else "bare app"
        cost = statistics.median(a - b for a, b in zip(seen[name], seen[base], strict=True)) * 1e6
        quotients = [
            (ours - bare) / (it - its_bare)
            for ours, bare, it, its_bare in zip(
                seen["autoglm_throttle"], seen["bare app"], seen[name], seen[base], strict=True
            )
        ]
        added[name] = {"us": cost, "ours_over_it": statistics.median(quotients)}
        print(f"{name:34}{cost:8.2f}{added[name]['ours_over_it']:12.2f}")

    print(f"\n{'whole rejected request':34}{'us':>8}{'ours / it':>12}")
    rejected: dict[str, Any] = {}
    for name in REJECTING:
        quotient = harness.ratio(seen, "autoglm_throttle refusing", f"{name} refusing")
        rejected[name] = {"us": micros[f"{name} refusing"], "ours_over_it": quotient}
        print(f"{name:34}{rejected[name]['us']:8.2f}{quotient:12.2f}")

    bytes_each = {"autoglm_throttle": memory_ours() / 1e6, "limits-fixed": memory_limits() / 1e6}
    print(
        f"\nmemory of {MEMORY_USERS} users, MB: " + ", ".join(f"{k} {v:.1f}" for k, v in bytes_each.items())
    )

    shared = on_redis(options.rounds)
    print(f"\n{'requests/s, 64 tasks, on Redis':34}{'/s':>8}{'ours / it':>12}{'errors':>8}")
    for name, one in shared["rows"].items():
        errors = sum(one["errors"].values())
        print(f"{name:34}{one['rps']:8.0f}{one['ours_over_it']:12.2f}{errors:8d}")

    result = {
        **harness.machine("asgi-ratelimit", "limits", "slowapi", "starlette", "redis"),
        "rounds": options.rounds,
        "added_us": added,
        "refused_us": rejected,
        "memory_mb": bytes_each,
        "medians_us": micros,
        "redis": shared,
    }
    print(harness.line(result))
    if options.write:
        harness.keep("peers", result)


if __name__ == "__main__":
    main()
