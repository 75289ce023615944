"""Transports for httpx that guard each call: ``httpx.Client(transport=GuardTransport(throttle))``.

Each hop of a redirect is a call of its own. Retries belong outside the client, so each try requests a permit.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from hashlib import sha256
from types import TracebackType
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from autoglm_throttle._runtime import how_to_install
from autoglm_throttle.resilience.calls import GuardedAttempt
from autoglm_throttle.resilience.drive import Steps, drive_async, drive_sync
from autoglm_throttle.resilience.fallback import FallbackAnswer
from autoglm_throttle.resilience.feature_executor import FeatureExecutor
from autoglm_throttle.resilience.guard import Guard
from autoglm_throttle.resilience.http.cache import CacheKey
from autoglm_throttle.settings import ConfigError, Problem
from autoglm_throttle.settings.policies import NAME_CHARACTERS
from autoglm_throttle.settings.problems import repr_for_user

try:
    import httpx
except ImportError:
    raise ImportError(f"guarded transports need httpx: {how_to_install('httpx')}", name="httpx") from None

from autoglm_throttle.resilience.http.body import (
    AsyncGuardedBody,
    GuardedBody,
    await_in_time,
    fallback_response,
    limit_steps,
)
from autoglm_throttle.resilience.http.call import HttpCall, TransportRejected
from autoglm_throttle.resilience.http.tracing import record_call

__all__ = [
    "AsyncGuardTransport",
    "GuardSource",
    "GuardTransport",
    "TransportRejected",
    "origin",
    "parse_origins",
]

CHECKSUM_CHARACTERS: Final = 16  # 64 bits: a collision among a thousand names has a probability of 1 in 10^13


class GuardSource(Protocol):
    """Owner of guards, such as a `Throttle`."""

    def guard(self, name: str) -> Guard:
        """Return a handle of the guard with this name."""


def origin(url: httpx.URL) -> str:
    """Return scheme, host and port, such as ``https://models.test:8443``, without the scheme's default port.

    A host may have 253 characters, more than the name of a guard: longer names end in a checksum.
    """
    name = f"{url.scheme}://{url.netloc.decode('ascii')}"
    if len(name) <= NAME_CHARACTERS:
        return name
    checksum = sha256(name.encode()).hexdigest()[:CHECKSUM_CHARACTERS]
    return f"{name[: NAME_CHARACTERS - CHECKSUM_CHARACTERS - 1]}~{checksum}"


def parse_origins(name: str, texts: Sequence[str]) -> list[httpx.URL]:
    """Parse URLs of a scheme, host and port, without user, path, query and fragment; each may occur once.

    Raises:
        ConfigError: there is none, or some are wrong: with a problem called ``name`` for each.
    """
    urls: dict[str, httpx.URL] = {}
    problems = [] if texts else ["at least one is needed, such as http://127.0.0.1:8000"]
    for text in texts:
        url = _parse_origin(text)
        if url is None:
            form = "http://HOST[:PORT] or https://HOST[:PORT], port 1 to 65535, without user, path and query"
            problems.append(f"{repr_for_user(text)} must be {form}")
        elif urls.setdefault(origin(url), url) is not url:
            problems.append(f"{repr_for_user(text)} is given twice")
    if problems:
        raise ConfigError(Problem(name, problem) for problem in problems)
    return list(urls.values())


def _parse_origin(text: str) -> httpx.URL | None:
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, TypeError):
        return None
    has_more = url.userinfo or url.raw_path not in {b"", b"/"} or url.fragment
    has_port = url.port is None or 1 <= url.port <= 65_535
    is_origin = url.scheme in {"http", "https"} and url.host and has_port and not has_more
    return url if is_origin else None


def _identity(inner: object) -> Hashable:
    # A part of cache keys: two inner transports may have the certificates of two clients. A weak reference is
    # equal only to one of the same object, also after the end of the object, unlike its `id`.
    try:
        reference = weakref.ref(inner)
        hash(reference)
    except TypeError:
        return object()
    return reference


Inner = TypeVar("Inner", httpx.BaseTransport, httpx.AsyncBaseTransport)


class _TransportBase(Generic[Inner]):
    """Parameters of both transports, and a call through either of them."""

    _new_inner: Callable[[], Inner]
    _body: Callable[..., httpx.SyncByteStream | httpx.AsyncByteStream]

    def __init__(
        self,
        throttle: GuardSource,
        inner: Inner | None = None,
        *,
        name: str | None = None,
        key: CacheKey | None = None,
    ) -> None:
        self._throttle = throttle
        self._inner: Inner = self._new_inner() if inner is None else inner
        self._connection: Hashable = None if inner is None else _identity(inner)
        self._name = name
        self._key = key

    def _serve(self, request: httpx.Request) -> Steps[httpx.Response]:
        # Looked up for each call: a guard may be evicted between two calls of one transport.
        circuit = self._throttle.guard(self._name or origin(request.url)).circuit
        call = HttpCall(circuit, request, self._send, self._body)
        executor = circuit.executor
        served: GuardedAttempt | FallbackAnswer
        if isinstance(executor, FeatureExecutor):
            call.replaces_values = executor.replaces_status
            if executor.responses is not None:
                call.use_cache(executor.responses, self._key, self._connection)
            served = yield from executor.serve(call)
        else:
            served = yield from call.run(sheds=True)
        if isinstance(served, FallbackAnswer):
            record_call(circuit.name, fallback=served.kind.value, cause=served.cause)
            return fallback_response(served, request)
        if served.rejection is not None:
            record_call(circuit.name, cause=served.rejection.cause.value)
            raise call.rejected(served.rejection)
        record_call(circuit.name)
        return cast("httpx.Response", served.unwrap())

    def _send(self, call: HttpCall) -> Any:  # noqa: ANN401 - a response, or its awaitable
        raise NotImplementedError


class GuardTransport(_TransportBase[httpx.BaseTransport], httpx.BaseTransport):
    """A transport for ``httpx.Client``; safe for any number of threads.

    ``timeout_s`` limits each step of a call until its headers (connecting, sending, one read) and
    ``stream_idle_s`` each read of the body. Both depend on the inner transport, which must honour the
    request's time-outs: a blocked thread cannot be interrupted.

    Args:
        throttle: owns the guards.
        inner: makes the calls; by default ``httpx.HTTPTransport()``. It is closed with this one.
        name: of the guard; by default each origin has its own, named like ``https://models.test:8443``.
        key: computes the cache key of a request, instead of method and URL, for fallbacks with ``stale``;
            None as its result: do not cache. The Host field and the inner transport always count.
            Requests with a body, or with a field that may identify the user, are cached only with such a
            key, which must distinguish users and bodies.
    """

    _new_inner = httpx.HTTPTransport
    _body = GuardedBody

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Make one call, or answer by a fallback.

        Raises:
            TransportRejected: the guard rejects it, and no fallback answers.
        """
        return drive_sync(self._serve(request))

    def _send(self, call: HttpCall) -> httpx.Response:
        circuit = call.circuit
        request, start_body = limit_steps(call.request, circuit.timeout_s, circuit.stream_idle_s)
        response = self._inner.handle_request(request)
        start_body()
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


class AsyncGuardTransport(_TransportBase[httpx.AsyncBaseTransport], httpx.AsyncBaseTransport):
    """A transport for ``httpx.AsyncClient``, under asyncio and trio.

    ``timeout_s`` limits a call until its headers, ``stream_idle_s`` the time between two parts of the body;
    both raise ``httpx.ReadTimeout``.
    The arguments are those of `GuardTransport`; ``inner`` is by default ``httpx.AsyncHTTPTransport()``.
    """

    _new_inner = httpx.AsyncHTTPTransport
    _body = AsyncGuardedBody

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Make one call, or answer by a fallback.

        Raises:
            TransportRejected: the guard rejects it, and no fallback answers.
        """
        return await drive_async(self._serve(request))

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
