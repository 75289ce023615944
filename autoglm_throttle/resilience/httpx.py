"""Transports for httpx that guard each call: ``httpx.Client(transport=GuardTransport(throttle))``.

Each hop of a redirect is a call of its own. Retries belong outside the client, so each try requests a permit.
"""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Protocol, cast

from autoglm_throttle.model import GuardRefused, Outcome, Pass, Refusal
from autoglm_throttle.resilience.degradation import Choice
from autoglm_throttle.resilience.http.call import HttpCall
from autoglm_throttle.resilience.served import Served
from autoglm_throttle.settings.guard_policy import NAME_CHARACTERS
from autoglm_throttle.settings.installing import how_to_install

try:
    import httpx
except ImportError:
    raise ImportError(f"guarded transports need httpx: {how_to_install('httpx')}", name="httpx") from None

from autoglm_throttle.resilience.http.bodies import (
    AsyncBody,
    Body,
    Steps,
    closed,
    fit,
    given,
    in_time,
    made,
    read_already,
    read_in,
    read_in_async,
)

if TYPE_CHECKING:
    from types import TracebackType

    from autoglm_throttle.resilience.guard import Guard
    from autoglm_throttle.resilience.http.served import HttpServed, Key, Landing
    from autoglm_throttle.resilience.http.stale import Ask


CHECKSUM_CHARACTERS: Final = 16
"""64 bits: a collision among a thousand names has a probability of 1 in 10^13."""


class Guards(Protocol):
    """Owner of guards, such as a `Throttle`."""

    def guard(self, name: str) -> Guard:
        """Return a handle of the guard with this name."""
        ...


class TransportRefused(GuardRefused, httpx.TransportError):
    """The call was rejected and no fallback answered; an ``httpx.HTTPError``, as callers expect."""

    def __init__(self, refusal: Refusal, request: httpx.Request) -> None:
        super().__init__(refusal)
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


def _mine(landing: Landing) -> httpx.Response:
    """Return the response of the caller that made the call, or raise its exception."""
    if landing.error is not None:
        raise landing.error
    return cast("httpx.Response", landing.response)


def _theirs(landing: Landing, call: HttpCall, ask: Ask) -> httpx.Response | None:
    """Return the response that another caller's call stands for; None: it does not fit this request."""
    error, kept = landing.error, landing.fitting(ask)
    call.outcome = landing.outcome
    if error is not None:
        raise error.with_traceback(landing.trace)
    return None if kept is None else made(kept.aged(call.circuit.clock()), call.request)


class _Face:
    """Parameters of both transports."""

    def __init__(self, throttle: Guards, *, name: str | None = None, key: Key | None = None) -> None:
        self._throttle = throttle
        self._name = name
        self._key = key

    def _call(self, request: httpx.Request) -> HttpCall:
        # Looked up for each call: a guard may be evicted between two calls of one transport.
        circuit = self._throttle.guard(self._name or origin(request.url)).circuit
        served = circuit.served
        http = served.http if isinstance(served, Served) else None
        return HttpCall(circuit, http, request, self._key)


