"""``tiers``: prints band of the signal -> factor -> rate of each priority, and the effect of the policy."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import TypeVar

from autoglm_throttle.cli.output import EXIT_OK, add_sources, load, table, write, write_json
from autoglm_throttle.settings import Settings, user_limits_text
from autoglm_throttle.settings.advice import uses_pressure
from autoglm_throttle.settings.field_types import plain
from autoglm_throttle.types import Policy, Priority

T = TypeVar("T")

add_arguments = add_sources


def bands(settings: Settings) -> Iterator[tuple[float | None, float | None, float]]:
    """Yield the lower edge (open), the upper edge (closed) and the factor of each band in force."""
    tiers = settings.control.tiers if settings.control.policy in {Policy.ADAPTIVE, Policy.TIERS} else ()
    edges = [edge for edge, _ in tiers]
    factors = [1.0, *(factor for _, factor in tiers)]
    yield from zip([None, *edges], [*edges, None], factors, strict=True)


def band_text(above_pct: float | None, to_pct: float | None) -> str:
    """Format the edges of a band."""
    if above_pct is None:
        return "any" if to_pct is None else f"up to {plain(to_pct)} %"
    return f"above {plain(above_pct)}{'' if to_pct is None else f' to {plain(to_pct)}'} %"


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    settings = load(args)
    if args.format == "json":
        write_json(_document(settings))
    else:
        write("\n\n".join(_paragraphs(settings)))
    return EXIT_OK


def _by_priority(values: Iterable[T]) -> dict[str, T]:
    return {priority.label: value for priority, value in zip(Priority, values, strict=True)}


def _rates(settings: Settings, factor: float, workers: int = 1) -> dict[str, float]:
    return _by_priority(round(rate * factor / workers, 3) for rate in settings.rates.rates_rps)


def _document(settings: Settings) -> dict[str, object]:
    return {
        "policy": settings.control.policy.value,
        "signal": settings.control.signal.value,
        "workers": settings.rates.workers,
        "samples": settings.control.tier_samples,
        "bands": [
            {
                "above_pct": above_pct,
                "to_pct": to_pct,
                "factor": factor,
                "rate_rps": _rates(settings, factor),
                "rate_per_worker_rps": _rates(settings, factor, settings.rates.workers),
            }
            for above_pct, to_pct, factor in bands(settings)
        ],
        "user_limits": _by_priority(user_limits_text(own) or None for own in settings.users.by_priority),
    }


def _paragraphs(settings: Settings) -> Iterator[str]:
    workers = settings.rates.workers
    together = "one worker" if workers == 1 else f"all {workers} workers together"
    yield _table(settings, f"requests/s, {together}", 1)
    if workers > 1:
        yield _table(settings, "requests/s, each worker", workers)
    yield _policy_text(settings)
    if most := settings.concurrency.inflight_max:
        yield f"In flight at most {most} requests in each worker, in addition to all other limits."
    if settings.control.dry_run:
        yield "DRY_RUN: decisions are only counted, no request is rejected."
    limits = _by_priority(user_limits_text(own) or "off" for own in settings.users.by_priority)
    is_same = len(set(limits.values())) == 1
    text = limits["mid"] if is_same else ", ".join(map(" ".join, limits.items()))
    yield f"Limit of one user, independent of the GPU: {text}"


def _policy_text(settings: Settings) -> str:
    """Describe the effect of the policy beside the rates."""
    match settings.control.policy:
        case Policy.ADAPTIVE:
            return (
                f"{_concurrency_text(settings)}\n\n"
                f"The table acts after {_samples(settings)},\n"
                "and only while requests are queued or rejected by the concurrency limit; it ends after "
                f"{settings.control.adaptive_release_samples} samples without.\n"
                "It never reduces rates below the service rate: "
                f"{plain(settings.control.adaptive_headroom)} times "
                "what the service finishes stays admitted in every band.\n"
                "Without GPU telemetry only the concurrency limit applies."
            )
        case Policy.TIERS:
            return f"The table acts after {_samples(settings)}, with or without traffic."
        case Policy.CONCURRENCY:
            return f"{_concurrency_text(settings)}\nThe table of TIERS is not used."
        case Policy.FIXED:
            return "The rates are constant; the GPU is only observed."


def _concurrency_text(settings: Settings) -> str:
    limit = settings.concurrency
    slo_s = limit.slo_s
    objective = "the objective, which is learned"
    within = f"{plain(100 * limit.latency_budget)} % of the objective"
    if slo_s is not None:
        objective = f"the objective of {plain(slo_s)} s"
        within = f"{plain(round(limit.latency_budget * slo_s, 4))} s"
    return (
        f"The concurrency limit is the number of requests that the service finishes within {within}, "
        "or within a few times its unloaded latency if that is longer.\n"
        "Other requests are queued, high priority first, or rejected immediately "
        f"if they would miss {objective}."
    )


def _samples(settings: Settings) -> str:
    return (
        f"{settings.control.tier_samples} samples in a row above {plain(settings.control.tiers[0][0])} %, "
        f"one sample every {plain(settings.gpu.sample_interval_s)} s"
    )


def _table(settings: Settings, title: str, workers: int) -> str:
    signal = "pressure" if uses_pressure(settings) else "GPU utilization"
    rows = [[signal, "factor", *(priority.label for priority in Priority)]]
    for above_pct, to_pct, factor in bands(settings):
        rates = _rates(settings, factor, workers).values()
        rows.append([band_text(above_pct, to_pct), plain(factor), *map(plain, rates)])
    return f"{title}\n{table(rows, right=frozenset({1, 2, 3, 4}))}"
