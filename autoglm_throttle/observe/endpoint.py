"""Serves the path ``/metrics``, and makes the collector for your own registry."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from starlette.responses import PlainTextResponse
from starlette.websockets import WebSocketClose

from autoglm_throttle._runtime import how_to_install
from autoglm_throttle.asgi.marks import exempt
from autoglm_throttle.events import LOGGER
from autoglm_throttle.observe.alerts import start_alerts
from autoglm_throttle.settings import ConfigError, MetricsExport, Problem

if TYPE_CHECKING:
    from prometheus_client.registry import Collector
    from starlette.types import ASGIApp, Receive, Scope, Send

    from autoglm_throttle.observe.metric import RecorderProtocol
    from autoglm_throttle.throttle import Throttle

# Header fields that matter for a scrape; no other reaches the exporter.
UNDERSTOOD: Final = (b"accept", b"accept-encoding")


def collector(throttle: Throttle, recorder: RecorderProtocol | None = None) -> Collector:
    """Make a collector for a registry of prometheus-client.

    It reads ``throttle.snapshot()`` at each scrape: with several workers, the counts of this one alone. It
    does not take part in the multi-process mode of prometheus-client, which leaves custom collectors out.

    Args:
        throttle: source of the counts.
        recorder: a ``traffic.record.Recorder`` as a further source; None: there is none.

    Raises:
        ConfigError: prometheus-client is not installed.
    """
    _check_installed()
    from autoglm_throttle.observe.prometheus import SnapshotCollector

    return SnapshotCollector(throttle, recorder)


def metrics_app(throttle: Throttle, recorder: RecorderProtocol | None = None) -> MetricsApp:
    """Make the ASGI app to be mounted at ``/metrics``.

    Under every path it answers with the metrics of this process. With several workers on this host, counts
    and loads are those of all of them, at most 5 s ago; all other metrics are those of this process. It
    starts the built-in alerts, as `start_alerts` does.

    Args:
        throttle: source of the counts. With ``METRICS=off``, or ``auto`` and no prometheus-client,
            the app answers 404 with the reason.
        recorder: a ``traffic.record.Recorder`` as a further source; None: there is none.

    Raises:
        ConfigError: ``METRICS=prometheus``, and prometheus-client is not installed.
    """
    start_alerts(throttle)
    wanted = throttle.settings.observe.metrics
    if wanted is MetricsExport.OFF:
        return MetricsApp(_not_found("metrics are off (METRICS=off)"))
    if wanted is MetricsExport.AUTO and not _installed():
        return MetricsApp(_not_found(f"metrics need prometheus-client: {how_to_install('prometheus')}"))
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        LOGGER.warning("PROMETHEUS_MULTIPROC_DIR is set; /metrics does not use it: set WORKERS for totals")
    return MetricsApp(_exporter(throttle, recorder))


class MetricsApp:
    """ASGI app made by `metrics_app`, exempt from the throttle wherever it is mounted.

    A mount redirects ``/metrics`` to ``/metrics/``, which is not among ``EXEMPT_PATHS``. Without the mark,
    metrics would be rejected under overload, exactly when operators need them.

    Args:
        answer: the ASGI app that answers GET and HEAD.
    """

    def __init__(self, answer: ASGIApp) -> None:
        self._answer = answer
        exempt(self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        kind = scope["type"]
        if kind == "websocket":
            await WebSocketClose()(scope, receive, send)
        elif kind == "http" and scope["method"] in {"GET", "HEAD"}:
            await self._answer(_sanitized(scope), receive, send)
        elif kind == "http":
            response = PlainTextResponse("Method Not Allowed", 405, {"allow": "GET, HEAD"})
            await response(scope, receive, send)


def _installed() -> bool:
    return find_spec("prometheus_client") is not None


def _check_installed() -> None:
    if not _installed():
        raise ConfigError(
            [Problem("METRICS", "prometheus-client is not installed", how_to_install("prometheus"))]
        )


def _not_found(text: str) -> ASGIApp:
    return PlainTextResponse(text + "\n", 404)


def _exporter(throttle: Throttle, recorder: RecorderProtocol | None) -> ASGIApp:
    _check_installed()
    # Imported here: prometheus-client is optional.
    from prometheus_client import CollectorRegistry, make_asgi_app

    from autoglm_throttle.observe.prometheus import SnapshotCollector
    from autoglm_throttle.observe.timer import history_timer

    history_timer(throttle).start()  # from the start on: other workers need the counts of this one
    registry = CollectorRegistry()
    registry.register(SnapshotCollector(throttle, recorder, all_workers=True))
    app: ASGIApp = make_asgi_app(registry)
    return app


def _sanitized(scope: Scope) -> Scope:
    """Return a scope with ASCII only: the exporter raises at bytes that are no text."""
    query = scope.get("query_string") or b""
    headers = [(name, value) for name, value in scope["headers"] if name in UNDERSTOOD and value.isascii()]
    return {**scope, "headers": headers, "query_string": query if query.isascii() else b""}
