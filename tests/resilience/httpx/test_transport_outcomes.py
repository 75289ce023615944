"""Outcomes of calls through a guarded transport, and rejections as seen by callers."""

from __future__ import annotations

from hashlib import sha256

import anyio
import httpx
import pytest

from autoglm_throttle.resilience.classify import OutcomeClassifier
from autoglm_throttle.resilience.httpx import AsyncGuardTransport, GuardTransport, TransportRejected, origin
from autoglm_throttle.resilience.transitions import BreakerEvent
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.settings.policies import GUARD_NAME
from autoglm_throttle.types import (
    BreakerCause,
    BreakerState,
    GuardRejected,
    GuardRejection,
    Outcome,
    ThrottleError,
    TooManyRequestsMode,
)
from tests.resilience.httpx.guarded_calls import FACES, URL, Guarded, Parts, call, ok, raising, status

SUCCESS, FAILURE, NEUTRAL = Outcome.SUCCESS, Outcome.FAILURE, Outcome.NEUTRAL
REJECTION = GuardRejection("other", BreakerState.OPEN, BreakerCause.FAILURES, 3.0)

pytestmark = [
    pytest.mark.parametrize("face", FACES),
    # Who leaves a stream early leaves generators of httpx behind, and trio says so; none is ours.
    pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in. <async_generator object (Bound|Response)"),
]


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (200, SUCCESS),
        (204, SUCCESS),
        (301, SUCCESS),
        (304, SUCCESS),
        (400, SUCCESS),
        (404, SUCCESS),
        (429, NEUTRAL),
        (500, FAILURE),
        (501, SUCCESS),
        (502, FAILURE),
        (503, FAILURE),
        (504, FAILURE),
        (505, SUCCESS),
        *((code, FAILURE) for code in (506, 507, 511, *range(520, 531), 599)),  # FIELD 26
    ],
)
def test_each_status(face: str, code: int, outcome: Outcome) -> None:
    guarded = Guarded()
    response = call(face, guarded, status(code))
    assert (response.status_code, response.content) == (code, b"said")
    assert guarded.outcomes == [outcome]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (httpx.ConnectError("x"), FAILURE),
        (httpx.ConnectTimeout("x"), FAILURE),
        (httpx.ReadTimeout("x"), FAILURE),
        (httpx.PoolTimeout("x"), FAILURE),
        (httpx.RemoteProtocolError("x"), FAILURE),
        (httpx.DecodingError("x"), FAILURE),
        (OSError("x"), FAILURE),
        (httpx.UnsupportedProtocol("x"), NEUTRAL),
        (httpx.LocalProtocolError("x"), NEUTRAL),
        (httpx.InvalidURL("x"), NEUTRAL),
        (GuardRejected(REJECTION), NEUTRAL),
        (TransportRejected(REJECTION, httpx.Request("GET", URL)), NEUTRAL),
        (KeyboardInterrupt(), NEUTRAL),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_each_exception_comes_through_and_counts(face: str, error: BaseException, outcome: Outcome) -> None:
    guarded = Guarded()
    with pytest.raises(type(error)) as caught:
        call(face, guarded, raising(error))
    assert caught.value is error
    assert guarded.outcomes == [outcome]


def test_a_failing_status_counts_at_its_headers(face: str) -> None:
    guarded = Guarded()
    call(face, guarded, status(503), parts=0)
    assert guarded.outcomes == [FAILURE]
    assert guarded.view().last_failure == "HTTP 503"


def test_a_good_status_counts_at_the_end_of_the_body(face: str) -> None:
    guarded = Guarded()
    seen: list[list[Outcome]] = []
    body = Parts(b"a", lambda: seen.append(list(guarded.outcomes)), b"b")
    call(face, guarded, lambda _: httpx.Response(200, stream=body))
    assert (seen, guarded.outcomes) == ([[]], [SUCCESS])
    assert body.closed == 1


def test_a_body_that_breaks_is_a_failure(face: str) -> None:
    guarded = Guarded()
    body = Parts(b"a", httpx.RemoteProtocolError("cut"))
    with pytest.raises(httpx.RemoteProtocolError):
        call(face, guarded, lambda _: httpx.Response(200, stream=body))
    assert guarded.outcomes == [FAILURE]
    assert guarded.view().last_failure == "RemoteProtocolError: cut"
    assert body.closed == 1


@pytest.mark.parametrize("parts", [0, 1, 2])
def test_early_leaver_is_neutral(face: str, parts: int) -> None:
    guarded = Guarded()
    body = Parts(b"a", b"b", b"c")
    call(face, guarded, lambda _: httpx.Response(200, stream=body), parts=parts)
    assert guarded.outcomes == [NEUTRAL]
    assert body.closed == 1


