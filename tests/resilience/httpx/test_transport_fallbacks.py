"""Responses of a guarded transport under load, after a rejection, and after a failure."""

from __future__ import annotations

import gzip
from typing import Any

import httpx
import pytest

from autoglm_throttle.resilience.classify import OutcomeClassifier
from autoglm_throttle.resilience.fallback import Fallback
from autoglm_throttle.resilience.http.answer import HttpAnswer
from autoglm_throttle.resilience.httpx import TransportRejected
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import (
    BreakerCause,
    BreakerState,
    Criticality,
    FallbackContext,
    FallbackKind,
    GuardRejected,
    GuardRejection,
    Outcome,
)
from tests.resilience.httpx.guarded_calls import (
    FACES,
    URL,
    Guarded,
    Handler,
    Parts,
    call,
    ok,
    raising,
    status,
)

STATIC = HttpAnswer(200, {"content-type": "text/plain"}, b"static")
STALE = Fallback(stale=True)
CUT = httpx.ReadError("cut")
REJECTION = GuardRejection("other", BreakerState.OPEN, BreakerCause.TRIAL, 3.0)

pytestmark = pytest.mark.parametrize("face", FACES)


def answering(text: bytes = b"live", **headers: str) -> Handler:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _: httpx.Response(200, headers=named, stream=Parts(text[:1], text[1:]))


def reports(response: httpx.Response) -> tuple[int, bytes, str | None]:
    return response.status_code, response.content, response.headers.get("x-degraded")


LIVE = (200, b"live", None)


@pytest.mark.parametrize(
    ("handler", "cause"),
    [
        (status(500), "error"),
        (status(502), "error"),
        (status(503), "error"),
        (status(504), "error"),
        (raising(CUT), "error"),
        (raising(OSError("gone")), "error"),
        (raising(GuardRejected(REJECTION)), "trial"),
    ],
)
def test_a_failure_has_the_static_answer(face: str, handler: Handler, cause: str) -> None:
    guarded = Guarded(fallback=Fallback(static=STATIC))
    response = call(face, guarded, handler)
    assert reports(response) == (200, b"static", f"static; cause={cause}")
    assert response.headers["content-type"] == "text/plain"
    assert response.request.url == URL
    assert guarded.counted == [("dep", FallbackKind.STATIC, cause)]


@pytest.mark.parametrize("code", [200, 204, 301, 400, 404, 429, 501])
def test_non_failure_is_not_replaced(face: str, code: int) -> None:
    guarded = Guarded(fallback=Fallback(static=STATIC))
    assert reports(call(face, guarded, status(code))) == (code, b"said", None)
    assert guarded.counted == []


@pytest.mark.parametrize(
    "error", [httpx.UnsupportedProtocol("x"), LookupError("ignored"), KeyboardInterrupt()]
)
def test_an_exception_that_is_no_failure_comes_through(face: str, error: BaseException) -> None:
    guarded = Guarded(fallback=Fallback(static=STATIC), classifier=OutcomeClassifier(ignore=(LookupError,)))
    with pytest.raises(type(error)):
        call(face, guarded, raising(error))
    assert guarded.counted == []


def test_rejection_gets_static_response_and_keeps_its_outcome(face: str) -> None:
    guarded = Guarded(BreakerSettings(failures=1), Fallback(static=STATIC))
    call(face, guarded, status(500))
    assert guarded.view().state is BreakerState.OPEN
    assert reports(call(face, guarded, ok)) == (200, b"static", "static; cause=failures")
    assert guarded.outcomes == [Outcome.FAILURE]


def test_an_answer_that_is_replaced_is_closed(face: str) -> None:
    body = Parts(b"unread")
    call(face, Guarded(fallback=Fallback(static=STATIC)), lambda _: httpx.Response(503, stream=body))
    assert body.closed == 1


def test_failing_status_may_be_returned(face: str) -> None:
    guarded = Guarded(fallback=Fallback(static=STATIC, on_value=False))
    assert reports(call(face, guarded, status(503))) == (503, b"said", None)
    assert reports(call(face, guarded, raising(CUT)))[2] == "static; cause=error"


