"""Bodies of httpx responses: observed in transfer, or built from a fallback's answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any, TypeVar, cast

import httpx

from autoglm_throttle.resilience.calls import PendingCall, await_within
from autoglm_throttle.resilience.fallback import FallbackAnswer
from autoglm_throttle.resilience.http.answer import HttpAnswer, Pairs
from autoglm_throttle.resilience.http.cache import DEGRADED, CachePolicy, mark_degraded
from autoglm_throttle.resilience.state import GuardState
from autoglm_throttle.types import GuardPermit, Outcome

T = TypeVar("T")

# Fields that are wrong once the body is decoded.
_ENCODING_FIELDS = frozenset({"content-encoding", "content-length", "transfer-encoding"})


def pairs(headers: httpx.Headers) -> Pairs:
    """Return header fields as text without loss of bytes."""
    return tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers.raw)


class BodyObserver:
    """Holds the permit of one call from the response headers to the end of its body.

    Only the dependency's time can be slow: the time that the reader takes between two parts does not count. A
    response that is dropped unread counts as neutral. ``length`` is None if it is unknown before the end.
    """

    __slots__ = (
        *("_cache_policy", "_clock", "_length", "_limit_s", "_received_bytes", "_spent_s", "_started_s"),
        *("_stream", "outcome"),
    )

    def __init__(
        self,
        circuit: GuardState,
        permit: GuardPermit,
        begun_s: float,
        length: int | None,
        cache_policy: CachePolicy | None = None,
    ) -> None:
        self._stream = PendingCall(circuit, permit, begun_s)  # returns its slot if it is dropped
        self._clock = circuit.clock
        self._length = length
        self._cache_policy = cache_policy
        self._received_bytes = 0
        self._limit_s = circuit.slow_call_s if circuit.first_item_s is None else None
        self._spent_s = 0.0
        self._started_s = begun_s
        self.outcome: Outcome = Outcome.NEUTRAL  # Outcome of a body that failed
        self._stop_timer()

    def reading(self) -> None:
        """Record that the reader waits for the next part."""
        if self._limit_s is not None:
            self._started_s = self._clock()

    def received(self, part: bytes) -> None:
        """Record a part of the body."""
        self._stop_timer()
        if part:
            self._record_first_part()
            self._received_bytes += len(part)
            if self._cache_policy is not None:
                self._cache_policy.add(part)

    def complete(self, body: bytes | None) -> None:
        """Record a body that arrived with the headers; None: it was consumed or decoded already."""
        if body is None:
            self._cache_policy = None
        else:
            self.received(body)
        self.finished()

    def finished(self) -> None:
        """Record that the body is complete."""
        self._stop_timer()
        self._record_first_part()
        if self._limit_s is not None and self._spent_s > self._limit_s:
            self._stream.record(Outcome.SLOW)
        self._stream.record_end()
        policy, self._cache_policy = self._cache_policy, None
        if policy is not None:
            policy.store()

    def ended(self, error: BaseException) -> None:
        """Record the end of the iteration, an error of the body, or a cancellation of its reader."""
        if isinstance(error, StopIteration | StopAsyncIteration):
            self.finished()
            return
        self._cache_policy = None
        self.outcome = self._stream.settle(error, raised=True, is_stream=True) or self.outcome

    def abandoned(self) -> None:
        """Record that the reader stopped; after the last byte this counts as complete."""
        if self._length is not None and self._received_bytes >= self._length:
            self.finished()
        else:
            self._cache_policy = None
            self._stream.record(Outcome.NEUTRAL)

    def _stop_timer(self) -> None:
        if self._limit_s is not None:
            now = self._clock()
            self._spent_s += now - self._started_s
            self._started_s = now

    def _record_first_part(self) -> None:
        if self._stream.awaits_first_item:
            self._stream.record_first_item()


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
        except BaseException as error:
            observer.ended(error)
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
        except BaseException as error:
            observer.ended(error)
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
    """Await with a time limit; it raises httpx.ReadTimeout, which callers of httpx expect."""
    try:
        return cast("T", await await_within(limit_s, start, description))
    except TimeoutError as error:
        raise httpx.ReadTimeout(str(error), request=request) from error


def buffered_body(response: httpx.Response) -> bytes | None:
    """Return a body that has arrived; None: it was consumed or decoded already."""
    stream = response.stream
    return b"".join(stream) if isinstance(stream, httpx.ByteStream) else None


class RejoinedBody(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body of which some parts were read; read once."""

    def __init__(self, parts: list[bytes], rest: Any, stream: Any) -> None:  # noqa: ANN401 - of either kind
        self._parts = parts
        self._rest = rest
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        yield from self._parts
        while (part := next(self._rest, None)) is not None:
            yield part

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for read in self._parts:
            yield read
        while (part := await anext(self._rest, None)) is not None:
            yield part

    def close(self) -> None:
        """Close the body without reading further."""
        self._stream.close()

    async def aclose(self) -> None:
        """Close the body without reading further."""
        await self._stream.aclose()


