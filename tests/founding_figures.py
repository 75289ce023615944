"""The literal figures of the original requirements, and the page that is made from the table.

``python -m tests.founding_figures > docs/founding-figures.md`` writes the page;
``tests/project/test_founding_figures.py`` has a test for each row.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoglm_throttle.settings import settings_table


@dataclass(frozen=True)
class Figure:
    """One row of the page."""

    name: str
    """Its test is ``test_<name>``."""
    asked: str
    """The figure as it was required."""
    settings: tuple[str, ...]
    """The settings that hold it; none if it is constant."""
    note: str
    """Its implementation, or the reason for another default."""


FIGURES = (
    Figure(
        "token_buckets",
        "token buckets: high 1000, mid 500, low 100 requests/s",
        ("rate_high_rps", "rate_mid_rps", "rate_low_rps"),
        "the same under every policy; a full bucket holds one second of its rate (`BURST_S`). After them "
        "the default policy applies an adaptive concurrency limit",
    ),
    Figure(
        "priorities",
        "priority 1 = high, 2 = mid, anything else = low",
        ("priority_default",),
        "the same for a stated priority; a request without one is mid",
    ),
    Figure(
        "sampling",
        "the GPU is sampled every second",
        ("sample_interval_s",),
        "the same",
    ),
    Figure(
        "trigger",
        "above 85 % in 3 consecutive samples triggers",
        ("policy", "tiers", "tier_samples"),
        "the same: 85 % is not above 85 %, and a sample at or below it resets the count. "
        "Under the default policy a sample counts only if requests are queued or were rejected by the "
        "concurrency limit; under `tiers` every sample counts",
    ),
    Figure(
        "tiers",
        "85-90 % -> 70 % of the rate, 90-95 % -> 40 %, above 95 % -> no refill and no new requests",
        ("policy", "tiers"),
        "the same under `tiers`; the newest sample selects the row, and a sample on an edge belongs to the "
        "row below it. Under the default policy only while requests are queued, and never below 1.15 times "
        "the service rate: a GPU with full batches has capacity left, and at factor 0 it runs idle. "
        "`make demo POLICY=tiers` shows all three rows",
    ),
    Figure(
        "release",
        "nothing on the way back",
        ("policy", "tier_release_samples", "tier_release_margin_pct", "tier_recovery_step"),
        "taken literally under `tiers`: one lower sample ends a reduction; the settings slow the recovery "
        "down if the factor oscillates. Under the default policy two samples without queued requests "
        "end it",
    ),
    Figure(
        "user_window",
        "user window of 1 s",
        ("user_limit",),
        "off until it is set, as `10/second` for a window of 1 s: "
        "behind an unknown proxy all users would share one window",
    ),
    Figure(
        "breaker",
        "breaker: 5 consecutive failures open it, for 10 s, then 1 probe call",
        ("breaker_failures", "breaker_open_s", "breaker_half_open_max"),
        "the same: the fifth consecutive failure opens it, and one success between them resets the count. "
        "After 10 s exactly one call is let through (half-open). Its success closes the breaker; its failure "
        "restarts the 10 s",
    ),
    Figure(
        "degradation",
        "above 80 % load features that are not core are shed",
        ("degrade_shed_at", "degrade_samples"),
        "the same for features that are registered as `non_core`, without a breaker: their dependencies are "
        "healthy. Three consecutive samples are required, and 80 % is not above 80 %. Under the default "
        "policy the load is that of the GPU while requests are queued, else the smaller of that and the "
        "occupancy of the concurrency limit",
    ),
    Figure(
        "users",
        "load: 50 users; 50 -> 2000 in steps; think time 100 ms; spikes",
        (),
        "the same, as shapes of the [load tests](load-tests.md): `users:50:60s`, `users:50:2000:8:30s`, "
        "`spike:50:500:60s:30s`. Users that wait for their responses are a closed loop, and reports say so; "
        "the other shapes are open loop",
    ),
    Figure(
        "objectives",
        "P99 < 500 ms, errors < 0.5 %, at least 10,000 requests/s",
        (),
        "the same, as `--slo 'p99<500ms,error<0.5%,rps>=10000/s'`; the rate is required if a control row on "
        "the same machine reaches it",
    ),
    Figure(
        "gradient",
        "100 / 3000 / 5000 requests/s: 42 / 118 / 205 ms, 0 / 0.3 / 4.7 % errors, limiter 0 / 12 / 89; path "
        "/v1/generate; 10 minutes",
        (),
        "`benchmarks/headline.py` sends the same rates to the same path, `--full` for ten minutes; its table "
        "has these figures beside ours",
    ),
)

HEAD = """\
# Founding figures

<!-- Made by `python -m tests.founding_figures > docs/founding-figures.md`; change its table instead. -->

Which figures were required at the start, and how is each implemented?

A test asserts every row on the objects of a running service. The settings are the defaults, except
`POLICY=tiers`, which takes the table literally. Where the default policy, `adaptive`, differs, the row gives
the difference and the reason; tests assert that, too.
Settings have the prefix `AUTOGLM_THROTTLE_`; [Settings](settings.md) describes them.

| figure | settings and defaults | implementation | test |
|---|---|---|---|
"""


def page() -> str:
    """The whole page as Markdown."""
    rows = [" | ".join(_cells(figure)) for figure in FIGURES]
    lines = "\n".join(f"| {row} |" for row in rows)
    return f"{HEAD}{lines}\n\nThe tests are in `tests/project/test_founding_figures.py`.\n"


def _cells(figure: Figure) -> tuple[str, ...]:
    defaults = "; ".join(_default(name) for name in figure.settings)
    return figure.asked, defaults, figure.note, f"`test_{figure.name}`"


def _default(name: str) -> str:
    known = settings_table()[name]
    return f"`{name if known.file_only else name.upper()}` = `{known.default_text or 'not set'}`"


if __name__ == "__main__":
    print(page(), end="")
