"""Outcomes of calls: classification, a window of the newest ones, and the rules that open a breaker."""

from __future__ import annotations

import inspect
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from autoglm_throttle.resilience.transitions import BreakerEvent
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import GuardRejected, Outcome, TripRule

Classify = Callable[[object], Outcome | None]
"""User function: maps a returned value or an exception to an outcome; None: continue with the table."""

CALLER_ERRORS: Final = {
    *("CookieConflict", "InvalidURL", "LocalProtocolError"),
    *("StreamError", "TooManyRedirects", "UnsupportedProtocol"),
}
"""Exceptions of httpx caused by the caller. Compared by name, since httpx may not be installed."""

FAILING_STATUSES: Final = frozenset({500, 502, 503, 504})
"""Statuses that count as errors (RFC 5861 section 4). 501 and 505 report missing features of the server."""

FAILURE_TEXT_MAX_CHARS: Final = 200
"""Characters kept of a failure's text: enough to identify it, too few for a response body."""

BUCKETS: Final = 10
"""Buckets of a time window: sums use constant memory, but the window's end is blurred by one bucket."""

_SEVERITY_ORDER: Final = (Outcome.FAILURE, Outcome.NEUTRAL, Outcome.SLOW, Outcome.SUCCESS)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeClassifier:
    """Maps results to outcomes for one guard.

    Raises:
        TypeError: ``classify`` is a coroutine function, or an entry is no exception class.
    """

    classify: Classify | None = None
    """Called first, for each exception and each value that a guarded function returns."""
    ignore: tuple[type[BaseException], ...] = ()  # exceptions without information about the dependency
    expected: tuple[type[BaseException], ...] = ()  # exceptions that count as success, such as "not found"

    def __post_init__(self) -> None:
        if inspect.iscoroutinefunction(self.classify):
            raise TypeError("classify must be a plain function, not a coroutine function")
        for name, kinds in (("ignore", self.ignore), ("expected", self.expected)):
            for kind in kinds:
                if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                    raise TypeError(f"{name} must hold exception classes, not {kind!r}")

    def classify_result(self, result: object, *, raised: bool, default: Outcome = Outcome.SUCCESS) -> Outcome:
        """Classify one result; ``default``: outcome of a returned value that ``classify`` leaves open.

        Raises:
            TypeError: ``classify`` returned neither an outcome nor None. Its own exceptions propagate.
        """
        if raised and isinstance(result, BaseException):
            return self._error_outcome(result)
        answer = self._user_outcome(result)
        return default if answer is None else answer

    def _error_outcome(self, error: BaseException) -> Outcome:
        # Cancellation and the rejection of a nested guard say nothing about this dependency.
        if not isinstance(error, Exception) or isinstance(error, GuardRejected):
            return Outcome.NEUTRAL
        answer = self._user_outcome(error)
        if answer is not None:
            return answer
        if isinstance(error, self.ignore):
            return Outcome.NEUTRAL
        if isinstance(error, self.expected):
            return Outcome.SUCCESS
        if isinstance(error, ExceptionGroup):
            # The most severe outcome of a group decides.
            return min((self._error_outcome(leaf) for leaf in error.exceptions), key=_SEVERITY_ORDER.index)
        return _default_outcome(error)

    def _user_outcome(self, result: object) -> Outcome | None:
        answer = None if self.classify is None else self.classify(result)
        if answer is None or isinstance(answer, Outcome):
            return answer
        raise TypeError(f"classify must return an Outcome or None, not {type(answer).__name__}")


def _default_outcome(error: Exception) -> Outcome:
    """Classify an exception that no rule of the user names: by its HTTP status, else as a failure."""
    for base in type(error).__mro__:
        if base.__name__ in CALLER_ERRORS and base.__module__.partition(".")[0] == "httpx":
            return Outcome.NEUTRAL
    # `status_code` of openai and starlette, `status` of aiohttp, `response.status_code` of httpx and others.
    try:
        sources = (error, "status_code"), (error, "status"), (getattr(error, "response", None), "status_code")
        for holder, name in sources:
            status = getattr(holder, name, None)
            if isinstance(status, int) and 400 <= status <= 599:
                return status_outcome(int(status))
    except Exception:  # noqa: BLE001 - properties of a user's exception may raise
        return Outcome.FAILURE
    return Outcome.FAILURE


def failure_text(failure: BaseException | str) -> str:
    """Return type and text of an exception, or the given text, truncated."""
    # Only text is kept: a stored exception would keep the frames of its traceback alive.
    if isinstance(failure, str):
        return failure[:FAILURE_TEXT_MAX_CHARS]
    try:
        text = str(failure)[:FAILURE_TEXT_MAX_CHARS]
    except Exception:  # noqa: BLE001 - properties of a user's exception may raise
        text = ""
    return f"{type(failure).__name__}: {text}" if text else type(failure).__name__


def status_outcome(status: int) -> Outcome:
    """Classify the status of an HTTP response: one of `FAILING_STATUSES` is a failure.

    429 is neutral, since it reports the caller's rate; every other status is a success.
    """
    if status in FAILING_STATUSES:
        return Outcome.FAILURE
    return Outcome.NEUTRAL if status == 429 else Outcome.SUCCESS


def apply_slow_limit(outcome: Outcome, elapsed_s: float, slow_call_s: float | None) -> Outcome:
    """Return the outcome of a call: slow if it succeeded after more than ``slow_call_s``; None: no limit."""
    if outcome is Outcome.SUCCESS and slow_call_s is not None and elapsed_s > slow_call_s:
        return Outcome.SLOW
    return outcome


