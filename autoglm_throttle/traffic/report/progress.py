"""Formats the progress line of a running load test. The time is passed in."""

from __future__ import annotations

from autoglm_throttle.traffic.histogram import Histogram
from autoglm_throttle.traffic.report.formatting import duration
from autoglm_throttle.traffic.request_log import RequestResult

TERMINAL_S = 1.0
"""Seconds between two updates of the line on a terminal."""

PLAIN_S = 10.0
"""Seconds between two lines in a log."""

_RETURN, _CLEAR = "\r", "\x1b[K"


class ProgressLine:
    """Counts results as they happen and formats the progress of the run.

    Args:
        planned: requests of the plan; 0 for a closed loop, where it is not known.
        duration_s: length of the plan.
        terminal: True: rewrite one line; False: add a line now and then.
        width: columns of the terminal; longer lines are truncated, since they would break the rewriting.
    """

    def __init__(self, planned: int, duration_s: float, *, terminal: bool, width: int = 80) -> None:
        self._planned = planned
        self._duration_s = duration_s
        self._terminal = terminal
        self._width = width
        self._every_s = TERMINAL_S if terminal else PLAIN_S
        self._due_s = self._every_s
        self._outcomes = [0] * len(RequestResult)
        self._recent_s: list[float] = []

    def record(self, index: int, outcome: RequestResult, response_s: float) -> None:  # noqa: ARG002 - an observer's
        """Count one result; called by a generator."""
        self._outcomes[outcome] += 1
        if outcome <= RequestResult.DEGRADED:
            self._recent_s.append(response_s)

    def line(self, elapsed_s: float, launched: int, in_flight: int, lag_s: float | None = None) -> str:
        """Return the text to write now, including control characters; empty when no update is due.

        Args:
            elapsed_s: seconds since the first intended start.
            launched: requests launched so far.
            in_flight: requests sent and not ended.
            lag_s: delay of the last launch; None if unknown.
        """
        if elapsed_s < self._due_s:
            return ""
        # Missed updates are skipped, not caught up.
        self._due_s += self._every_s * (1 + (elapsed_s - self._due_s) // self._every_s)
        text = self._text(elapsed_s, launched, in_flight, lag_s)
        self._recent_s.clear()
        return f"{_RETURN}{text[: self._width - 1]}{_CLEAR}" if self._terminal else f"{text}\n"

    def close(self) -> str:
        """Return the text that clears the progress line, so that further output starts on an empty line."""
        return f"{_RETURN}{_CLEAR}" if self._terminal else ""

    def _text(self, elapsed_s: float, launched: int, in_flight: int, lag_s: float | None) -> str:
        outcomes = self._outcomes
        planned = f"/{self._planned}" if self._planned else ""
        recent = Histogram()
        recent.record_all(self._recent_s)
        p50_s, p99_s = recent.percentiles((0.5, 0.99))
        length_s = self._duration_s
        when = (
            f"{elapsed_s:.0f}/{length_s:.0f} s" if elapsed_s <= length_s else f"{elapsed_s:.0f} s, all sent"
        )
        late = "" if lag_s is None else f"  lag {duration(lag_s)}"
        return (
            f"{when}  sent {launched}{planned}"
            f"  done {sum(outcomes[: RequestResult.CONNECTION])}  in flight {in_flight}"
            f"  p50 {duration(p50_s)}  p99 {duration(p99_s)}"
            f"  429 {outcomes[RequestResult.LIMITED]}  503 {outcomes[RequestResult.SHED]}"
            f"  errors {sum(outcomes[RequestResult.CLIENT_ERROR :])}{late}"
        )
