"""Transports for httpx that guard each call: ``httpx.Client(transport=GuardTransport(throttle))``.

Each hop of a redirect is a call of its own. Retries belong outside the client, so each try requests a permit.
"""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Protocol, cast

from autoglm_throttle._runtime import how_to_install
from autoglm_throttle.resilience.degradation import DegradationAction
from autoglm_throttle.resilience.feature_executor import FeatureExecutor
from autoglm_throttle.resilience.http.call import HttpCall
from autoglm_throttle.settings.policies import NAME_CHARACTERS
from autoglm_throttle.types import GuardPermit, GuardRejected, GuardRejection, Outcome

try:
    import httpx
except ImportError:
    raise ImportError(f"guarded transports need httpx: {how_to_install('httpx')}", name="httpx") from None

from autoglm_throttle.resilience.http.httpx_bodies import (
    AsyncGuardedBody,
    BodySteps,
    GuardedBody,
    await_in_time,
    build_response,
    check_response,
    close_response,
    fallback_response,
    read_body,
    read_body_async,
    record_read_body,
)

if TYPE_CHECKING:
    from types import TracebackType

    from autoglm_throttle.resilience.guard import Guard
    from autoglm_throttle.resilience.http.caching_rules import CacheRequest
    from autoglm_throttle.resilience.http.feature_cache import CacheKey
    from autoglm_throttle.resilience.http.feature_executor import HttpCallResult, HttpFeatureExecutor


CHECKSUM_CHARACTERS: Final = 16
"""64 bits: a collision among a thousand names has a probability of 1 in 10^13."""


class GuardSource(Protocol):
    """Owner of guards, such as a `Throttle`."""

    def guard(self, name: str) -> Guard:
        """Return a handle of the guard with this name."""
        ...


class TransportRejected(GuardRejected, httpx.TransportError):
    """The call was rejected and no fallback answered; an ``httpx.HTTPError``, as callers expect."""

    def __init__(self, rejection: GuardRejection, request: httpx.Request) -> None:
        super().__init__(rejection)
        self.request = request


def origin(url: httpx.URL) -> str:
    """Return scheme, host and port, such as ``https://models.test:8443``, without the scheme's default port.

    A host may have 253 characters, more than the name of a guard: longer names end in a checksum.
    """
    name = f"{url.scheme}://{url.netloc.decode('ascii')}"
    if len(name) <= NAME_CHARACTERS:
        return name
    checksum = sha256(name.encode()).hexdigest()[:CHECKSUM_CHARACTERS]
    return f"{name[: NAME_CHARACTERS - CHECKSUM_CHARACTERS - 1]}~{checksum}"


def _own_response(call_result: HttpCallResult) -> httpx.Response:
    """Return the response of the caller that made the call, or raise its exception."""
    if call_result.error is not None:
        raise call_result.error
    return cast("httpx.Response", call_result.response)


def _shared_response(
    call_result: HttpCallResult, call: HttpCall, cache_request: CacheRequest
) -> httpx.Response | None:
    """Return the response that another caller's call stands for; None: it does not fit this request."""
    error, cached = call_result.error, call_result.cached_for(cache_request)
    call.outcome = call_result.outcome
    if error is not None:
        raise error.with_traceback(call_result.trace)
    return None if cached is None else build_response(cached.with_age(call.circuit.clock()), call.request)


class _TransportBase:
    """Parameters of both transports."""

    def __init__(
        self, throttle: GuardSource, *, name: str | None = None, key: CacheKey | None = None
    ) -> None:
        self._throttle = throttle
        self._name = name
        self._key = key

    def _call(self, request: httpx.Request) -> HttpCall:
        # Looked up for each call: a guard may be evicted between two calls of one transport.
        circuit = self._throttle.guard(self._name or origin(request.url)).circuit
        executor = circuit.executor
        http = executor.http if isinstance(executor, FeatureExecutor) else None
        return HttpCall(circuit, http, request, self._key)


