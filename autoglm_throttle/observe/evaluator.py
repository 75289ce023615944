"""The evaluator of alert rules: the state machine of Prometheus on one history, without Prometheus."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from autoglm_throttle.observe.rules import RULES, Rule
from autoglm_throttle.observe.series import History, Labels
from autoglm_throttle.settings import Settings

# An alert fires on for this time after its expression has ended to hold, so that it does not flap.
KEEP_FIRING_S: Final = 60.0

AlertState = Literal["pending", "firing"]


@dataclass(frozen=True, slots=True)
class Alert:
    """A pending or firing alert, or one that has just ended."""

    rule: Rule
    labels: Mapping[str, str]
    summary: str
    """The sentence of the rule, with the values of its labels."""
    state: AlertState | Literal["resolved"]
    value: float | None
    """Newest value of the expression; None: it has none any more, since the device or source is gone."""
    since_s: float
    """Monotonic time since which the expression holds."""
    fired_wall_s: float | None = None
    """Unix time at which it began to fire."""
    kept_since_s: float | None = None
    """Monotonic time at which a firing alert ceased to hold; None: it holds."""


class Evaluator:
    """Evaluates the rules on each step of a history, and returns the alerts that began or ended to fire.

    An alert is pending while its expression holds, and fires once it has held for the rule's duration, both
    ends included. A missing value ends it, as a value below the threshold does. After a start every duration
    begins anew.
    """

    def __init__(self, settings: Settings, rules: Sequence[Rule] = RULES) -> None:
        self._settings = settings
        self._rules: list[tuple[Rule, dict[Labels, Alert]]] = [(rule, {}) for rule in rules]

    @property
    def alerts(self) -> tuple[Alert, ...]:
        """All pending and firing alerts."""
        return tuple(alert for _, alerts in self._rules for alert in list(alerts.values()))

    def step(self, history: History) -> list[Alert]:
        """Evaluate all rules at the newest step of the history."""
        changes: list[Alert] = []
        for rule, alerts in self._rules:
            values, for_s = rule.value(history), rule.duration_s(self._settings)
            holding = rule.holding(values, self._settings)
            for labels in [labels for labels in alerts if labels not in holding]:
                changes.extend(_end(alerts, labels, values.get(labels), history.now_s))
            for labels, value in holding.items():
                alert = alerts.get(labels) or _new(rule, labels, history.now_s)
                if value != alert.value or alert.kept_since_s is not None:
                    alert = replace(alert, value=value, kept_since_s=None)
                if alert.state == "pending" and history.now_s - alert.since_s >= for_s:
                    alert = replace(alert, state="firing", fired_wall_s=history.wall_s)
                    changes.append(alert)
                alerts[labels] = alert
        return changes


def _end(alerts: dict[Labels, Alert], labels: Labels, value: float | None, now: float) -> Iterator[Alert]:
    """Remove an alert that does not hold, unless it fires on for a while."""
    kept_since_s = alerts[labels].kept_since_s
    alert = replace(alerts[labels], value=value, kept_since_s=now if kept_since_s is None else kept_since_s)
    if alert.state == "pending":
        del alerts[labels]
    elif kept_since_s is None or now - kept_since_s < KEEP_FIRING_S:
        alerts[labels] = alert
    else:
        del alerts[labels]
        yield replace(alert, state="resolved")


def _new(rule: Rule, labels: Labels, now: float) -> Alert:
    named = dict(zip(rule.labels, labels, strict=True))
    summary = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda match: named[match[1]], rule.summary)
    return Alert(rule, named, summary, "pending", None, now)