class OutcomeCounts(NamedTuple):
    """Results in a window."""

    calls: int
    failures: int
    slow: int


class CountWindow:
    """The last ``size`` results, in the order in which the calls ended."""

    __slots__ = ("_failures", "_results", "_slow")

    def __init__(self, size: int) -> None:
        self._results: deque[tuple[bool, bool]] = deque(maxlen=size)
        self._failures = self._slow = 0

    def add(self, failed: bool, slow: bool, now: float) -> OutcomeCounts:
        """Count one result and return the new counts; a full window drops its oldest."""
        results = self._results
        if len(results) == results.maxlen:
            old_failed, old_slow = results[0]
            self._failures -= old_failed
            self._slow -= old_slow
        results.append((failed, slow))
        self._failures += failed
        self._slow += slow
        return self.counts(now)

    def counts(self, now: float) -> OutcomeCounts:  # noqa: ARG002 - a window of time has to know it
        """Return the current counts."""
        return OutcomeCounts(len(self._results), self._failures, self._slow)


@dataclass(slots=True)
class _Bucket:
    start_s: float
    calls: int = 0
    failures: int = 0
    slow: int = 0


class TimeWindow:
    """The results of the last ``length_s`` seconds, in at most `BUCKETS` sums.

    A bucket starts with its first result, collects results for a tenth of the window and expires as a whole:
    each result counts for nine to ten tenths of the window.
    """

    __slots__ = ("_bucket_s", "_length_s", "buckets")

    def __init__(self, length_s: float) -> None:
        self._length_s = length_s
        self._bucket_s = length_s / BUCKETS
        self.buckets: deque[_Bucket] = deque()  # sums of the window, the oldest first

    def add(self, failed: bool, slow: bool, now: float) -> OutcomeCounts:
        """Count one result and return the new counts. A clock that steps back stands still."""
        buckets = self.buckets
        while buckets and now - buckets[0].start_s >= self._length_s:
            buckets.popleft()
        if not buckets or now - buckets[-1].start_s >= self._bucket_s:
            buckets.append(_Bucket(now))
        newest = buckets[-1]
        newest.calls += 1
        newest.failures += failed
        newest.slow += slow
        return self.counts(now)

    def counts(self, now: float) -> OutcomeCounts:
        """Return the current counts. Has no effects."""
        calls = failures = slow = 0
        for bucket in self.buckets:
            if now - bucket.start_s < self._length_s:
                calls += bucket.calls
                failures += bucket.failures
                slow += bucket.slow
        return OutcomeCounts(calls, failures, slow)


class FailureStats:
    """The streak of failures and the window of results of one breaker, and the rules that open it."""

    __slots__ = (
        *("_failure_rate", "_failure_window_s", "_failures", "_first_s", "_min_calls", "_slow_rate"),
        *("_settings", "_window", "last_failure", "streak", "trip_ratio"),
    )

    def __init__(self, settings: BreakerSettings) -> None:
        self.streak: int  # consecutive failures
        self.trip_ratio: str
        """Count and limit of the newest rule that `record` returned, such as ``5/5``; empty after `clear`."""
        self.last_failure: str = ""  # type and text of the newest failure; stays after `clear`
        self._first_s = 0.0
        # Read with each result: an attribute of a pydantic model takes four times as long as one of these.
        self._failure_window_s = math.inf if settings.failure_window_s is None else settings.failure_window_s
        self._min_calls = settings.min_calls
        # The limit of a rule that is not in force is infinite, so it is never reached.
        self._failures = settings.failures if TripRule.CONSECUTIVE in settings.trip else math.inf
        self._failure_rate = settings.failure_rate if TripRule.FAILURE_RATE in settings.trip else math.inf
        self._slow_rate = settings.slow_rate if TripRule.SLOW_RATE in settings.trip else math.inf
        self._settings = settings
        self.clear()

    @property
    def success_is_noop(self) -> bool:
        """Whether one more success would change nothing."""
        return not self.streak and self._window is None

    def counts(self, now: float) -> OutcomeCounts:
        """Return the results in the window; zeros if no rule needs a window."""
        return OutcomeCounts(0, 0, 0) if self._window is None else self._window.counts(now)

    def record(self, failed: bool, slow: bool, now: float) -> BreakerEvent | None:
        """Count one result and return the rule that opens the breaker now, or None."""
        if not failed:
            self.streak = 0
        elif self.streak and now - self._first_s <= self._failure_window_s:
            self.streak += 1
        else:
            self.streak = 1
            self._first_s = now
        if self.streak >= self._failures:
            self.trip_ratio = f"{self.streak}/{self._failures}"
            return BreakerEvent.FAILURES
        return None if self._window is None else self._exceeded_rate(self._window.add(failed, slow, now))

    def clear(self) -> None:
        """Discard all results."""
        self.streak = 0
        self.trip_ratio = ""
        self._window: CountWindow | TimeWindow | None = None
        if not self._settings.trip <= {TripRule.CONSECUTIVE}:
            length_s = self._settings.window_s
            self._window = CountWindow(self._settings.window) if length_s is None else TimeWindow(length_s)

    def _exceeded_rate(self, counts: OutcomeCounts) -> BreakerEvent | None:
        calls, failures, slow = counts
        if calls < self._min_calls:
            return None
        if failures / calls >= self._failure_rate:
            self.trip_ratio = f"{failures}/{calls}"
            return BreakerEvent.FAILURE_RATE
        if slow / calls >= self._slow_rate:
            self.trip_ratio = f"{slow}/{calls}"
            return BreakerEvent.SLOW_RATE
        return None
