"""Classification of results as outcomes: a table of rules, first match first."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from autoglm_throttle.types import GuardRejected, Outcome

# User function: maps a returned value or an exception to an outcome; None: continue with the table.
Classify = Callable[[object], Outcome | None]

# Exceptions of httpx caused by the caller. Compared by name, since httpx may not be installed.
CALLER_ERRORS: Final = {
    *("CookieConflict", "InvalidURL", "LocalProtocolError"),
    *("StreamError", "TooManyRedirects", "UnsupportedProtocol"),
}

# Statuses that count as errors (RFC 5861 section 4). 501 and 505 report missing features of the server.
FAILING_STATUSES: Final = frozenset({500, 502, 503, 504})

# Characters kept of a failure's text: enough to identify it, too few for a response body.
FAILURE_TEXT_MAX_CHARS: Final = 200

_SEVERITY_ORDER: Final = (Outcome.FAILURE, Outcome.NEUTRAL, Outcome.SLOW, Outcome.SUCCESS)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeClassifier:
    """Maps results to outcomes for one guard."""

    # Called first, for each exception and each value that a guarded function returns.
    classify: Classify | None = None
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
        """Classify one result; ``default``: outcome of a returned value that ``classify`` leaves open."""
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
