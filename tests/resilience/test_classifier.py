"""Classification of results, row by row, in every way of calling."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from autoglm_throttle.resilience.classify import (
    FAILURE_TEXT_MAX_CHARS,
    OutcomeClassifier,
    apply_slow_limit,
    failure_text,
    status_outcome,
)
from autoglm_throttle.types import BreakerCause, BreakerState, GuardRejected, GuardRejection, Outcome
from tests.resilience.faces import BLOCKS, FACES, STREAMS, notified, notifying

SUCCESS, FAILURE, NEUTRAL, SLOW = Outcome.SUCCESS, Outcome.FAILURE, Outcome.NEUTRAL, Outcome.SLOW

REJECTED = GuardRejected(GuardRejection("inner", BreakerState.OPEN, BreakerCause.FAILURES, 3.0))

USERS = OutcomeClassifier(ignore=(KeyError,), expected=(FileNotFoundError,))


class Subclassed(httpx.InvalidURL):
    """A subclass counts by its own type."""


class InvalidURL(Exception):
    """The name alone makes no mistake of the caller's."""


class TransportRejectedError(GuardRejected, httpx.TransportError):
    """As the transports raise it."""


def answered(status: int) -> httpx.HTTPStatusError:
    """As ``raise_for_status`` raises it."""
    request = httpx.Request("GET", "http://db")
    return httpx.HTTPStatusError("", request=request, response=httpx.Response(status, request=request))


class HTTPError(OSError):
    """As requests has it, whose response may be missing."""

    def __init__(self, response: object = None) -> None:
        self.response = response


class OfAnSdk(Exception):
    """As clients of models and of aiohttp tell their status."""

    def __init__(self, **notified: object) -> None:
        self.__dict__.update(notified)


class Opaque(Exception):
    """A foreign exception with unreadable attributes."""

    @property
    def status(self) -> int:
        raise RuntimeError("not now")


PLAIN_ROWS: list[tuple[BaseException, Outcome]] = [
    (asyncio.CancelledError(), NEUTRAL),
    (KeyboardInterrupt(), NEUTRAL),
    (SystemExit(1), NEUTRAL),
    (BaseExceptionGroup("cancelled", [asyncio.CancelledError(), ValueError()]), NEUTRAL),
    (REJECTED, NEUTRAL),
    (TransportRejectedError(REJECTED.rejection), NEUTRAL),
    (answered(404), SUCCESS),
    (answered(429), NEUTRAL),
    (answered(503), FAILURE),
    (HTTPError(httpx.Response(422)), SUCCESS),
    (HTTPError(httpx.Response(500)), FAILURE),
    (HTTPError(), FAILURE),
    (OfAnSdk(status_code=400), SUCCESS),
    (OfAnSdk(status=404), SUCCESS),
    (OfAnSdk(status=502), FAILURE),
    (OfAnSdk(status_code=200), FAILURE),
    (OfAnSdk(status="404"), FAILURE),
    (Opaque(), FAILURE),
    (KeyError("ignored"), NEUTRAL),
    (FileNotFoundError("expected"), SUCCESS),
    (ExceptionGroup("one fails", [KeyError(), OSError(), FileNotFoundError()]), FAILURE),
    (ExceptionGroup("one is ignored", [FileNotFoundError(), KeyError()]), NEUTRAL),
    (ExceptionGroup("all expected", [FileNotFoundError(), FileNotFoundError()]), SUCCESS),
    (ExceptionGroup("deep", [ExceptionGroup("down", [FileNotFoundError(), OSError()])]), FAILURE),
    (ExceptionGroup("refused", [REJECTED, FileNotFoundError()]), NEUTRAL),
    (httpx.UnsupportedProtocol("gopher"), NEUTRAL),
    (httpx.LocalProtocolError("of ours"), NEUTRAL),
    (httpx.InvalidURL("no"), NEUTRAL),
    (Subclassed("no"), NEUTRAL),
    (httpx.CookieConflict("two"), NEUTRAL),
    (httpx.StreamConsumed(), NEUTRAL),
    (httpx.TooManyRedirects("round and round"), NEUTRAL),
    (InvalidURL("another library's"), FAILURE),
    (TimeoutError(), FAILURE),
    (httpx.ConnectTimeout("slow"), FAILURE),
    (httpx.RemoteProtocolError("theirs"), FAILURE),
    (httpx.DecodingError("not gzip"), FAILURE),
    (ValueError("any other"), FAILURE),
]