def test_without_a_fallback_the_error_is_raised(face: str) -> None:
    guarded = Guarded(BreakerSettings(failures=2), STALE)
    assert reports(call(face, guarded, status(503))) == (503, b"said", None)
    with pytest.raises(httpx.ReadError) as caught:
        call(face, guarded, raising(CUT))
    assert caught.value is CUT
    with pytest.raises(TransportRejected):
        call(face, guarded, ok)


def test_cached_response_comes_first_with_its_age(face: str) -> None:
    guarded = Guarded(BreakerSettings(failures=1), Fallback(static=STATIC, stale=True))
    assert reports(call(face, guarded, answering(age="7", etag='"a"'))) == LIVE
    guarded.clock.advance(30.0)
    for handler, cause in ((raising(CUT), "error"), (ok, "failures")):
        response = call(face, guarded, handler)
        assert reports(response) == (200, b"live", f"stale; cause={cause}")
        assert response.headers["age"] == "37"
        assert response.headers["etag"] == '"a"'
        assert "warning" not in response.headers
    guarded.clock.advance(31.0)
    assert reports(call(face, guarded, raising(CUT)))[1] == b"static"


def test_other_requests_have_no_part_in_it(face: str) -> None:
    guarded = Guarded(BreakerSettings(failures=100), STALE)
    call(face, guarded, answering(vary="accept"), headers={"accept": "a"})
    for options in (
        {"url": URL + "?q=2"},
        {"headers": {"accept": "b"}},
        {"headers": {"accept": "a", "authorization": "Bearer x"}},
        {"headers": {"accept": "a", "cookie": "a=b"}},
        {"headers": {"accept": "a", "x-api-key": "bob"}},
        {"headers": {"accept": "a"}, "content": b"asked"},
        {"method": "POST", "headers": {"accept": "a"}},
    ):
        assert call(face, guarded, status(503), **options).status_code == 503, options
    assert call(face, guarded, status(503), headers={"accept": "a"}).status_code == 200


def test_cached_get_serves_no_head(face: str) -> None:
    guarded = Guarded(fallback=STALE)
    call(face, guarded, answering(etag='"a"'))
    assert reports(call(face, guarded, status(503), "HEAD"))[::2] == (503, None)


def test_a_fragment_is_no_part_of_a_request(face: str) -> None:
    guarded = Guarded(fallback=STALE)
    call(face, guarded, answering(), url=URL + "#one")
    assert call(face, guarded, status(503), url=URL + "#two").content == b"live"


@pytest.mark.parametrize("where", ["transport", "fallback"])
def test_a_key_of_the_users_own(face: str, where: str) -> None:
    def key(request: httpx.Request) -> Any:
        if request.url.path == "/secret":
            return None
        if request.url.path == "/bad":
            return []
        return request.headers.get("authorization")

    guarded = Guarded(fallback=Fallback(stale=True, key=key if where == "fallback" else None))
    options: dict[str, Any] = {"key": key if where == "transport" else None}
    ann, bob = {"authorization": "ann"}, {"authorization": "bob"}
    call(face, guarded, answering(b"for ann"), headers=ann, **options)
    call(face, guarded, answering(b"for bob"), headers=bob, **options)
    assert call(face, guarded, status(503), headers=ann, **options).content == b"for ann"
    assert call(face, guarded, status(503), headers=bob, **options).content == b"for bob"
    for path in ("/secret", "/bad"):
        url = f"http://vectors.test{path}"
        call(face, guarded, answering(), url=url, **options)
        assert call(face, guarded, status(503), url=url, **options).status_code == 503


def test_body_is_cached_as_received(face: str) -> None:
    packed = gzip.compress(b"unpacked" * 40)
    guarded = Guarded(fallback=STALE)
    handler = answering(packed, content_encoding="gzip", transfer_encoding="chunked")
    assert call(face, guarded, handler).content == b"unpacked" * 40
    response = call(face, guarded, status(503))
    assert response.content == b"unpacked" * 40
    assert response.headers["content-encoding"] == "gzip"
    assert response.headers["content-length"] == str(len(packed))
    assert "transfer-encoding" not in response.headers


