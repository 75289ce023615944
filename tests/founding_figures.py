"""Every literal figure this library was asked for, and the page that is made from the table.

``python -m tests.founding_figures > docs/founding-figures.md`` writes the page;
``tests/project/test_founding_figures.py`` has a test for each row.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoglm_throttle.settings import SETTINGS


@dataclass(frozen=True)
class Figure:
    """One row of the page."""

    name: str
    """Its test is ``test_<name>``."""
    asked: str
    """The figure as it was asked for."""
    settings: tuple[str, ...]
    """The settings that hold it; none where it is not to be changed."""
    note: str
    """How it is taken, or why the default is another one."""


FIGURES = (
    Figure(
        "token_buckets",
        "token buckets: high 1000, mid 500, low 100 requests/s",
        ("rate_high_rps", "rate_mid_rps", "rate_low_rps"),
        "the same under every policy; a full bucket holds one second of its rate (`BURST_S`). Behind them "
        "the default policy lets in what the service finishes in time",
    ),
    Figure(
        "priorities",
        "priority 1 = high, 2 = mid, anything else = low",
        ("priority_default",),
        "the same for what is stated; a request that states nothing is mid",
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
        "the same, and literally: 85 % is not above 85 %, and a sample at or below it starts the count anew. "
        "Under the default policy a sample counts only if requests wait or were turned away by the gate; "
        "under `tiers` every sample counts",
    ),
    Figure(
        "tiers",
        "85-90 % -> 70 % of the rate, 90-95 % -> 40 %, above 95 % -> no refill and no new requests",
        ("policy", "tiers"),
        "the same under `tiers`; the newest sample picks the row, and a sample on an edge belongs to the row "
        "below it. Under the default policy only when requests wait, and never below 1.15 times the rate at "
        "which the service finishes them: a card that is busy with full batches has room left, and a door "
        "that shuts lets it run dry. `make demo POLICY=tiers` shows all three rows",
    ),
    Figure(
        "release",
        "nothing on the way back",
        ("policy", "tier_release_samples", "tier_release_margin_pct", "tier_recovery_step"),
        "taken literally under `tiers`: one calm sample ends a cut, and the settings make the way back "
        "slower where the factor would swing. Under the default policy two samples in which nobody waits "
        "end it",
    ),
    Figure(
        "user_window",
        "user window of 1 s",
        ("user_limit",),
        "off until it is set, as `10/second` for a window of 1 s: "
        "behind a proxy that nobody has told us of, all users would share one",
    ),
    Figure(
        "breaker",
        "breaker: 5 consecutive failures open it, for 10 s, then 1 trial",
        ("breaker_failures", "breaker_open_s", "breaker_half_open_max"),
        "the same: the fifth failure in a row opens it, and one success between them starts the count anew. "
        "After 10 s exactly one call is admitted; if it succeeds the breaker is closed, if it fails the "
        "10 s begin again",
    ),
    Figure(
        "degradation",
        "above 80 % load what is not core is shed",
        ("degrade_shed_at", "degrade_samples"),
        "the same for features that are registered as `non_core`, and not by a breaker: nothing is wrong "
        "with what they call. Three samples in a row must say so, and 80 % is not above 80 %. Under the "
        "default policy the load is what the GPU says if requests wait, else the lesser of that and of how "
        "full the gate is",
    ),
    Figure(
        "users",
        "load: 50 users; 50 -> 2000 in steps; think time 100 ms; spikes",
        (),
        "the same, as shapes of the [load lab](load-lab.md): `users:50:60s`, `users:50:2000:8:30s`, "
        "`spike:50:500:60s:30s`. Users who wait for their answers are a closed loop, which reports say; "
        "the other shapes are open loop",
    ),
    Figure(
        "objectives",
        "P99 < 500 ms, errors < 0.5 %, at least 10,000 requests/s",
        (),
        "the same, as `--slo 'p99<500ms,error<0.5%,rps>=10000/s'`; the rate is judged where a control row on "
        "the same machine can reach it",
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

The figures that were asked for at the beginning, and what became of each.
A test asserts every row on the objects that a service runs, with the default settings but for
`POLICY=tiers`, which takes the table literally. Where the default policy, `adaptive`, differs, the row says
how and why; tests assert that, too.
Settings have the prefix `AUTOGLM_THROTTLE_`; [Settings](settings.md) says more about them.

| figure | settings and defaults | how it is taken | test |
|---|---|---|---|
"""


def page() -> str:
    """The whole page as Markdown."""
    rows = [" | ".join(_cells(figure)) for figure in FIGURES]
    lines = "\n".join(f"| {row} |" for row in rows)
    return f"{HEAD}{lines}\n\nThe tests stand in `tests/project/test_founding_figures.py`.\n"


def _cells(figure: Figure) -> tuple[str, ...]:
    defaults = "; ".join(_default(name) for name in figure.settings)
    return figure.asked, defaults, figure.note, f"`test_{figure.name}`"


def _default(name: str) -> str:
    known = SETTINGS[name]
    return f"`{name.upper()}` = `{known.default_text or 'not set'}`"


if __name__ == "__main__":
    print(page(), end="")