def name_of(value: object) -> str:
    return type(value).__name__ if isinstance(value, BaseException) else str(value)


@pytest.mark.parametrize(("error", "outcome"), PLAIN_ROWS, ids=name_of)
def test_outcome_of_an_exception(error: BaseException, outcome: Outcome) -> None:
    assert USERS.classify_result(error, raised=True) is outcome


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(("error", "outcome"), PLAIN_ROWS, ids=name_of)
def test_outcome_of_an_exception_in_each_form(face: str, error: BaseException, outcome: Outcome) -> None:
    circuit = notifying(USERS)

    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        FACES[face](circuit, fail)
    assert caught.value is error
    assert notified(circuit) is outcome


def test_exception_kind_precedes_the_classifier() -> None:
    classifier = OutcomeClassifier(classify=lambda _: FAILURE)
    assert classifier.classify_result(REJECTED, raised=True) is NEUTRAL
    assert classifier.classify_result(asyncio.CancelledError(), raised=True) is NEUTRAL


def test_classifier_precedes_the_lists_and_none_falls_through() -> None:
    requested: list[object] = []

    def classify(seen: object) -> Outcome | None:
        requested.append(seen)
        return SUCCESS if isinstance(seen, KeyError) else None

    classifier = OutcomeClassifier(classify=classify, ignore=(KeyError, LookupError))
    known, other = KeyError(), LookupError()
    assert classifier.classify_result(known, raised=True) is SUCCESS
    assert classifier.classify_result(other, raised=True) is NEUTRAL
    assert requested == [known, other]


def test_classifier_sees_a_group_and_then_its_leaves() -> None:
    leaf = OSError()
    group = ExceptionGroup("all", [leaf])
    requested: list[object] = []
    assert OutcomeClassifier(classify=requested.append).classify_result(group, raised=True) is FAILURE
    assert requested == [group, leaf]


def test_slow_result_ranks_between_success_and_no_evidence() -> None:
    words: dict[type[object], Outcome] = {KeyError: NEUTRAL, OSError: SLOW, ValueError: SUCCESS}
    classifier = OutcomeClassifier(classify=lambda seen: words.get(type(seen)))
    assert classifier.classify_result(ExceptionGroup("", [ValueError(), OSError()]), raised=True) is SLOW
    assert classifier.classify_result(ExceptionGroup("", [OSError(), KeyError()]), raised=True) is NEUTRAL


WITH_VALUES = [face for face in FACES if face not in STREAMS and face not in BLOCKS]


@pytest.mark.parametrize("face", WITH_VALUES)
@pytest.mark.parametrize("outcome", Outcome)
def test_classifier_of_returned_values(face: str, outcome: Outcome) -> None:
    circuit = notifying(OutcomeClassifier(classify=lambda seen: outcome if seen == "an answer" else None))
    assert FACES[face](circuit, lambda: "an answer") == "an answer"
    assert notified(circuit) is outcome


@pytest.mark.parametrize("face", WITH_VALUES)
def test_an_exception_that_is_returned_is_a_value(face: str) -> None:
    circuit = notifying(USERS)
    assert isinstance(FACES[face](circuit, OSError), OSError)
    assert notified(circuit) is SUCCESS


@pytest.mark.parametrize("face", [*STREAMS, *BLOCKS])
def test_call_without_value_consults_no_classifier(face: str) -> None:
    requested: list[object] = []
    circuit = notifying(OutcomeClassifier(classify=requested.append))
    FACES[face](circuit, lambda: "an answer")
    assert requested == []
    assert notified(circuit) is SUCCESS


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(("took_s", "outcome"), [(0.5, SUCCESS), (0.5000001, SLOW)])
def test_a_success_that_took_too_long_is_slow(face: str, took_s: float, outcome: Outcome) -> None:
    circuit = notifying(slow_call_s=0.5)
    FACES[face](circuit, lambda: circuit.clock.advance(took_s))  # type: ignore[attr-defined]
    assert notified(circuit) is (SUCCESS if face in STREAMS else outcome)


@pytest.mark.parametrize("face", FACES)
def test_a_failure_is_never_slow(face: str) -> None:
    circuit = notifying(slow_call_s=0.5)

    def fail() -> None:
        circuit.clock.advance(9.0)  # type: ignore[attr-defined]
        raise ConnectionError

    with pytest.raises(ConnectionError):
        FACES[face](circuit, fail)
    assert notified(circuit) is FAILURE