@pytest.mark.parametrize(
    ("method", "code", "length", "parts", "outcome"),
    [
        ("GET", 200, "2", 2, SUCCESS),
        ("GET", 200, "2", 1, NEUTRAL),
        ("GET", 200, "0", 0, SUCCESS),
        ("HEAD", 200, "2", 0, SUCCESS),
        ("GET", 204, "", 0, SUCCESS),
    ],
)
def test_leaving_after_the_last_byte_is_a_success(
    face: str, method: str, code: int, length: str, parts: int, outcome: Outcome
) -> None:
    guarded = Guarded()
    headers = {"content-length": length} if length else {}
    body = Parts(b"a", b"b")
    call(face, guarded, lambda _: httpx.Response(code, headers=headers, stream=body), method, parts=parts)
    assert guarded.outcomes == [outcome]


def test_protocol_switch_is_not_awaited(face: str) -> None:
    guarded = Guarded()
    call(face, guarded, status(101), parts=0)
    assert guarded.outcomes == [SUCCESS]


def test_body_sent_with_headers_is_complete(face: str) -> None:
    guarded = Guarded()
    response = call(face, guarded, lambda _: httpx.Response(200, text="here"))
    assert response.text == "here"
    assert guarded.outcomes == [SUCCESS]


def test_user_classifier_precedes_the_status(face: str) -> None:
    def classify(seen: object) -> Outcome | None:
        assert isinstance(seen, httpx.Response)
        return {500: SUCCESS, 404: FAILURE, 503: NEUTRAL}.get(seen.status_code)

    guarded = Guarded(classifier=OutcomeClassifier(classify=classify))
    for code in (500, 404, 503, 502, 200):
        call(face, guarded, status(code))
    assert guarded.outcomes == [SUCCESS, FAILURE, NEUTRAL, FAILURE, SUCCESS]


def test_a_classifier_that_raises_costs_the_caller_nothing(
    face: str, caplog: pytest.LogCaptureFixture
) -> None:
    def classify(_: object) -> Outcome:
        raise LookupError

    guarded = Guarded(classifier=OutcomeClassifier(classify=classify))
    assert call(face, guarded, ok).content == b"fine"
    assert guarded.outcomes == [NEUTRAL]
    assert "classify" in caplog.text


def test_rejection_is_an_httpx_error_and_ours(face: str) -> None:
    guarded = Guarded(BreakerSettings(failures=2))
    calls: list[httpx.Request] = []

    def failing(request: httpx.Request) -> httpx.Response:
        calls.append(request)
        return httpx.Response(500)

    for _ in range(2):
        call(face, guarded, failing)
    with pytest.raises(httpx.HTTPError) as caught:
        call(face, guarded, failing, url=URL + "?q=1")
    rejected = caught.value
    assert isinstance(rejected, TransportRejected)
    assert isinstance(rejected, httpx.TransportError)
    assert isinstance(rejected, ThrottleError)
    assert rejected.request.url == URL + "?q=1"
    assert (rejected.name, rejected.rejection.cause, rejected.retry_after_s) == (
        "dep",
        BreakerCause.FAILURES,
        10.0,
    )
    assert str(rejected) == "dep is open (failures), try again in 10.0 s, last failure HTTP 500"
    assert len(calls) == 2


def test_rejection_without_client_names_its_request(face: str) -> None:
    guarded = Guarded()
    guarded.guard("dep").circuit.breaker.operate(BreakerEvent.FORCE)
    request = httpx.Request("GET", URL)

    def requesting() -> None:
        if face == "sync":
            GuardTransport(guarded, httpx.MockTransport(ok), name="dep").handle_request(request)
            return
        transport = AsyncGuardTransport(guarded, httpx.MockTransport(ok), name="dep")
        anyio.run(transport.handle_async_request, request, backend=face)

    with pytest.raises(TransportRejected) as caught:
        requesting()
    assert caught.value.request is request


def test_probe_after_the_open_period_closes(face: str) -> None:
    guarded = Guarded(BreakerSettings(failures=1))
    call(face, guarded, status(500))
    guarded.clock.advance(10.0)
    assert call(face, guarded, ok).content == b"fine"
    assert guarded.view().state is BreakerState.CLOSED


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"retry_after": "7"}, 7.0),
        ({"retry_after": "9999"}, 300.0),
        (
            {"retry_after": "Sun, 06 Nov 1994 08:50:07 GMT", "date": "Sun, 06 Nov 1994 08:49:37 GMT"},
            30.0,
        ),
        ({}, 20.0),
        ({"retry_after": "later"}, 20.0),
    ],
)
def test_status_429_opens_for_its_retry_after(face: str, headers: dict[str, str], wait_s: float) -> None:
    guarded = Guarded(BreakerSettings(on_429=TooManyRequestsMode.OPEN, open_s=20.0))
    assert call(face, guarded, status(429, **headers)).status_code == 429
    assert guarded.outcomes == [NEUTRAL]
    assert guarded.view().retry_after_s == wait_s
    with pytest.raises(TransportRejected) as caught:
        call(face, guarded, ok)
    assert caught.value.rejection.cause is BreakerCause.RETRY_AFTER


