"""Classification of results as outcomes: a table of rules, first match first."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel

from autoglm_throttle.types import GuardRejected, Outcome

# User function: maps a returned value or an exception to an outcome; None: continue with the table.
Classify = Callable[[object], Outcome | None]

# Exceptions of httpx caused by the caller. Compared by name, since httpx may not be installed.
CALLER_ERRORS: Final = {
    *("CookieConflict", "InvalidURL", "LocalProtocolError"),
    *("StreamError", "TooManyRedirects", "UnsupportedProtocol"),
}

# Statuses of a failing server, with those of proxies and clouds (520..530). 501 and 505 report missing
# features of the server.
FAILING_STATUSES: Final = frozenset(range(500, 600)) - {501, 505}

# Types of returned values that cannot have a status; values of other types are examined.
STATUSLESS: Final = frozenset(
    {type(None), bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset}
)

# An attribute of a class by one of these names may give its instances a status, or make them awaitable.
_HOOKS: Final = frozenset({"__await__", "__getattr__", "__getattribute__", "status", "status_code"})
_HOOKLESS: Final = STATUSLESS | {object, BaseModel}  # classes with hooks that give no status

# Type of a returned value -> the attributes that may hold a status: none, those in its ``__dict__``, or any.
_NONE, _OWN, _ANY = range(3)
_types: Final[dict[type, int]] = {}
TYPES_MAX: Final = 1024  # types in the table, which keeps them alive

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

    def classify_result(self, result: object, *, raised: bool, default: Outcome | None = None) -> Outcome:
        """Classify one result.

        ``default`` is the outcome of a returned value that ``classify`` leaves open; None: by its status.
        """
        if raised and isinstance(result, BaseException):
            return self._error_outcome(result)
        answer = self._user_outcome(result)
        return answer or default or (Outcome.SUCCESS if is_plain(result) else value_outcome(result))

    def _error_outcome(self, error: BaseException) -> Outcome:
        # Cancellation and the rejection of a nested guard say nothing about this dependency.
        if not isinstance(error, Exception) or GuardRejected.find(error) is not None:
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
    try:
        status = error_status(error) or error_status(getattr(error, "response", None))
    except Exception:  # noqa: BLE001 - properties of a user's exception may raise
        status = None
    return Outcome.FAILURE if status is None else status_outcome(status)


def is_plain(value: object) -> bool:
    """Whether a returned value has no status and is not awaitable; False: it must be examined.

    The first value of a class is examined, and the result is kept: the class is expected not to change.
    """
    held = _types.get(type(value))
    if held is None:
        held = _learn(type(value))
    if held == _OWN:
        own = value.__dict__
        return "status" not in own and "status_code" not in own
    return held == _NONE


def _learn(kind: type) -> int:
    attributes = {name for base in kind.__mro__ if base not in _HOOKLESS for name in base.__dict__}
    # Of a pydantic model, fields that are not declared stand elsewhere.
    is_open = issubclass(kind, BaseModel) and kind.model_config.get("extra") == "allow"
    if len(_types) >= TYPES_MAX:
        _types.clear()
    has_hooks = is_open or not _HOOKS.isdisjoint(attributes)
    held = _types[kind] = _ANY if has_hooks else _OWN if kind.__dictoffset__ else _NONE
    return held


def value_outcome(value: object) -> Outcome:
    """Classify a returned value that `is_plain` does not know: by its HTTP status, else as a success."""
    try:
        status = error_status(value)
    except Exception:  # noqa: BLE001 - properties of a user's value may raise
        status = None
    return Outcome.SUCCESS if status is None else status_outcome(status)


def error_status(holder: object) -> int | None:
    """Return the HTTP status, 400..599, of an exception or a response; None: it has no such status.

    ``status_code`` is that of openai, starlette, requests and httpx, ``status`` that of aiohttp and urllib3.
    """
    status = getattr(holder, "status_code", None) or getattr(holder, "status", None)
    return int(status) if isinstance(status, int) and 400 <= status <= 599 else None


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
