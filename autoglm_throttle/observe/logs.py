"""Formats each log record as one JSON object on one line."""

from __future__ import annotations

import json
import logging
import math
import sys
from datetime import UTC, datetime
from typing import Any, Final

TEXT_AT_MOST = 2000  # Maximum characters of one value; tracebacks are the longest, and must not flood the log

# Attributes of every record; all others came in ``extra`` and are printed.
_OWN: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Prints a record as one JSON object on one line, in ASCII.

    First ``time`` (UTC), ``level``, ``logger`` and ``message``, then the keys that came in ``extra``:
    for this library ``event`` and those of the event. In a trace of OpenTelemetry ``trace_id`` and
    ``span_id`` follow, then ``exception`` and ``stack`` where the record has them.
    Line ends and control characters are escaped, so no value can begin a line of its own.
    A number outside JSON, such as an infinite wait, is null; any other value outside JSON is printed as text.

    How to use it::

        import logging
        from autoglm_throttle.observe import JsonFormatter

        handler = logging.StreamHandler()
        handler.setFormatter(JsonFormatter())
        logger = logging.getLogger("autoglm_throttle")
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)

    With structlog the same keys come out of its ``ProcessorFormatter`` with ``ExtraAdder``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without a line end."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _plain(record.getMessage()),
        }
        for key, value in record.__dict__.items():
            if key not in _OWN:
                line.setdefault(key, _plain(value))
        for key, value in _trace_ids().items():
            line.setdefault(key, value)
        if record.exc_info:
            line["exception"] = _plain(self.formatException(record.exc_info))
        if record.stack_info:
            line["stack"] = _plain(self.formatStack(record.stack_info))
        return json.dumps(line, separators=(",", ":"))


def _trace_ids() -> dict[str, str]:
    """Return the ids of the active span, if this process uses OpenTelemetry."""
    trace = sys.modules.get("opentelemetry.trace")
    context = None if trace is None else trace.get_current_span().get_span_context()
    if context is None or not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


def _plain(value: object) -> object:
    """Convert the value to types of JSON."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    text = str(value)
    return text if len(text) <= TEXT_AT_MOST else text[: TEXT_AT_MOST - 1] + "…"
