"""The built-in alerts of a throttle: the rules on its history, and the receivers of the alerts."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Final

from autoglm_throttle._runtime import weak_method
from autoglm_throttle._runtime.fork import rebuild_after_fork
from autoglm_throttle.events import LogEvent, RateLimitedLogger, plain
from autoglm_throttle.observe.anomalies import AnomalyDetector, Baseline
from autoglm_throttle.observe.evaluator import Alert, Evaluator
from autoglm_throttle.observe.metric import AlertsView
from autoglm_throttle.observe.notify import REPEAT_S, AlertReceiver, call_for_each, webhook
from autoglm_throttle.observe.rules import RULES
from autoglm_throttle.observe.series import History
from autoglm_throttle.observe.timer import HistoryTimer, history_timer
from autoglm_throttle.settings import Settings
from autoglm_throttle.throttle import Throttle

_LEVELS: Final = {"info": logging.INFO, "warning": logging.WARNING, "critical": logging.ERROR}

MINUTE_S: Final = 60.0
# By the first letters of the name: smallest deviations, and the ceiling of a utilization.
_BASELINES: Final = {
    "gpu": Baseline(floor=0.02, ceiling=0.97, both_sides=True),
    "lat": Baseline(floor=0.05),
}

LATE_STEPS: Final = 2  # steps left out before the log says so


class Alerts:
    """Evaluates the alert rules at each step of a history and hands the changes to the receivers."""

    def __init__(self, settings: Settings, timer: HistoryTimer) -> None:
        self._settings = settings
        self._timer = timer
        self._receivers: list[AlertReceiver] = []
        url = settings.alerting.webhook_url
        self._webhook = None if url is None else webhook(url.get_secret_value(), settings.store.service)
        self._begin()
        rebuild_after_fork(self, Alerts._begin)
        timer.add_consumer(weak_method(self.step))

    def _begin(self) -> None:
        """Begin anew, at construction and in a forked child: the parent's alerts are the parent's."""
        self.evaluator: Evaluator = Evaluator(self._settings)
        self.anomalies: Anomalies = Anomalies(self._settings)
        self._log = RateLimitedLogger("alerts", lambda: self._timer.history.now_s)
        self._last_s = -math.inf
        self._posted_s = -math.inf
        self._receivers = [AlertReceiver(one.name, one.deliver) for one in self._receivers]
        self._poster = None if self._webhook is None else AlertReceiver("webhook", self._webhook)

    def add_callback(self, callback: Callable[[Alert], object]) -> None:
        """Call a function for each alert that begins or ends to fire, on a thread of its own.

        Its exceptions, and calls of more than 5 s, are counted and logged.
        """
        self._receivers.append(AlertReceiver("callback", partial(call_for_each, callback)))

    def view(self) -> AlertsView:
        """Return the state of all rules and of the dynamic thresholds, for metrics and pages."""
        current = self.evaluator.alerts
        firing = {alert.rule.name for alert in current if alert.state == "firing"}
        by_rule = {rule.name: rule.name in firing for rule in RULES}
        return AlertsView(current, self._timer.is_up, by_rule, self.anomalies.scores())

    def step(self, history: History) -> None:
        """Evaluate the rules at the newest step, log the changes and hand them to the receivers."""
        now = history.now_s
        late_s = now - self._last_s - history.step_s
        if self._last_s > -math.inf and late_s > LATE_STEPS * history.step_s:
            self._log.warn("late", f"the alerts were evaluated {late_s:.0f} s late")
        self._last_s = now
        self.anomalies.step(history)
        changes = self.evaluator.step(history)
        for alert in changes:
            alert_event(alert).write()
        for receiver in self._receivers if changes else ():
            receiver.put(changes)
        self._post(changes, now)

    def _post(self, changes: Sequence[Alert], now: float) -> None:
        """Send all firing alerts, and those that have ended, at each change and once a minute."""
        firing = [alert for alert in self.evaluator.alerts if alert.state == "firing"]
        ended = [alert for alert in changes if alert.state == "resolved"]
        if self._poster is not None and (changes or (firing and now - self._posted_s >= REPEAT_S)):
            self._posted_s = now
            self._poster.put([*firing, *ended])


class Anomalies:
    """The dynamic thresholds of a history: utilization of each GPU, and the 95th percentile of durations."""

    def __init__(self, settings: Settings) -> None:
        self._is_on = settings.alerting.z_rules
        self._plain = settings.alerting.z_plain
        self._detectors: dict[str, AnomalyDetector] = {}
        self._next_s = -math.inf

    def scores(self) -> Mapping[str, tuple[float, float, bool]]:
        """Return score, threshold and state of each series with a score."""
        known = ((name, one.score, one.is_active) for name, one in self._detectors.items())
        return {
            name: (score.z, score.threshold, active) for name, score, active in known if score is not None
        }

    def step(self, history: History) -> None:
        """Update the scores, once a minute."""
        if not self._is_on or history.now_s < self._next_s:
            return
        self._next_s = history.now_s + MINUTE_S - history.step_s / 2.0
        means = dict(_utilization(history)) | {"latency_p95": _latency(history)}
        for name in [name for name in self._detectors if name not in means]:
            del self._detectors[name]
        for name, values in means.items():
            if name not in self._detectors:
                self._detectors[name] = AnomalyDetector(replace(_BASELINES[name[:3]], plain=self._plain))
            self._detectors[name].update(values)


def _utilization(history: History) -> Iterator[tuple[str, list[float | None]]]:
    """Yield the one-minute means of the utilization of each GPU."""
    size = round(MINUTE_S / history.step_s)
    for (gpu,) in history.series("gpu_utilization_ratio"):
        values = history.values("gpu_utilization_ratio", (gpu,))
        minutes = [values[max(0, end - size) : end] for end in range(len(values), 0, -size)]
        known = ([value for value in minute if value is not None] for minute in reversed(minutes))
        yield f"gpu_{gpu}_utilization", [fmean(minute) if minute else None for minute in known]


def _latency(history: History) -> list[float | None]:
    """Return the 95th percentile of each minute."""
    minutes = math.ceil(history.steps * history.step_s / MINUTE_S)
    name, labels = "request_duration_seconds", {"decision": "admitted"}
    offsets = (MINUTE_S * minute for minute in reversed(range(minutes)))
    return [history.quantile(0.95, name, MINUTE_S, offset_s, **labels) for offset_s in offsets]


def alert_event(alert: Alert) -> LogEvent:
    """Build the event of an alert that began or ended to fire."""
    ended = alert.state == "resolved"
    value = "it has no value any more" if alert.value is None else f"value {alert.value:.4g}"
    text = f"alert {alert.rule.name} {'ended' if ended else 'fires'}: {plain(alert.summary)} ({value})"
    labels = {name: plain(label) for name, label in alert.labels.items()}
    keys: dict[str, object] = {
        "alert": alert.rule.name,
        "state": alert.state,
        "value": alert.value,
        "labels": labels,
    }
    return LogEvent("alert", logging.INFO if ended else _LEVELS[alert.rule.severity], text, keys)


def start_alerts(throttle: Throttle, on_alert: Callable[[Alert], object] | None = None) -> Alerts | None:
    """Evaluate the alert rules of a throttle in this process, without Prometheus.

    `metrics_app` calls it, too. There is one evaluation for each throttle, on the thread of its history.

    Args:
        throttle: its settings ``alert_*`` have the thresholds.
        on_alert: called for each alert that begins or ends to fire, on a thread of its own.

    Returns:
        The alerts; None with ``ALERTS=false``.
    """
    if not throttle.settings.observe.alerts:
        return None
    timer = history_timer(throttle)
    if timer.alerts is None:
        timer.alerts = Alerts(throttle.settings, timer)
        timer.start()
    if on_alert is not None:
        timer.alerts.add_callback(on_alert)
    return timer.alerts
