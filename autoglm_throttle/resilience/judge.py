"""What a result says about the dependency; the table of the guide, first match first."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from autoglm_throttle.model import GuardRefused, Outcome

Classify = Callable[[object], Outcome | None]
"""The user's own word on a returned value or an exception; None: go on with the table."""

OWN_MISTAKES: Final = frozenset(
    {
        "CookieConflict",
        "InvalidURL",
        "LocalProtocolError",
        "StreamError",
        "TooManyRedirects",
        "UnsupportedProtocol",
    }
)
"""Exceptions of httpx that are the caller's doing. Known by name, since httpx need not be installed."""

FAILING_STATUSES: Final = frozenset({500, 502, 503, 504})
"""RFC 5861 section 4: the answers that count as errors. 501 and 505 say what a server cannot do at all."""

TEXT_AT_MOST: Final = 200
"""Characters of a failure that are kept: enough for a cause, too little for a body."""

_WEIGHT: Final = (Outcome.FAILURE, Outcome.NEUTRAL, Outcome.SLOW, Outcome.SUCCESS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """What counts as what for one guard.

    Args:
        classify: asked first, for every exception and for every value that a guarded function returns. It
            must answer at once: a coroutine function cannot serve.
        ignore: exceptions that say nothing about the dependency.
        expected: exceptions that are as good as an answer, such as "not found".

    Raises:
        TypeError: ``classify`` is a coroutine function, or what should be an exception class is none.
    """

    classify: Classify | None = None
    ignore: tuple[type[BaseException], ...] = ()
    expected: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        if inspect.iscoroutinefunction(self.classify):
            raise TypeError("classify must answer at once: give it a plain function, no coroutine function")
        for name, kinds in (("ignore", self.ignore), ("expected", self.expected)):
            for kind in kinds:
                if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                    raise TypeError(f"{name} must hold exception classes, not {kind!r}")

    def judge(self, seen: object, *, raised: bool, otherwise: Outcome = Outcome.SUCCESS) -> Outcome:
        """What one result says.

        Args:
            seen: the returned value or the exception.
            raised: whether it was raised. An exception that was returned is a value.
            otherwise: what a returned value is where the user's own word is silent.

        Raises:
            TypeError: ``classify`` answered with something else than an outcome or None. Whatever else it
                raises comes through as well.
        """
        if raised and isinstance(seen, BaseException):
            return self._of_error(seen)
        answer = self._classified(seen)
        return otherwise if answer is None else answer

    def _of_error(self, error: BaseException) -> Outcome:
        if not isinstance(error, Exception) or isinstance(error, GuardRefused):
            return Outcome.NEUTRAL
        answer = self._classified(error)
        if answer is not None:
            return answer
        if isinstance(error, self.ignore):
            return Outcome.NEUTRAL
        if isinstance(error, self.expected):
            return Outcome.SUCCESS
        if isinstance(error, ExceptionGroup):
            return min((self._of_error(leaf) for leaf in error.exceptions), key=_WEIGHT.index)
        return _usual(error)

    def _classified(self, seen: object) -> Outcome | None:
        if self.classify is None:
            return None
        answer = self.classify(seen)
        if answer is None or isinstance(answer, Outcome):
            return answer
        raise TypeError(f"classify must answer with an Outcome or None, not {type(answer).__name__}")


def _usual(error: Exception) -> Outcome:
    if _own_mistake(type(error)):
        return Outcome.NEUTRAL
    status = _status_of(error)
    return Outcome.FAILURE if status is None else status_outcome(status)


def _own_mistake(kind: type[BaseException]) -> bool:
    return any(
        base.__name__ in OWN_MISTAKES and base.__module__.partition(".")[0] == "httpx"
        for base in kind.__mro__
    )


def _status_of(error: Exception) -> int | None:
    """The status of the HTTP answer that an exception stands for; None: it stands for none.

    As clients tell it: ``status_code`` (openai, starlette), ``status`` (aiohttp), or that of their
    ``response`` (httpx, requests).
    """
    try:
        places = (error, "status_code"), (error, "status"), (getattr(error, "response", None), "status_code")
        for holder, name in places:
            status = getattr(holder, name, None)
            if isinstance(status, int) and 400 <= status <= 599:
                return int(status)
    except Exception:  # noqa: BLE001 - of whoever wrote the exception
        return None
    return None


def failure_text(failure: BaseException | str) -> str:
    """Type and text of an exception, never the exception itself: its traceback would keep frames alive.

    Args:
        failure: the exception, or what has failed in words.
    """
    if isinstance(failure, str):
        return failure[:TEXT_AT_MOST]
    try:
        text = str(failure)[:TEXT_AT_MOST]
    except Exception:  # noqa: BLE001 - of whoever wrote the exception
        text = ""
    return f"{type(failure).__name__}: {text}" if text else type(failure).__name__


def status_outcome(status: int) -> Outcome:
    """What the status of an HTTP answer says about the server.

    Args:
        status: 500, 502, 503 and 504 are failures; 429 says that the caller asks too much, which is no
            evidence; any other answer is one.
    """
    if status in FAILING_STATUSES:
        return Outcome.FAILURE
    return Outcome.NEUTRAL if status == 429 else Outcome.SUCCESS


def timed(outcome: Outcome, elapsed_s: float, slow_call_s: float | None) -> Outcome:
    """The outcome, with the time it took.

    Args:
        outcome: only a success can be slow.
        elapsed_s: seconds that the call took.
        slow_call_s: seconds that it may take; None: any.
    """
    if outcome is Outcome.SUCCESS and slow_call_s is not None and elapsed_s > slow_call_s:
        return Outcome.SLOW
    return outcome