def test_body_sent_with_headers_is_cached(face: str) -> None:
    guarded = Guarded(fallback=STALE)
    packed = gzip.compress(b"unpacked")
    headers = {"content-encoding": "gzip"}
    call(face, guarded, lambda _: httpx.Response(200, headers=headers, content=packed))
    assert call(face, guarded, status(503)).content == b"unpacked"


def test_body_read_on_the_way_is_not_cached(face: str) -> None:
    """The remaining body differs from the received one."""
    guarded = Guarded(fallback=STALE)

    def handler(_: httpx.Request) -> httpx.Response:
        response = httpx.Response(200, stream=Parts(b"live"))
        response.read()
        return response

    assert reports(call(face, guarded, handler)) == LIVE
    assert guarded.outcomes == [Outcome.SUCCESS]
    assert call(face, guarded, status(503)).status_code == 503


@pytest.mark.parametrize(
    "handler",
    [
        answering(cache_control="no-store"),
        answering(cache_control="private"),
        answering(cache_control="no-cache"),
        answering(vary="*"),
        answering(b"x" * 1001),
        status(404),
        status(206),
    ],
)
def test_uncacheable_responses_are_not_cached(face: str, handler: Handler) -> None:
    guarded = Guarded(fallback=STALE)
    call(face, guarded, handler)
    assert call(face, guarded, status(503)).status_code == 503


def test_longest_cacheable_body_is_cached(face: str) -> None:
    guarded = Guarded(fallback=STALE)
    call(face, guarded, answering(b"x" * 1000))
    assert call(face, guarded, status(503)).content == b"x" * 1000


@pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning")
@pytest.mark.filterwarnings("ignore:Exception ignored in. <async_generator object (Bound|Response)")
def test_broken_or_abandoned_body_is_not_cached(face: str) -> None:
    guarded = Guarded(fallback=STALE)
    with pytest.raises(httpx.ReadError):
        call(face, guarded, lambda _: httpx.Response(200, stream=Parts(b"li", CUT)))
    headers = {"content-length": "2"}
    with pytest.raises(httpx.ReadError):
        call(face, guarded, lambda _: httpx.Response(200, headers=headers, stream=Parts(b"li", CUT)))
    call(face, guarded, answering(), parts=1)
    assert call(face, guarded, status(503)).status_code == 503


def test_a_body_that_broke_is_not_replaced(face: str) -> None:
    """Its beginning is with the caller already."""
    guarded = Guarded(fallback=Fallback(static=STATIC, stale=True))
    call(face, guarded, answering())
    with pytest.raises(httpx.ReadError):
        call(face, guarded, lambda _: httpx.Response(200, stream=Parts(b"li", CUT)))


def test_invalidated_response_is_not_served(face: str) -> None:
    guarded = Guarded(fallback=STALE)
    call(face, guarded, answering())
    call(face, guarded, status(200), "POST")
    assert call(face, guarded, status(503)).status_code == 503


def test_response_states_its_own_freshness(face: str) -> None:
    guarded = Guarded(fallback=Fallback(stale=True, max_stale_s=500.0))
    call(face, guarded, answering(cache_control="max-age=10, stale-if-error=5"))
    guarded.clock.advance(15.0)
    assert call(face, guarded, status(503)).status_code == 200
    guarded.clock.advance(0.5)
    assert call(face, guarded, status(503)).status_code == 503


def test_a_dynamic_answer_knows_why(face: str) -> None:
    seen: list[FallbackContext] = []

    def dynamic(context: FallbackContext) -> httpx.Response:
        seen.append(context)
        return httpx.Response(203, text="so", headers={"content-encoding": "identity"})

    guarded = Guarded(fallback=Fallback(dynamic=dynamic))
    response = call(face, guarded, raising(CUT))
    assert reports(response) == (203, b"so", "dynamic; cause=error")
    assert (seen[0].name, seen[0].cause, seen[0].error) == ("dep", "error", CUT)
    assert seen[0].args == (response.request,)
    assert call(face, guarded, status(503)).status_code == 203
    assert seen[1].error is None