def read_body(response: httpx.Response, max_bytes: int) -> bytes | None:
    """Read a short body to its end; the response can be read again.

    None: it was consumed already, or is longer than ``max_bytes``, and further parts are unread.
    """
    if response.is_closed:
        return buffered_body(response)
    stream: Any = response.stream
    parts, rest, size = [], iter(stream), 0
    try:
        while size <= max_bytes and (part := next(rest, None)) is not None:
            parts.append(part)
            size += len(part)
    except BaseException:
        stream.close()
        raise
    if size > max_bytes:
        response.stream = RejoinedBody(parts, rest, stream)
        return None
    stream.close()
    response.stream = httpx.ByteStream(b"".join(parts))
    return b"".join(parts)


async def read_body_async(response: httpx.Response, max_bytes: int) -> bytes | None:
    """Read a short body as `read_body` does, without blocking the event loop."""
    if response.is_closed:
        return buffered_body(response)
    stream: Any = response.stream
    parts, rest, size = [], aiter(stream), 0
    try:
        while size <= max_bytes and (part := await anext(rest, None)) is not None:
            parts.append(part)
            size += len(part)
    except BaseException:
        await stream.aclose()
        raise
    if size > max_bytes:
        response.stream = RejoinedBody(parts, rest, stream)
        return None
    await stream.aclose()
    response.stream = httpx.ByteStream(b"".join(parts))
    return b"".join(parts)


async def close_async(response: httpx.Response) -> None:
    """Close a response even during cancellation: its connection returns to the pool."""
    import anyio

    with anyio.CancelScope(shield=True):
        await response.aclose()


def fallback_response(answer: FallbackAnswer, request: httpx.Request) -> httpx.Response:
    """Build the response of a fallback's answer."""
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


def limit_steps(
    request: httpx.Request, timeout_s: float | None, idle_s: float | None
) -> tuple[httpx.Request, Callable[[], object]]:
    """Limit the steps of a synchronous call, since a blocked thread cannot be interrupted.

    The caller's own limits count if they are shorter. Return the request to send, and the function that
    applies the limit of the body to each further read once the headers have arrived.
    """
    if timeout_s is None and idle_s is None:
        return request, lambda: None
    own: dict[str, float | None] = dict(request.extensions.get("timeout") or {})
    body_s = min_limit(own.get("read"), idle_s)
    for step in ("connect", "read", "write", "pool"):
        own[step] = min_limit(own.get(step), timeout_s)
    limited = httpx.Request(
        request.method,
        request.url,
        headers=request.headers,
        stream=request.stream,
        extensions={**request.extensions, "timeout": own},
    )
    return limited, partial(own.__setitem__, "read", body_s)


def min_limit(one_s: float | None, other_s: float | None) -> float | None:
    """Return the shorter of two limits; None: there is none."""
    return min((limit for limit in (one_s, other_s) if limit is not None), default=None)
