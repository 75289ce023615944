"""Bodies of httpx responses: observed in transfer, or built from a fallback's answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, TypeVar, cast

import httpx

from autoglm_throttle.resilience.calls import await_within
from autoglm_throttle.resilience.http.answer import HttpAnswer
from autoglm_throttle.resilience.http.cache import DEGRADED, mark_degraded

if TYPE_CHECKING:
    from autoglm_throttle.resilience.fallback import FallbackAnswer
    from autoglm_throttle.resilience.http.answer import Pairs
    from autoglm_throttle.resilience.http.body import BodyObserver
    from autoglm_throttle.resilience.state import GuardState
    from autoglm_throttle.types import FallbackKind

T = TypeVar("T")

_ENCODING_FIELDS = frozenset({"content-encoding", "content-length", "transfer-encoding"})
"""Fields that are wrong once the body is decoded."""


def pairs(headers: httpx.Headers) -> Pairs:
    """Return header fields as text without loss of bytes."""
    return tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers.raw)


class GuardedBody(httpx.SyncByteStream):
    """A response body that settles its call at the end; read once."""

    def __init__(self, inner: httpx.SyncByteStream, observer: BodyObserver, *_: object) -> None:
        self._inner = inner
        self._parts: Iterator[bytes] = iter(())
        self._observer = observer

    def __iter__(self) -> Iterator[bytes]:
        self._parts = iter(self._inner)
        return self

    def __next__(self) -> bytes:
        observer = self._observer
        observer.reading()
        try:
            part = next(self._parts)
        except StopIteration:
            observer.finished()
            raise
        except BaseException as error:
            observer.failed(error)
            raise
        observer.received(part)
        return part

    def close(self) -> None:
        """Close the body without reading further."""
        self._observer.abandoned()
        self._inner.close()


class AsyncGuardedBody(httpx.AsyncByteStream):
    """An asynchronous response body that settles its call at the end, with a time limit between two parts."""

    def __init__(
        self,
        inner: httpx.AsyncByteStream,
        observer: BodyObserver,
        circuit: GuardState,
        request: httpx.Request,
    ) -> None:
        self._inner = inner
        self._next: Callable[[], Awaitable[bytes]]
        self._observer = observer
        self._circuit = circuit
        self._request = request

    def __aiter__(self) -> AsyncIterator[bytes]:
        self._next = self._inner.__aiter__().__anext__
        return self

    async def __anext__(self) -> bytes:
        observer, limit_s = self._observer, self._circuit.stream_idle_s
        observer.reading()
        try:
            if limit_s is None:
                part = await self._next()
            else:
                text = f"{self._circuit.name} has sent nothing"
                part = await await_in_time(limit_s, self._next, text, self._request)
        except StopAsyncIteration:
            observer.finished()
            raise
        except BaseException as error:
            observer.failed(error)
            raise
        observer.received(part)
        return part

    async def aclose(self) -> None:
        """Close the body without reading further."""
        self._observer.abandoned()
        await self._inner.aclose()


async def await_in_time(
    limit_s: float, start: Callable[[], Awaitable[T]], description: str, request: httpx.Request
) -> T:
    """Await with a time limit.

    Args:
        limit_s: seconds.
        start: creates the awaitable.
        description: text of the error, before the limit.
        request: of the call.

    Raises:
        httpx.ReadTimeout: the limit is exceeded; callers of httpx expect this type.
    """
    try:
        return cast("T", await await_within(limit_s, start, description))
    except TimeoutError as error:
        raise httpx.ReadTimeout(str(error), request=request) from error


def buffered_body(response: httpx.Response) -> bytes | None:
    """Return a body that has arrived; None: it was consumed or decoded already."""
    stream = response.stream
    return b"".join(stream) if isinstance(stream, httpx.ByteStream) else None


def read_body(response: httpx.Response) -> bytes | None:
    """Read a short body to its end; the response can be read again. None: it was consumed already."""
    if not response.is_closed:
        stream = cast("httpx.SyncByteStream", response.stream)
        try:
            response.stream = httpx.ByteStream(b"".join(stream))
        finally:
            stream.close()
    return buffered_body(response)


async def read_body_async(response: httpx.Response) -> bytes | None:
    """Read a short body as `read_body` does, without blocking the event loop."""
    if not response.is_closed:
        stream = cast("httpx.AsyncByteStream", response.stream)
        try:
            response.stream = httpx.ByteStream(b"".join([part async for part in stream]))
        finally:
            await stream.aclose()
    return buffered_body(response)


async def close_async(response: httpx.Response) -> None:
    """Close a response even during cancellation: its connection returns to the pool."""
    import anyio

    with anyio.CancelScope(shield=True):
        await response.aclose()


def check_response(value: object, fallback_kind: FallbackKind) -> None:
    """Accept an `HttpAnswer` or an ``httpx.Response``.

    Args:
        value: of a fallback.
        fallback_kind: of that fallback.

    Raises:
        TypeError: any other type.
    """
    if not isinstance(value, HttpAnswer | httpx.Response):
        kind = type(value).__name__
        raise TypeError(
            f"the {fallback_kind} fallback of HTTP must give an HttpAnswer or a Response, not {kind}"
        )


def fallback_response(answer: FallbackAnswer, request: httpx.Request) -> httpx.Response:
    """Build the response of a fallback's answer.

    Args:
        answer: with a value accepted by `check_response`; the body of a response may still be unread.
        request: of the call.
    """
    value = answer.value
    if isinstance(value, httpx.Response):
        if not value.is_closed:
            # An unread stream is passed through: reading it here would buffer it.
            value.headers[DEGRADED] = f"{answer.kind}; cause={answer.cause}"
            return value
        # `content` is decoded, so the encoding fields of the response no longer apply.
        fields = [pair for pair in pairs(value.headers) if pair[0].lower() not in _ENCODING_FIELDS]
        length = ("content-length", str(len(value.content)))
        value = HttpAnswer(value.status_code, [*fields, length], value.content)
    return build_response(mark_degraded(value, answer.kind, answer.cause), request)


def build_response(answer: HttpAnswer, request: httpx.Request) -> httpx.Response:
    """Build the response of a complete answer."""
    return httpx.Response(
        answer.status,
        headers=[(name.encode("latin-1"), text.encode("latin-1")) for name, text in answer.headers],
        stream=httpx.ByteStream(b"" if request.method == "HEAD" else answer.body),
        request=request,
    )


class StepLimits:
    """Time limits of the steps of a synchronous call, since a blocked thread cannot be interrupted.

    They are set in the request that is sent, beside the caller's own; the shorter one counts.

    Args:
        request: the caller's; it is not changed.
        timeout_s: for each step until the headers; None: the caller's own.
        idle_s: for each read of the body; None: the caller's own.
    """

    __slots__ = ("_idle_s", "_limits", "_read_s", "request")

    def __init__(self, request: httpx.Request, timeout_s: float | None, idle_s: float | None) -> None:
        # This dict travels in the request, and `body` changes it once the headers have arrived.
        own: dict[str, float | None] = dict(request.extensions.get("timeout") or {})
        self._read_s = own.get("read")
        self._idle_s = idle_s
        self._limits = own
        self.request: httpx.Request = request
        if timeout_s is None and idle_s is None:
            return
        for step in ("connect", "read", "write", "pool"):
            own[step] = _min_limit(own.get(step), timeout_s)
        self.request = httpx.Request(
            request.method,
            request.url,
            headers=request.headers,
            stream=request.stream,
            extensions={**request.extensions, "timeout": own},
        )

    def start_body(self) -> None:
        """Apply the limit of the body to each further read; called when the headers have arrived."""
        self._limits["read"] = _min_limit(self._read_s, self._idle_s)


def _min_limit(one_s: float | None, other_s: float | None) -> float | None:
    return min((limit for limit in (one_s, other_s) if limit is not None), default=None)