class GuardTransport(_Face, httpx.BaseTransport):
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
        throttle: Guards,
        inner: httpx.BaseTransport | None = None,
        *,
        name: str | None = None,
        key: Key | None = None,
    ) -> None:
        super().__init__(throttle, name=name, key=key)
        self._inner = httpx.HTTPTransport() if inner is None else inner

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Make one call, or answer by a fallback.

        Raises:
            TransportRejected: the guard rejects it, and no fallback answers.
        """
        call = self._call(request)
        served = call.served
        if served is None:
            return self._make(call, call.circuit.admit())
        choice = served.choice(call.ask)
        if choice is not Choice.SERVE:
            loaded = served.loaded(request)
            answer = served.answer(loaded, call.ask, choice, fit)
            if answer is not None:
                return given(answer, loaded.cause, request)
            if choice is Choice.SHED:
                raise TransportRefused(served.shed(), request)
        return self._serve(call, served)

    def _serve(self, call: HttpCall, served: HttpServed) -> httpx.Response:
        request = call.request
        try:
            response = self._live(call, served)
        except Exception as error:
            fault = served.fault(request, error, call.outcome)
            answer = None if fault is None else served.answer(fault, call.ask, check=fit)
            if fault is None or answer is None:
                raise
            return given(answer, fault.cause, request)
        fault = served.fault(request, None, call.outcome)
        try:
            answer = None if fault is None else served.answer(fault, call.ask, check=fit)
        except BaseException:
            if response is not None:
                response.close()
            raise
        if fault is None or answer is None:
            return response or self._make(call, call.circuit.enter())
        if response is not None:
            response.close()
        return given(answer, fault.cause, request)

    def _live(self, call: HttpCall, served: HttpServed) -> httpx.Response | None:
        """Make the call, or wait for a shared one; None: the shared one had a failing status."""
        ask = call.ask
        if ask is None or not served.shares(ask):
            return self._make(call, call.circuit.enter())
        if served.flights.under_way(ask.own):
            found = served.refreshed(ask)
            if found is not None:
                return made(found, call.request)
        landing, ours = served.flights.share(ask.own, partial(self._land, call, ask), call.patience_s)
        response = _mine(landing) if ours else _theirs(landing, call, ask)
        if response is None and call.outcome is not Outcome.FAILURE:
            return self._make(call, call.circuit.enter())
        return response

    def _land(self, call: HttpCall, ask: Ask) -> Landing:
        try:
            response = self._make(call, call.circuit.enter())
            return call.landed(ask, response, read_in(response) if call.short else None)
        except Exception as error:  # noqa: BLE001 - passed on to all waiters
            return call.crashed(ask, error, late=isinstance(error, httpx.TimeoutException))

    def _make(self, call: HttpCall, pass_: Pass | Refusal) -> httpx.Response:
        if isinstance(pass_, Refusal):
            raise TransportRefused(pass_, call.request)
        call.begin(pass_)
        rules = call.circuit.rules
        steps = Steps(call.request, rules.timeout_s, rules.stream_idle_s)
        try:
            response = self._inner.handle_request(steps.request)
        except BaseException as error:
            call.failed(error)
            raise
        steps.body()
        watch = call.answered(response)
        if watch is not None:
            if response.is_closed:
                read_already(response, watch)
            else:
                response.stream = Body(cast("httpx.SyncByteStream", response.stream), watch)
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


class AsyncGuardTransport(_Face, httpx.AsyncBaseTransport):
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
        throttle: Guards,
        inner: httpx.AsyncBaseTransport | None = None,
        *,
        name: str | None = None,
        key: Key | None = None,
    ) -> None:
        super().__init__(throttle, name=name, key=key)
        self._inner = httpx.AsyncHTTPTransport() if inner is None else inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Make one call, or answer by a fallback.

        Raises:
            TransportRejected: the guard rejects it, and no fallback answers.
        """
        call = self._call(request)
        served = call.served
        if served is None:
            return await self._make(call, await call.circuit.admit_async())
        choice = served.choice(call.ask)
        if choice is not Choice.SERVE:
            loaded = served.loaded(request)
            answer = await served.answer_async(loaded, call.ask, choice, fit)
            if answer is not None:
                return given(answer, loaded.cause, request)
            if choice is Choice.SHED:
                raise TransportRefused(served.shed(), request)
        return await self._serve(call, served)

    async def _serve(self, call: HttpCall, served: HttpServed) -> httpx.Response:
        request = call.request
        try:
            response = await self._live(call, served)
        except Exception as error:
            fault = served.fault(request, error, call.outcome)
            answer = None if fault is None else await served.answer_async(fault, call.ask, check=fit)
            if fault is None or answer is None:
                raise
            return given(answer, fault.cause, request)
        fault = served.fault(request, None, call.outcome)
        try:
            answer = None if fault is None else await served.answer_async(fault, call.ask, check=fit)
        except BaseException:
            if response is not None:
                await closed(response)
            raise
        if fault is None or answer is None:
            return response or await self._make(call, await call.circuit.enter_async())
        if response is not None:
            await closed(response)
        return given(answer, fault.cause, request)

    async def _live(self, call: HttpCall, served: HttpServed) -> httpx.Response | None:
        """Make the call, or wait for a shared one; None: the shared one had a failing status."""
        ask = call.ask
        if ask is None or not served.shares(ask):
            return await self._make(call, await call.circuit.enter_async())
        if served.flights.under_way_async(ask.own):
            found = served.refreshed(ask)
            if found is not None:
                return made(found, call.request)
        landing, ours = await served.flights.share_async(
            ask.own, partial(self._land, call, ask), call.patience_s
        )
        response = _mine(landing) if ours else _theirs(landing, call, ask)
        if response is None and call.outcome is not Outcome.FAILURE:
            return await self._make(call, await call.circuit.enter_async())
        return response

    async def _land(self, call: HttpCall, ask: Ask) -> Landing:
        try:
            response = await self._make(call, await call.circuit.enter_async())
            return call.landed(ask, response, await read_in_async(response) if call.short else None)
        except Exception as error:  # noqa: BLE001 - passed on to all waiters
            return call.crashed(ask, error, late=isinstance(error, httpx.TimeoutException))

    async def _make(self, call: HttpCall, pass_: Pass | Refusal) -> httpx.Response:
        if isinstance(pass_, Refusal):
            raise TransportRefused(pass_, call.request)
        call.begin(pass_)
        try:
            response = await self._send(call)
        except BaseException as error:
            call.failed(error)
            raise
        watch = call.answered(response)
        if watch is not None:
            if response.is_closed:
                read_already(response, watch)
            else:
                response.stream = AsyncBody(cast("httpx.AsyncByteStream", response.stream), watch, call)
        return response

    async def _send(self, call: HttpCall) -> httpx.Response:
        limit_s, request = call.circuit.rules.timeout_s, call.request
        if limit_s is None:
            return await self._inner.handle_async_request(request)
        start = partial(self._inner.handle_async_request, request)
        return await in_time(limit_s, start, f"{call.circuit.name} has not answered", request)

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
