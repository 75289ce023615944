"""Guards for transports, and one call through each of the faces, over a transport that is no network's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anyio
import httpx

from autoglm_throttle.resilience.classify import OutcomeClassifier
from autoglm_throttle.resilience.degradation import DegradationController
from autoglm_throttle.resilience.fallback import Fallback, Feature
from autoglm_throttle.resilience.feature_executor import FeatureExecutor
from autoglm_throttle.resilience.guard import Guard
from autoglm_throttle.resilience.httpx import AsyncGuardTransport, GuardTransport
from autoglm_throttle.resilience.state import GuardState
from autoglm_throttle.settings.groups.breaker import BreakerSettings, DegradationSettings
from autoglm_throttle.testing import ManualClock
from autoglm_throttle.types import BreakerView, Criticality, FallbackKind, GuardPermit, Outcome

URL = "http://vectors.test/near"

FACES = ("sync", "asyncio", "trio")

Handler = Callable[[httpx.Request], httpx.Response]


class Guarded:
    """A source of guards: builds one circuit per name, all with the same rules.

    Args:
        rules: of each breaker.
        fallback: of each feature.
        criticality: of each feature.
        judge: of each guard.
    """

    def __init__(
        self,
        rules: BreakerSettings | None = None,
        fallback: Fallback | None = None,
        criticality: Criticality = Criticality.CORE,
        classifier: OutcomeClassifier | None = None,
        body_bytes: int = 1000,
    ) -> None:
        self.clock = ManualClock()
        self.load: float | None = 0.0
        self.counted: list[tuple[str, FallbackKind, str]] = []
        self.outcomes: list[Outcome] = []
        self.circuits: dict[str, GuardState] = {}
        self._inner = httpx.MockTransport(ok)
        self._rules = rules or BreakerSettings()
        self._fallback = fallback
        self._criticality = criticality
        self._classifier = classifier
        self._settings = DegradationSettings(samples=1, cache_entries=8, cache_body_bytes=body_bytes)
        self.degradation = DegradationController(
            self._settings, lambda: self.load, 1.0, self.clock, lambda *_: None
        )

    def inner(self, handler: Any) -> httpx.MockTransport:
        """Return the one inner transport of all calls, with this handler from now on."""
        self._inner.handler = handler
        return self._inner

    def guard(self, name: str) -> Guard:
        if name not in self.circuits:
            self.circuits[name] = self._made(name)
        return Guard(self.circuits[name])

    def _made(self, name: str) -> GuardState:
        circuit = Noting(name, self._rules, self.clock, self._classifier, self.outcomes)
        if self._fallback is None and self._criticality is Criticality.CORE:
            return circuit
        feature = Feature(name, criticality=self._criticality, fallback=self._fallback)
        circuit.attach(FeatureExecutor(circuit, feature, self.degradation, self.count, self._settings))
        return circuit

    def count(self, name: str, fallback_kind: FallbackKind, cause: str) -> None:
        self.counted.append((name, fallback_kind, cause))

    def loaded(self, load: float) -> None:
        """Have this load known from now on."""
        self.load = load
        self.clock.advance(1.0)

    def view(self, name: str = "dep") -> BreakerView:
        return self.circuits[name].view()


class Noting(GuardState):
    """A circuit that records its outcomes."""

    __slots__ = ("outcomes",)

    def __init__(
        self,
        name: str,
        rules: BreakerSettings,
        clock: ManualClock,
        classifier: OutcomeClassifier | None,
        outcomes: list[Outcome],
    ) -> None:
        super().__init__(name, rules, clock=clock, classifier=classifier)
        self.outcomes = outcomes

    def record(self, permit: GuardPermit, outcome: Outcome, error: BaseException | str | None = None) -> None:
        self.outcomes.append(outcome)
        super().record(permit, outcome, error)


class Parts(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body in parts; a part that is an exception is raised, one that is a function is called."""

    def __init__(self, *parts: bytes | BaseException | Callable[[], object]) -> None:
        self.parts = parts
        self.closed = 0

    def __iter__(self) -> Iterator[bytes]:
        for part in self.parts:
            if isinstance(part, BaseException):
                raise part
            if isinstance(part, bytes):
                yield part
            else:
                part()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self:
            yield part

    def close(self) -> None:
        self.closed += 1

    async def aclose(self) -> None:
        self.closed += 1


def ok(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, stream=Parts(b"fi", b"ne"))


def status(code: int, **headers: str) -> Handler:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _: httpx.Response(code, headers=named, stream=Parts(b"said"))


def raising(error: BaseException) -> Handler:
    def handler(_: httpx.Request) -> httpx.Response:
        raise error

    return handler


def call(
    face: str,
    guarded: Guarded,
    handler: Handler,
    method: str = "GET",
    *,
    url: str = URL,
    name: str | None = "dep",
    key: Callable[[Any], Any] | None = None,
    parts: int | None = None,
    **options: Any,
) -> httpx.Response:
    """Make one call and read its body.

    Args:
        face: one of `FACES`.
        guarded: has the guards.
        handler: makes the response.
        method: of the request.
        url: of the request.
        name: of the guard.
        key: of the transport.
        parts: leave after so many parts of the body; None: read it all.
        options: of the request.
    """
    inner = guarded.inner(handler)
    if face == "sync":
        transport = GuardTransport(guarded, inner, name=name, key=key)
        with httpx.Client(transport=transport) as client:
            return _called(client, method, url, parts, options)

    async def calling() -> httpx.Response:
        transport = AsyncGuardTransport(guarded, inner, name=name, key=key)
        async with httpx.AsyncClient(transport=transport) as client:
            return await _called_async(client, method, url, parts, options)

    return anyio.run(calling, backend=face)


def _called(
    client: httpx.Client, method: str, url: str, parts: int | None, options: dict[str, Any]
) -> httpx.Response:
    if parts is None:
        return client.request(method, url, **options)
    with client.stream(method, url, **options) as response:
        taking = response.iter_raw()
        for _ in range(parts):
            next(taking)
        return response


async def _called_async(
    client: httpx.AsyncClient, method: str, url: str, parts: int | None, options: dict[str, Any]
) -> httpx.Response:
    if parts is None:
        return await client.request(method, url, **options)
    async with client.stream(method, url, **options) as response:
        taking = response.aiter_raw()
        for _ in range(parts):
            await anext(taking)
        return response
