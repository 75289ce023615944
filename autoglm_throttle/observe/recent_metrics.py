"""Metrics of the last minute for readers without PromQL, of the models, and of the built-in alerts."""

from __future__ import annotations

from itertools import product
from typing import Final

from autoglm_throttle.observe.metric import MetricsInput, MetricSpec, ReadRows, Rows, gauge
from autoglm_throttle.observe.series import History
from autoglm_throttle.types import Outcome, Priority

WINDOW_S: Final = 60.0
QUANTILES: Final = (0.5, 0.95, 0.99)
_MAX_AGE_STEPS: Final = 3
_STREAMS: Final = ("time_to_first_token_seconds", "inter_token_latency_seconds")


def _history(inputs: MetricsInput) -> History | None:
    """Return the history, unless nothing was recorded in the last steps: its last minute has passed."""
    history, now = inputs.history, inputs.snapshot.taken_at_s
    return None if history is None or now - history.now_s > _MAX_AGE_STEPS * history.step_s else history


def _latency(inputs: MetricsInput) -> Rows:
    history = _history(inputs)
    if history is None:
        return
    for priority, share in product(Priority, QUANTILES):
        found = history.quantile(share, "request_duration_seconds", WINDOW_S, priority=priority.label)
        if found is not None:
            yield (priority.label, f"{100 * share:g}"), found


def _errors(inputs: MetricsInput) -> Rows:
    history = _history(inputs)
    ended = {} if history is None else history.increase("outcomes", WINDOW_S)
    for priority in Priority:
        counts = {outcome: ended.get((priority.label, outcome), 0.0) for outcome in Outcome}
        measured = sum(counts.values()) - counts[Outcome.NEUTRAL]
        if measured:
            yield (priority.label,), counts[Outcome.FAILURE] / measured


def _tokens(inputs: MetricsInput) -> Rows:
    history = _history(inputs)
    if history is None:
        return
    seconds = min(WINDOW_S, (history.steps - 1) * history.step_s)
    engines = history.increase("engine_tokens", WINDOW_S)
    if engines:
        yield ("engines",), sum(engines.values()) / seconds
    events = [history.counts(name, WINDOW_S) for name in _STREAMS]
    if any(counts is not None for counts in events):
        yield ("streams",), sum(sum(counts or ()) for counts in events) / seconds


def _effects(inputs: MetricsInput) -> Rows:
    for effect in () if inputs.models is None else inputs.models.latency.effects:
        if effect.seconds is not None:
            yield (effect.resource,), effect.seconds


def _known_effects(inputs: MetricsInput) -> Rows:
    for effect in () if inputs.models is None else inputs.models.latency.effects:
        yield (effect.resource,), float(effect.silence is None)


def _leaks(inputs: MetricsInput) -> Rows:
    for leak in () if inputs.models is None else inputs.models.leaks:
        if leak.bytes_per_hour is not None:
            yield (leak.what,), leak.bytes_per_hour


def _alerts(inputs: MetricsInput) -> Rows:
    firing = {} if inputs.alerts is None else inputs.alerts.firing
    return [((name,), float(fires)) for name, fires in firing.items()]


def _scores(position: int) -> ReadRows:
    """Make a series for each baseline, of one of the figures of its score."""

    def rows(inputs: MetricsInput) -> Rows:
        scores = {} if inputs.alerts is None else inputs.alerts.scores
        return [((name,), float(score[position])) for name, score in scores.items()]

    return rows


RECENT_METRICS: Final[tuple[MetricSpec, ...]] = (  # In the order of the page
    gauge(
        "latency_seconds",
        "Percentiles 50, 95 and 99 of request_duration_seconds in the last 60 s, linear inside a bucket. "
        "Those of several processes cannot be combined: take quantiles of the histogram.",
        _latency,
        "priority percentile",  # promtool keeps the label quantile to summaries
    ),
    gauge(
        "error_ratio", "Share of failures in the requests that ended in the last 60 s.", _errors, "priority"
    ),
    gauge(
        "tokens_per_second",
        "Tokens of the last 60 s per second, by source: engines, whose tokens read count, too, and streams, "
        "of which each event with data counts as one.",
        _tokens,
        "source",
    ),
    gauge(
        "latency_effect_seconds",
        "Change of the mean latency with ten points more of a resource; absent while it is not known.",
        _effects,
        "resource",
    ),
    gauge("latency_effect_known", "1 while the effect of the resource is known.", _known_effects, "resource"),
    gauge(
        "leak_bytes_per_hour",
        "Growth of memory that load does not explain, 0 without a leak; absent for the first 45 minutes.",
        _leaks,
        "what",
    ),
    gauge(
        "alerts_up",
        "1 while the built-in alerts are evaluated, 0 after a failed step; absent where they are off.",
        lambda inputs: [] if inputs.alerts is None else [((), float(inputs.alerts.up))],
    ),
    gauge("alert_active", "1 while an alert of the built-in rule fires.", _alerts, "alert"),
    gauge(
        "anomaly_score",
        "Distance of the last minute from the half hour before, in deviations. It informs only: load is "
        "correlated in time, so that a large score is no rare event.",
        _scores(0),
        "series",
    ),
    gauge(
        "dynamic_threshold",
        "Value at which the series would be unusual, in its own unit.",
        _scores(1),
        "series",
    ),
    gauge("anomaly_active", "1 while the series has been unusual for five minutes.", _scores(2), "series"),
)