def test_status_429_opens_nothing_by_default_or_by_option(face: str) -> None:
    guarded = Guarded()
    call(face, guarded, status(429, retry_after="7"))
    assert guarded.view().state is BreakerState.CLOSED
    classifier = OutcomeClassifier(classify=lambda _: SUCCESS)
    guarded = Guarded(BreakerSettings(on_429=TooManyRequestsMode.OPEN), classifier=classifier)
    call(face, guarded, status(429, retry_after="7"))
    assert guarded.view().state is BreakerState.CLOSED


def test_each_hop_of_a_redirect_is_a_call_of_its_origin(face: str) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.host == "a.test":
            return httpx.Response(302, headers={"location": "https://b.test:8443/x"}, stream=Parts())
        return httpx.Response(200, stream=Parts(b"there"))

    guarded = Guarded()
    response = call(face, guarded, handler, url="http://a.test:80/", name=None, follow_redirects=True)
    assert response.content == b"there"
    assert list(guarded.circuits) == ["http://a.test", "https://b.test:8443"]
    assert guarded.outcomes == [SUCCESS, SUCCESS]


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://h.test/a?b", "http://h.test"),
        ("http://h.test:80/", "http://h.test"),
        ("https://h.test:443/", "https://h.test"),
        ("https://h.test:80/", "https://h.test:80"),
        ("http://user:secret@h.test/", "http://h.test"),
        ("http://[::1]:8000/", "http://[::1]:8000"),
        ("http://H.TEST/", "http://h.test"),
    ],
)
def test_the_name_of_an_origin(face: str, url: str, name: str) -> None:
    assert origin(httpx.URL(url)) == name


def test_a_host_too_long_for_a_name_has_a_shorter_one_of_its_own(face: str) -> None:
    """Hosts have up to 253 characters; two that begin alike stay two, and 200 characters stay as they are."""
    hosts = [f"{'a' * 60}.{'b' * 60}.{'c' * 60}.{last}.test" for last in ("d" * 60, "d" * 59 + "e")]
    names = [origin(httpx.URL(f"https://{host}:8443")) for host in hosts]
    assert [name[:183] for name in names] == [f"https://{host}"[:183] for host in hosts]
    assert [(len(name), len(GUARD_NAME.parse(name))) for name in names] == [(200, 200)] * 2
    assert names[0] != names[1]
    assert names[0] == origin(httpx.URL(f"https://{hosts[0]}:8443/other"))
    whole = f"http://{'a' * 60}.{'b' * 60}.{'c' * 60}.{'d' * 10}"
    assert origin(httpx.URL(whole)) == whole
    assert origin(httpx.URL(whole + "d")).endswith(f"~{sha256((whole + 'd').encode()).hexdigest()[:16]}")
    assert len(whole) == 200


def test_the_inner_transport_is_closed_with_its_guard(face: str) -> None:
    closed: list[str] = []

    class Inner(httpx.MockTransport):
        def close(self) -> None:
            closed.append("close")

        async def aclose(self) -> None:
            closed.append("close")

    if face == "sync":
        with httpx.Client(transport=GuardTransport(Guarded(), Inner(ok))):
            pass
        GuardTransport(Guarded(), Inner(ok)).close()
    else:

        async def closing() -> None:
            async with httpx.AsyncClient(transport=AsyncGuardTransport(Guarded(), Inner(ok))):
                pass
            await AsyncGuardTransport(Guarded(), Inner(ok)).aclose()

        anyio.run(closing, backend=face)
    assert closed == ["close", "close"]


def test_the_inner_transport_is_that_of_httpx_by_default(face: str) -> None:
    if face == "sync":
        with httpx.Client(transport=GuardTransport(Guarded())) as client, pytest.raises(httpx.ConnectError):
            client.get("http://127.0.0.1:1/")
        return

    async def calling() -> None:
        async with httpx.AsyncClient(transport=AsyncGuardTransport(Guarded())) as client:
            with pytest.raises(httpx.ConnectError):
                await client.get("http://127.0.0.1:1/")

    anyio.run(calling, backend=face)
