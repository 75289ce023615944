"""One guarded HTTP call of httpx, in steps for the synchronous and the asynchronous transport."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final

import httpx

from autoglm_throttle.resilience.calls import CallResult, GuardedAttempt
from autoglm_throttle.resilience.classify import status_outcome
from autoglm_throttle.resilience.drive import Call, Steps
from autoglm_throttle.resilience.fallback import UNSET
from autoglm_throttle.resilience.http.answer import HttpAnswer
from autoglm_throttle.resilience.http.body import (
    BodyObserver,
    buffered_body,
    build_response,
    close_async,
    min_limit,
    pairs,
    read_body,
    read_body_async,
)
from autoglm_throttle.resilience.http.cache import (
    CachedResponse,
    CacheKey,
    CacheRequest,
    ResponseCache,
    cached_response,
    is_endless,
    is_shareable,
)
from autoglm_throttle.resilience.http.fields import body_bytes, retry_after_s
from autoglm_throttle.resilience.state import GuardState
from autoglm_throttle.types import (
    FallbackKind,
    GuardPermit,
    GuardRejected,
    GuardRejection,
    Outcome,
    TooManyRequestsMode,
)

SWITCHING_PROTOCOLS: Final = 101  # After status 101 the connection is no longer HTTP, so no body follows

TOO_MANY_REQUESTS: Final = 429

# Extensions of a request that replace a part of its address: with another target or virtual host, the same
# URL has another response.
ADDRESSING_EXTENSIONS: Final = ("target", "sni_hostname")


class TransportRejected(GuardRejected, httpx.TransportError):
    """The call was rejected and no fallback answered; an ``httpx.HTTPError``, as callers expect."""

    def __init__(self, rejection: GuardRejection, request: httpx.Request) -> None:
        super().__init__(rejection)
        self.request = request


class HttpCall:
    """One call."""

    __slots__ = (
        *("_begun_s", "_body", "_is_short", "_observer", "_responses", "_send", "args", "cache_request"),
        *("circuit", "replaces_values", "request"),
    )

    kwargs: Final[Mapping[str, Any]] = {}

    def __init__(
        self,
        circuit: GuardState,
        request: httpx.Request,
        send: Callable[[HttpCall], Any],
        body: Callable[..., httpx.SyncByteStream | httpx.AsyncByteStream],
    ) -> None:
        self.circuit: GuardState = circuit
        self.request: httpx.Request = request
        self.args: tuple[Any, ...] = (request,)
        self.replaces_values: bool = False
        self.cache_request: CacheRequest | None = None
        self._responses: ResponseCache | None = None
        self._send = send
        self._body = body
        self._begun_s = 0.0
        self._observer: BodyObserver | None = None  # Observer of a body that has not ended
        self._is_short = False  # Whether the body may be shared and is not known to be too long

    def use_cache(self, responses: ResponseCache, key: CacheKey | None, connection: Hashable) -> None:
        """Cache and share the response.

        ``key`` is the transport's function for the cache key, ``connection`` stands for its inner transport,
        which may have a client certificate.
        """
        request, url = self.request, str(self.request.url).partition("#")[0]
        names = (str(request.extensions.get(name)) for name in ADDRESSING_EXTENSIONS)
        route = connection, request.headers.get("host"), *names
        self._responses = responses
        headers = pairs(request.headers)
        self.cache_request = responses.request(request.method, url, headers, request, key, route)

    @property
    def flight_key(self) -> Hashable | None:
        """Key of the calls that may share a response; None: the call is not shared."""
        request = self.cache_request
        if request is None or self._responses is None or not request.is_cacheable:
            return None
        return None if self._responses.is_unshareable(request) else request.base_key

    @property
    def limits(self) -> tuple[float, ...]:
        """Time limits of the call, in seconds: for one read, then for the other steps; infinite without."""
        own, guard_s = self.request.extensions.get("timeout") or {}, self.circuit.timeout_s
        limits = (min_limit(own.get(step), guard_s) for step in ("read", "connect", "write", "pool"))
        return tuple(math.inf if limit is None else limit for limit in limits)

    def timed_out(self) -> Exception:
        """Return the exception of a wait for others that has exceeded the limit."""
        text = f"{self.circuit.name} has not answered within {self.limits[0]:g} s"
        return httpx.ReadTimeout(text, request=self.request)

    def has_cached(self) -> bool:
        """Whether a usable response is cached."""
        return self._responses is not None and self._responses.find(self.cache_request) is not None

    def cached(self, cause: str) -> object:
        """Return the cached response, or `UNSET`."""
        return UNSET if self._responses is None else self._responses.find_answer(self.cache_request, cause)

    def check(self, value: object, kind: FallbackKind) -> None:
        """Raise TypeError unless a fallback gave an `HttpAnswer` or an ``httpx.Response``."""
        if not isinstance(value, HttpAnswer | httpx.Response):
            given = type(value).__name__
            raise TypeError(f"the {kind} fallback of HTTP must give an HttpAnswer or a Response, not {given}")

    def rejected(self, rejection: GuardRejection) -> GuardRejected:
        """Return the exception of a rejection."""
        return TransportRejected(rejection, self.request)

    def run(self, *, sheds: bool = False) -> Steps[GuardedAttempt]:
        """Make the call alone; its body is cached at its end. ``sheds``: unless its feature is shed."""
        circuit = self.circuit
        fast = circuit.fast
        permit = fast.permit if fast.is_direct or (fast.is_synced and not sheds) else None
        if permit is None:
            answer: GuardPermit | GuardRejection = yield Call(circuit.allow, circuit.allow_async, (sheds,))
            if isinstance(answer, GuardRejection):
                return GuardedAttempt(rejection=answer)
            permit = answer
        else:
            fast.calls += 1
        self._begun_s = circuit.clock()
        try:
            response: httpx.Response = yield Call(self._send, self._send, (self,))
        except BaseException as error:
            outcome = circuit.settle(permit, error, raised=True)
            if isinstance(error, Exception):
                return GuardedAttempt(error=error, outcome=outcome)
            raise
        return GuardedAttempt(response, outcome=self._record_response(permit, response))

    def run_shared(self) -> Steps[CallResult]:
        """Make the call for all callers that wait for it, and read a body that they can share."""
        attempted = yield from self.run()
        body: bytes | None = None
        if self._is_short:
            try:
                body = yield Call(read_body, read_body_async, (attempted.value, self._max_body_bytes))
            except Exception as error:  # noqa: BLE001 - passed on to all waiters
                outcome = attempted.outcome if self._observer is None else self._observer.outcome
                attempted = GuardedAttempt(error=error, outcome=outcome)
        return self._result(attempted, body)

    def copy_of(self, value: object) -> object:
        """Return a shared response for this caller; `UNSET`: it varies by a field of the request."""
        request = self.cache_request
        if not isinstance(value, CachedResponse) or request is None or not value.fits(request):
            return UNSET
        return build_response(value.with_age(self.circuit.clock()), self.request)

    def closing(self, attempted: GuardedAttempt) -> Call | None:
        """Return the step that closes a response which a fallback replaces."""
        response = attempted.value
        if not isinstance(response, httpx.Response):
            return None
        return Call(httpx.Response.close, close_async, (response,))

    def _record_response(self, permit: GuardPermit, response: httpx.Response) -> Outcome:
        """Classify the response by its status; a success waits for the body."""
        circuit, status = self.circuit, response.status_code
        outcome = circuit.outcome_of(response, raised=False, default=status_outcome(status))
        headers = pairs(response.headers)
        responses = self._responses
        policy = None
        if responses is not None:
            policy = responses.policy(self.cache_request, status, headers, self._begun_s)
        length = body_bytes(self.request.method, status, headers)
        is_kept = outcome is Outcome.FAILURE or (policy is not None and not is_endless(headers))
        self._is_short = is_kept and (length is None or length <= self._max_body_bytes)
        if outcome is Outcome.SUCCESS and status != SWITCHING_PROTOCOLS:
            self._observer = BodyObserver(circuit, permit, self._begun_s, length, policy)
            if response.is_closed:  # the body arrived with its headers, as from one without a network
                self._observer.complete(buffered_body(response))
            else:
                response.stream = self._body(response.stream, self._observer, circuit, self.request)
            return outcome
        circuit.record(permit, outcome, f"HTTP {status}")
        if status == TOO_MANY_REQUESTS and circuit.settings.on_429 is TooManyRequestsMode.OPEN:
            wait_s = retry_after_s(headers, time.time())
            circuit.open_for(circuit.settings.open_s if wait_s is None else wait_s)
        return outcome

    def _result(self, attempted: GuardedAttempt, body: bytes | None) -> CallResult:
        """Build the result for the callers that wait for this call."""
        request, error = self.cache_request, attempted.error
        if error is not None:
            limits = self.limits if isinstance(error, httpx.TimeoutException) else ()
            return CallResult(attempted, limits=limits, trace=error.__traceback__)
        if request is None or attempted.rejection is not None:
            return CallResult(attempted)
        headers, status = pairs(attempted.value.headers), attempted.value.status_code
        if attempted.outcome is Outcome.FAILURE and not (body is not None and is_shareable(headers)):
            # A failing status is for all callers, though its body is not.
            headers, body = tuple(pair for pair in headers if pair[0].lower() == "retry-after"), b""
        if body is not None:
            return CallResult(attempted, cached_response(request, headers, body, self._begun_s, status))
        if self._responses is not None and attempted.outcome is not Outcome.FAILURE:
            self._responses.mark_unshareable(request)
        return CallResult(attempted)

    @property
    def _max_body_bytes(self) -> int:
        return 0 if self._responses is None else self._responses.max_body_bytes
