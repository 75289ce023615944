"""``tiers``: GPU band -> factor -> rate of each priority, in sum and per worker."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from autoglm_throttle.cli.command import load
from autoglm_throttle.cli.output import FINE, table, write, write_json
from autoglm_throttle.model import Policy, Priority
from autoglm_throttle.settings import Settings, user_limits_text
from autoglm_throttle.settings.quantity import plain


@dataclass(frozen=True)
class Band:
    """A range of GPU utilization, open below and closed above."""

    above_pct: float | None
    to_pct: float | None
    factor: float

    def __str__(self) -> str:
        if self.above_pct is None:
            return "any" if self.to_pct is None else f"up to {plain(self.to_pct)} %"
        end = "" if self.to_pct is None else f" to {plain(self.to_pct)}"
        return f"above {plain(self.above_pct)}{end} %"


def bands(settings: Settings) -> Iterator[Band]:
    """The bands of the table in force, the calmest first."""
    tiers = settings.tiers if settings.policy is Policy.TIERS else ()
    edges = [edge for edge, _ in tiers]
    factors = [1.0, *(factor for _, factor in tiers)]
    for above, to, factor in zip([None, *edges], [*edges, None], factors, strict=True):
        yield Band(above, to, factor)


def run(args: argparse.Namespace) -> int:
    """Print the table.

    Raises:
        ConfigError: the settings have problems.
    """
    settings = load(args)
    if args.format == "json":
        write_json(_document(settings))
    else:
        write("\n\n".join(_paragraphs(settings)))
    return FINE


def _rates(settings: Settings, factor: float, workers: int = 1) -> list[float]:
    return [round(rate * factor / workers, 3) for rate in settings.rates_rps]


def _document(settings: Settings) -> dict[str, object]:
    limits = zip(Priority, settings.user_limits, strict=True)
    return {
        "policy": settings.policy.value,
        "workers": settings.workers,
        "samples": settings.tier_samples,
        "bands": [
            {
                "above_pct": band.above_pct,
                "to_pct": band.to_pct,
                "factor": band.factor,
                "rate_rps": _by_priority(_rates(settings, band.factor)),
                "rate_per_worker_rps": _by_priority(_rates(settings, band.factor, settings.workers)),
            }
            for band in bands(settings)
        ],
        "user_limits": {priority.label: user_limits_text(own) or None for priority, own in limits},
    }


def _by_priority(rates: list[float]) -> dict[str, float]:
    return {priority.label: rate for priority, rate in zip(Priority, rates, strict=True)}


def _paragraphs(settings: Settings) -> Iterator[str]:
    workers = settings.workers
    together = "one worker" if workers == 1 else f"all {workers} workers together"
    yield _table(settings, f"requests/s, {together}", 1)
    if workers > 1:
        yield _table(settings, "requests/s, each worker", workers)
    if settings.policy is Policy.TIERS:
        yield (
            f"The table acts after {settings.tier_samples} samples in a row above "
            f"{plain(settings.tiers[0][0])} %, one sample every {plain(settings.sample_interval_s)} s."
        )
    yield f"Limit of one user, whatever the GPU does: {_user_limits(settings)}"


def _user_limits(settings: Settings) -> str:
    texts = [user_limits_text(limits) or "off" for limits in settings.user_limits]
    if len(set(texts)) == 1:
        return texts[0]
    return ", ".join(f"{priority.label} {text}" for priority, text in zip(Priority, texts, strict=True))


def _table(settings: Settings, title: str, workers: int) -> str:
    heading = ["GPU utilization", "factor", *(priority.label for priority in Priority)]
    rows = [
        [str(band), plain(band.factor), *map(plain, _rates(settings, band.factor, workers))]
        for band in bands(settings)
    ]
    return f"{title}\n{table([heading, *rows], right=frozenset({1, 2, 3, 4}))}"