def test_a_dynamic_answer_may_still_be_on_its_way(face: str) -> None:
    fallback = Fallback(dynamic=lambda _: httpx.Response(200, stream=Parts(b"from", b" elsewhere")))
    response = call(face, Guarded(fallback=fallback), status(503))
    assert reports(response) == (200, b"from elsewhere", "dynamic; cause=error")


def test_a_static_response_of_httpx_serves_many_times(face: str) -> None:
    packed = gzip.compress(b"unpacked")
    response = httpx.Response(200, content=packed, headers={"content-encoding": "gzip"})
    guarded = Guarded(fallback=Fallback(static=response))
    for _ in range(2):
        assert reports(call(face, guarded, status(503))) == (200, b"unpacked", "static; cause=error")


def test_an_answer_to_head_has_no_body(face: str) -> None:
    guarded = Guarded(fallback=Fallback(static=STATIC))
    assert call(face, guarded, status(503), "HEAD").content == b""


CORE, OTHER = Criticality.CORE, Criticality.NON_CORE


@pytest.mark.parametrize(
    ("load", "criticality", "fallback", "seen"),
    [
        (0.5, CORE, Fallback(static=STATIC, stale=True), "live"),
        (0.85, CORE, Fallback(static=STATIC, stale=True), "live"),
        (0.92, CORE, Fallback(static=STATIC, stale=True), "stale"),
        (0.92, CORE, Fallback(static=STATIC), "live"),
        (0.97, CORE, Fallback(static=STATIC, stale=True), "static"),
        (0.97, CORE, Fallback(stale=True), "stale"),
        (0.5, OTHER, Fallback(static=STATIC), "live"),
        (0.85, OTHER, Fallback(static=STATIC, stale=True), "static"),
        (0.85, OTHER, Fallback(stale=True), "stale"),
        (0.85, OTHER, Fallback(dynamic=lambda _: STATIC), "shed"),
        (0.85, OTHER, Fallback(dynamic=lambda _: STATIC, under_load=True), "dynamic"),
        (0.85, OTHER, None, "shed"),
    ],
)
def test_each_degradation_level(
    face: str, load: float, criticality: Criticality, fallback: Fallback | None, seen: str
) -> None:
    guarded = Guarded(fallback=fallback, criticality=criticality)
    call(face, guarded, answering())
    guarded.loaded(load)
    made: list[httpx.Request] = []

    def live(request: httpx.Request) -> httpx.Response:
        made.append(request)
        return answering()(request)

    if seen == "shed":
        with pytest.raises(TransportRejected) as caught:
            call(face, guarded, live)
        assert (caught.value.rejection.cause, caught.value.retry_after_s) == (BreakerCause.SHED, 1.0)
        assert caught.value.request.url == URL
    else:
        mark = None if seen == "live" else f"{seen}; cause=load"
        assert reports(call(face, guarded, live))[2] == mark
    assert len(made) == (seen == "live")
    assert [(fallback_kind.value, cause) for _, fallback_kind, cause in guarded.counted] == (
        [] if seen == "live" else [(seen, "load")]
    )
    assert guarded.outcomes == [Outcome.SUCCESS] * (1 + len(made))


def test_shed_call_without_cache_is_made(face: str) -> None:
    guarded = Guarded(fallback=STALE)
    guarded.loaded(0.97)
    assert reports(call(face, guarded, answering())) == LIVE
    assert reports(call(face, guarded, answering()))[2] == "stale; cause=load"


def test_under_load_a_fallback_that_raises_leaves_the_call(face: str) -> None:
    def dynamic(_: FallbackContext) -> HttpAnswer:
        raise LookupError

    guarded = Guarded(fallback=Fallback(dynamic=dynamic, under_load=True))
    guarded.loaded(0.97)
    assert reports(call(face, guarded, answering())) == LIVE
