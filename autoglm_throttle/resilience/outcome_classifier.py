"""Classification of results as outcomes: a table of rules, first match first."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from autoglm_throttle.types import GuardRejected, Outcome

Classify = Callable[[object], Outcome | None]
"""User function: maps a returned value or an exception to an outcome; None: continue with the table."""

CALLER_ERRORS: Final = frozenset(
    {
        "CookieConflict",
        "InvalidURL",
        "LocalProtocolError",
        "StreamError",
        "TooManyRedirects",
        "UnsupportedProtocol",
    }
)
"""Exceptions of httpx caused by the caller. Compared by name, since httpx may not be installed."""

FAILING_STATUSES: Final = frozenset({500, 502, 503, 504})
"""Statuses that count as errors (RFC 5861 section 4). 501 and 505 report missing features of the server."""

FAILURE_TEXT_MAX_CHARS: Final = 200
"""Characters kept of a failure's text: enough for a cause, too few for a body."""

_SEVERITY_ORDER: Final = (Outcome.FAILURE, Outcome.NEUTRAL, Outcome.SLOW, Outcome.SUCCESS)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeClassifier:
    """Maps results to outcomes for one guard.

    Args:
        classify: called first, for each exception and each value that a guarded function returns. It must be
            a plain function: a coroutine function is rejected.
        ignore: exceptions without information about the dependency.
        expected: exceptions that count as success, such as "not found".

    Raises:
        TypeError: ``classify`` is a coroutine function, or an entry is no exception class.
    """

    classify: Classify | None = None
    ignore: tuple[type[BaseException], ...] = ()
    expected: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        if inspect.iscoroutinefunction(self.classify):
            raise TypeError("classify must be a plain function, not a coroutine function")
        for name, kinds in (("ignore", self.ignore), ("expected", self.expected)):
            for kind in kinds:
                if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                    raise TypeError(f"{name} must hold exception classes, not {kind!r}")

    def classify_result(self, result: object, *, raised: bool, default: Outcome = Outcome.SUCCESS) -> Outcome:
        """Classify one result.

        Args:
            result: the returned value or the exception.
            raised: whether the result was raised. A returned exception is a value.
            default: outcome of a returned value if the user's classifier returns None.

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
        if self.classify is None:
            return None
        answer = self.classify(result)
        if answer is None or isinstance(answer, Outcome):
            return answer
        raise TypeError(f"classify must return an Outcome or None, not {type(answer).__name__}")


def _default_outcome(error: Exception) -> Outcome:
    if _is_caller_error(type(error)):
        return Outcome.NEUTRAL
    status = _status_of(error)
    return Outcome.FAILURE if status is None else status_outcome(status)


def _is_caller_error(kind: type[BaseException]) -> bool:
    return any(
        base.__name__ in CALLER_ERRORS and base.__module__.partition(".")[0] == "httpx"
        for base in kind.__mro__
    )


def _status_of(error: Exception) -> int | None:
    """Return the HTTP status that an exception stands for, or None.

    Looks at ``status_code`` (openai, starlette), ``status`` (aiohttp), and ``response.status_code`` (httpx,
    requests).
    """
    try:
        sources = (error, "status_code"), (error, "status"), (getattr(error, "response", None), "status_code")
        for holder, name in sources:
            status = getattr(holder, name, None)
            if isinstance(status, int) and 400 <= status <= 599:
                return int(status)
    except Exception:  # noqa: BLE001 - properties of a user's exception may raise
        return None
    return None


def failure_text(failure: BaseException | str) -> str:
    """Return type and text of an exception.

    Args:
        failure: the exception, or a text.
    """
    # Only text is kept: a stored exception would keep the frames of its traceback alive.
    if isinstance(failure, str):
        return failure[:FAILURE_TEXT_MAX_CHARS]
    try:
        text = str(failure)[:FAILURE_TEXT_MAX_CHARS]
    except Exception:  # noqa: BLE001 - properties of a user's exception may raise
        text = ""
    return f"{type(failure).__name__}: {text}" if text else type(failure).__name__


def status_outcome(status: int) -> Outcome:
    """Classify the status of an HTTP response.

    Args:
        status: 500, 502, 503 and 504 are failures; 429 is neutral, since it reports the caller's rate; every
            other status is a success.
    """
    if status in FAILING_STATUSES:
        return Outcome.FAILURE
    return Outcome.NEUTRAL if status == 429 else Outcome.SUCCESS


def apply_slow_limit(outcome: Outcome, elapsed_s: float, slow_call_s: float | None) -> Outcome:
    """Return the outcome, adjusted for the duration of the call.

    Args:
        outcome: only a success can be slow.
        elapsed_s: duration of the call in seconds.
        slow_call_s: seconds above which a call is slow; None: no limit.
    """
    if outcome is Outcome.SUCCESS and slow_call_s is not None and elapsed_s > slow_call_s:
        return Outcome.SLOW
    return outcome