class GuardTransport(_TransportBase, httpx.BaseTransport):
    """A transport for ``httpx.Client``; safe for any number of threads.

    ``timeout_s`` limits each step of a call until its headers (connecting, sending, one read) and
    ``stream_idle_s`` each read of the body. Both depend on the inner transport, which must honour the
    request's time-outs: a blocked thread cannot be interrupted.

    Args:
        throttle: owns the guards.
        inner: makes the calls; by default ``httpx.HTTPTransport()``. It is closed with this one.
        name: of the guard; by default each origin has its own, named like ``https://models.test:8443``.
        key: computes the cache key of a request, instead of method and URL, for fallbacks with ``stale``;
            None as its result: do not cache. Requests with a body, or with a field that may identify the
            user, are cached only with such a key, which must distinguish users and bodies.
    """

    def __init__(
        self,
        throttle: GuardSource,
        inner: httpx.BaseTransport | None = None,
        *,
        name: str | None = None,
        key: CacheKey | None = None,
    ) -> None:
        super().__init__(throttle, name=name, key=key)
        self._inner = httpx.HTTPTransport() if inner is None else inner

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Make one call, or answer by a fallback.

        Raises:
            TransportRejected: the guard rejects it, and no fallback answers.
        """
        call = self._call(request)
        executor = call.executor
        if executor is None:
            return self._execute(call, call.circuit.admit())
        action = executor.action(call.cache_request)
        if action is not DegradationAction.SERVE:
            load_context = executor.load_context(request)
            answer = executor.answer(load_context, call.cache_request, action, check_response)
            if answer is not None:
                return fallback_response(answer, load_context.cause, request)
            if action is DegradationAction.SHED:
                raise TransportRejected(executor.reject_shed(), request)
        return self._serve(call, executor)

    def _serve(self, call: HttpCall, executor: HttpFeatureExecutor) -> httpx.Response:
        request = call.request
        try:
            response = self._call_or_join(call, executor)
        except Exception as error:
            failure_context = executor.failure_context(request, error, call.outcome)
            answer = (
                None
                if failure_context is None
                else executor.answer(failure_context, call.cache_request, check=check_response)
            )
            if failure_context is None or answer is None:
                raise
            return fallback_response(answer, failure_context.cause, request)
        failure_context = executor.failure_context(request, None, call.outcome)
        try:
            answer = (
                None
                if failure_context is None
                else executor.answer(failure_context, call.cache_request, check=check_response)
            )
        except BaseException:
            if response is not None:
                response.close()
            raise
        if failure_context is None or answer is None:
            return response or self._execute(call, call.circuit.allow())
        if response is not None:
            response.close()
        return fallback_response(answer, failure_context.cause, request)

    def _call_or_join(self, call: HttpCall, executor: HttpFeatureExecutor) -> httpx.Response | None:
        """Make the call, or wait for a shared one; None: the shared one had a failing status."""
        cache_request = call.cache_request
        if cache_request is None or not executor.may_share(cache_request):
            return self._execute(call, call.circuit.allow())
        if executor.single_flight.in_flight(cache_request.base_key):
            cached = executor.cached_answer(cache_request)
            if cached is not None:
                return build_response(cached, call.request)
        call_result, is_own = executor.single_flight.run(
            cache_request.base_key, partial(self._run_call, call, cache_request), call.max_wait_s
        )
        response = (
            _own_response(call_result) if is_own else _shared_response(call_result, call, cache_request)
        )
        if response is None and call.outcome is not Outcome.FAILURE:
            return self._execute(call, call.circuit.allow())
        return response

    def _run_call(self, call: HttpCall, cache_request: CacheRequest) -> HttpCallResult:
        try:
            response = self._execute(call, call.circuit.allow())
            return call.build_result(cache_request, response, read_body(response) if call.is_short else None)
        except Exception as error:  # noqa: BLE001 - passed on to all waiters
            return call.build_error_result(
                cache_request, error, timed_out=isinstance(error, httpx.TimeoutException)
            )

    def _execute(self, call: HttpCall, permit: GuardPermit | GuardRejection) -> httpx.Response:
        if isinstance(permit, GuardRejection):
            raise TransportRejected(permit, call.request)
        call.start(permit)
        steps = BodySteps(call.request, call.circuit.timeout_s, call.circuit.stream_idle_s)
        try:
            response = self._inner.handle_request(steps.request)
        except BaseException as error:
            call.record_error(error)
            raise
        steps.start_body()
        observer = call.record_response(response)
        if observer is not None:
            if response.is_closed:
                record_read_body(response, observer)
            else:
                response.stream = GuardedBody(cast("httpx.SyncByteStream", response.stream), observer)
        return response

    def close(self) -> None:
        """Close the inner transport."""
        self._inner.close()

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._inner.__exit__(exc_type, exc_value, traceback)

    def __enter__(self) -> GuardTransport:
        self._inner.__enter__()
        return self


class AsyncGuardTransport(_TransportBase, httpx.AsyncBaseTransport):
    """A transport for ``httpx.AsyncClient``, under asyncio and trio.

    ``timeout_s`` limits a call until its headers, ``stream_idle_s`` the time between two parts of the body;
    both raise ``httpx.ReadTimeout``.

    Args:
        throttle: as in `GuardTransport`, and so the others.
        inner: by default ``httpx.AsyncHTTPTransport()``.
        name: of the guard.
        key: computes the cache key.
    """

    def __init__(
        self,
        throttle: GuardSource,
        inner: httpx.AsyncBaseTransport | None = None,
        *,
        name: str | None = None,
        key: CacheKey | None = None,
    ) -> None:
        super().__init__(throttle, name=name, key=key)
        self._inner = httpx.AsyncHTTPTransport() if inner is None else inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Make one call, or answer by a fallback.

        Raises:
            TransportRejected: the guard rejects it, and no fallback answers.
        """
        call = self._call(request)
        executor = call.executor
        if executor is None:
            return await self._execute(call, await call.circuit.admit_async())
        action = executor.action(call.cache_request)
        if action is not DegradationAction.SERVE:
            load_context = executor.load_context(request)
            answer = await executor.answer_async(load_context, call.cache_request, action, check_response)
            if answer is not None:
                return fallback_response(answer, load_context.cause, request)
            if action is DegradationAction.SHED:
                raise TransportRejected(executor.reject_shed(), request)
        return await self._serve(call, executor)

    async def _serve(self, call: HttpCall, executor: HttpFeatureExecutor) -> httpx.Response:
        request = call.request
        try:
            response = await self._call_or_join(call, executor)
        except Exception as error:
            failure_context = executor.failure_context(request, error, call.outcome)
            answer = (
                None
                if failure_context is None
                else await executor.answer_async(failure_context, call.cache_request, check=check_response)
            )
            if failure_context is None or answer is None:
                raise
            return fallback_response(answer, failure_context.cause, request)
        failure_context = executor.failure_context(request, None, call.outcome)
        try:
            answer = (
                None
                if failure_context is None
                else await executor.answer_async(failure_context, call.cache_request, check=check_response)
            )
        except BaseException:
            if response is not None:
                await close_response(response)
            raise
        if failure_context is None or answer is None:
            return response or await self._execute(call, await call.circuit.allow_async())
        if response is not None:
            await close_response(response)
        return fallback_response(answer, failure_context.cause, request)

    async def _call_or_join(self, call: HttpCall, executor: HttpFeatureExecutor) -> httpx.Response | None:
        """Make the call, or wait for a shared one; None: the shared one had a failing status."""
        cache_request = call.cache_request
        if cache_request is None or not executor.may_share(cache_request):
            return await self._execute(call, await call.circuit.allow_async())
        if executor.single_flight.in_flight_async(cache_request.base_key):
            cached = executor.cached_answer(cache_request)
            if cached is not None:
                return build_response(cached, call.request)
        call_result, is_own = await executor.single_flight.run_async(
            cache_request.base_key, partial(self._run_call, call, cache_request), call.max_wait_s
        )
        response = (
            _own_response(call_result) if is_own else _shared_response(call_result, call, cache_request)
        )
        if response is None and call.outcome is not Outcome.FAILURE:
            return await self._execute(call, await call.circuit.allow_async())
        return response

    async def _run_call(self, call: HttpCall, cache_request: CacheRequest) -> HttpCallResult:
        try:
            response = await self._execute(call, await call.circuit.allow_async())
            return call.build_result(
                cache_request, response, await read_body_async(response) if call.is_short else None
            )
        except Exception as error:  # noqa: BLE001 - passed on to all waiters
            return call.build_error_result(
                cache_request, error, timed_out=isinstance(error, httpx.TimeoutException)
            )

    async def _execute(self, call: HttpCall, permit: GuardPermit | GuardRejection) -> httpx.Response:
        if isinstance(permit, GuardRejection):
            raise TransportRejected(permit, call.request)
        call.start(permit)
        try:
            response = await self._send(call)
        except BaseException as error:
            call.record_error(error)
            raise
        observer = call.record_response(response)
        if observer is not None:
            if response.is_closed:
                record_read_body(response, observer)
            else:
                response.stream = AsyncGuardedBody(
                    cast("httpx.AsyncByteStream", response.stream), observer, call
                )
        return response

    async def _send(self, call: HttpCall) -> httpx.Response:
        limit_s, request = call.circuit.timeout_s, call.request
        if limit_s is None:
            return await self._inner.handle_async_request(request)
        start = partial(self._inner.handle_async_request, request)
        return await await_in_time(limit_s, start, f"{call.circuit.name} has not answered", request)

    async def aclose(self) -> None:
        """Close the inner transport."""
        await self._inner.aclose()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self._inner.__aexit__(exc_type, exc_value, traceback)

    async def __aenter__(self) -> AsyncGuardTransport:
        await self._inner.__aenter__()
        return self