@pytest.mark.parametrize(
    ("answer", "words"), [(True, "not bool"), ("failure", "not str"), ("raises", "the user's own")]
)
@pytest.mark.parametrize("face", FACES)
def test_failing_classifier_is_neutral_counted_and_logged_once(
    face: str, answer: object, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    def classify(_: object) -> Outcome | None:
        if answer == "raises":
            raise RuntimeError("the user's own")
        return answer  # type: ignore[return-value]

    circuit = notifying(OutcomeClassifier(classify=classify))
    error = OSError("the dependency's")

    def fail() -> None:
        raise error

    for _ in range(3):
        with pytest.raises(OSError, match="the dependency's") as caught:
            FACES[face](circuit, fail)
        assert caught.value is error
    assert circuit.view().streak == 1
    assert circuit.view().classifier_errors == 3
    assert len(caplog.records) == 1
    assert words in caplog.text
    circuit.clock.advance(30.0)  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="the dependency's"):
        FACES[face](circuit, fail)
    assert len(caplog.records) == 2


@pytest.mark.parametrize("face", WITH_VALUES)
def test_failing_classifier_does_not_change_the_value(face: str) -> None:
    def classify(_: object) -> Outcome:
        raise RuntimeError

    circuit = notifying(OutcomeClassifier(classify=classify))
    assert FACES[face](circuit, lambda: 7) == 7
    assert notified(circuit) is NEUTRAL


@pytest.mark.parametrize("face", FACES)
def test_interrupted_classifier_frees_the_slot(face: str) -> None:
    def classify(_: object) -> Outcome:
        raise KeyboardInterrupt

    circuit = notifying(OutcomeClassifier(classify=classify))

    def fail() -> None:
        raise OSError

    with pytest.raises(KeyboardInterrupt):
        FACES[face](circuit, fail)
    assert notified(circuit) is NEUTRAL


def test_a_classifier_must_answer_at_once() -> None:
    async def classify(_: object) -> Outcome | None:
        return None

    with pytest.raises(TypeError, match="plain function"):
        OutcomeClassifier(classify=classify)  # type: ignore[arg-type]


@pytest.mark.parametrize("status", range(100, 600))
def test_outcome_of_a_status(status: int) -> None:
    """FIELD 26: Cloudflare's 520 to 530 and an overloaded 529 are failures, too."""
    expected: dict[int, Outcome] = {429: NEUTRAL, 501: SUCCESS, 505: SUCCESS}
    assert status_outcome(status) is expected.get(status, FAILURE if status >= 500 else SUCCESS)


@pytest.mark.parametrize("outcome", Outcome)
def test_only_a_success_can_be_slow(outcome: Outcome) -> None:
    assert apply_slow_limit(outcome, 2.0, 1.0) is (SLOW if outcome is SUCCESS else outcome)
    assert apply_slow_limit(outcome, 2.0, None) is outcome
    assert apply_slow_limit(outcome, 1.0, 1.0) is outcome


def test_caller_classification_applies_without_a_classifier() -> None:
    silent, speaking = OutcomeClassifier(), OutcomeClassifier(classify=lambda _: SUCCESS)
    assert silent.classify_result(503, raised=False, default=FAILURE) is FAILURE
    assert speaking.classify_result(503, raised=False, default=FAILURE) is SUCCESS


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (lambda: ValueError("no such index"), "ValueError: no such index"),
        (ValueError, "ValueError"),
        (lambda: ValueError("x" * 999), "ValueError: " + "x" * FAILURE_TEXT_MAX_CHARS),
        (lambda: "HTTP 503", "HTTP 503"),
        (lambda: "y" * 999, "y" * FAILURE_TEXT_MAX_CHARS),
        (Unspeakable, "Unspeakable"),
    ],
)
def test_failure_text(failure: Callable[[], BaseException | str], text: str) -> None:
    assert failure_text(failure()) == text


@pytest.mark.parametrize("name", ["ignore", "expected"])
def test_non_exception_class_is_an_error(name: str) -> None:
    kinds: dict[str, Any] = {name: ("ValueError",)}
    with pytest.raises(TypeError, match=f"{name} must hold exception classes, not 'ValueError'"):
        OutcomeClassifier(**kinds)
