"""Receivers of alerts, each on a thread of its own: a slow one delays no other and no evaluation."""

from __future__ import annotations

import json
import socket
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final

from autoglm_throttle._runtime import weak_method
from autoglm_throttle._runtime.worker import WAIT_MAX_S, Worker
from autoglm_throttle.events import RateLimitedLogger
from autoglm_throttle.observe.evaluator import Alert

DELIVERY_S: Final = 5.0  # a delivery that takes longer is counted as an error, and logged
REPEAT_S: Final = 60.0  # firing alerts are sent again, as Prometheus does: Alertmanager forgets others
WAITING_MOST: Final = 100  # deliveries that wait; of more the oldest are dropped

Deliver = Callable[[Sequence[Alert]], object]


class AlertReceiver:
    """Delivers alerts in their order, on a thread that exists while there are any.

    Args:
        name: of the receiver, for the log.
        deliver: may block and may raise.
        clock: monotonic seconds.
    """

    def __init__(self, name: str, deliver: Deliver, clock: Callable[[], float] = time.monotonic) -> None:
        self.errors: int = 0
        """Deliveries that failed, took too long, or were dropped."""
        self.name: Final = name
        self.deliver: Final = deliver
        self._clock = clock
        self._log = RateLimitedLogger("alerts", clock)
        self._waiting: deque[Sequence[Alert]] = deque(maxlen=WAITING_MOST)
        self._worker = Worker(f"autoglm-throttle alerts {name}", weak_method(self._step))
        self._worker.stop_with(self)

    def put(self, alerts: Sequence[Alert]) -> None:
        """Deliver alerts soon; returns at once."""
        if len(self._waiting) == WAITING_MOST:
            self._record_error("it is too slow, alerts were dropped")
        self._waiting.append(alerts)
        self._worker.start()
        self._worker.wake()

    def flush(self) -> None:
        """Deliver all that wait, in the caller."""
        while self._waiting:
            started_s = self._clock()
            try:
                self.deliver(self._waiting.popleft())
            except Exception as error:  # noqa: BLE001 - the code of a user, or the network
                self._record_error(repr(error))
            else:
                took_s = self._clock() - started_s
                if took_s > DELIVERY_S:
                    self._record_error(f"it took {took_s:.1f} s")

    def _step(self) -> float:
        self.flush()
        return WAIT_MAX_S

    def _record_error(self, text: str) -> None:
        self.errors += 1
        self._log.warn(self.name, f"{self.name}: {text}")


def call_for_each(callback: Callable[[Alert], object], alerts: Sequence[Alert]) -> None:
    """Call a function once for each alert."""
    for alert in alerts:
        callback(alert)


def webhook(url: str, job: str) -> Deliver:
    """Make a function that posts alerts to an Alertmanager, or to a service that speaks its version 2."""
    return partial(_post, url, {"job": job, "instance": socket.gethostname()})


def _post(url: str, labels: dict[str, str], alerts: Sequence[Alert]) -> None:
    body = json.dumps([as_alertmanager(alert, labels) for alert in alerts]).encode()
    request = urllib.request.Request(url, body, {"content-type": "application/json"})  # noqa: S310 - checked
    with urllib.request.urlopen(request, timeout=DELIVERY_S):  # noqa: S310 - the setting allows http(s) only
        pass


def as_alertmanager(
    alert: Alert, labels: dict[str, str], now_wall_s: float | None = None
) -> dict[str, object]:
    """Return an alert as an object of Alertmanager's ``POST /api/v2/alerts``.

    A firing alert ends by itself after four repetitions that did not come, as those of Prometheus do.
    """
    wall_s = time.time() if now_wall_s is None else now_wall_s
    ends_s = wall_s if alert.state == "resolved" else wall_s + 4.0 * REPEAT_S
    names = {"alertname": alert.rule.alert_name, "severity": alert.rule.severity}
    return {
        "labels": labels | dict(alert.labels) | names,
        "annotations": {"summary": alert.summary, "runbook_url": alert.rule.runbook},
        "startsAt": _rfc3339(wall_s if alert.fired_wall_s is None else alert.fired_wall_s),
        "endsAt": _rfc3339(ends_s),
    }


def _rfc3339(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="milliseconds")
