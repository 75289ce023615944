"""For FastAPI: an additional charge as a dependency, the refusals of guards, and all refusals in OpenAPI."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, MutableMapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException, WebSocketException
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from autoglm_throttle.asgi import MARKER, Callers, RouteTable, ThrottleMiddleware, exempt, mark
from autoglm_throttle.asgi.answers import Answers, refused_by
from autoglm_throttle.asgi.blame import excuse
from autoglm_throttle.asgi.marks import visible
from autoglm_throttle.asgi.middleware import TRY_AGAIN_LATER, close_reason
from autoglm_throttle.asgi.routes import path_of
from autoglm_throttle.journal import LOGGER
from autoglm_throttle.model import Decision, Demand, GuardRefused, Hint, Outcome, Priority, Refused
from autoglm_throttle.permit import Permit, Rejection
from autoglm_throttle.settings import RoutePolicy, Settings
from autoglm_throttle.snapshot import REPLACEABLE
from autoglm_throttle.throttle import Throttle

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = [
    "ThrottleProblem",
    "document",
    "exempt",
    "guard_refused",
    "hint",
    "limit",
    "mark",
    "throttle_responses",
]

HELD: Final = "autoglm_throttle.held"
"""The scope entry with the throttles of which a dependency holds a place for the request."""

Dependency = Callable[[HTTPConnection], AsyncIterator[Permit | None]]


class ThrottleProblem(BaseModel):
    """The body of a refusal: RFC 9457 with three members of our own."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")

    type: str = Field(description="A URI that names the kind of problem.")
    title: str = Field(description="The status in words.")
    status: int = Field(description="The status of the answer.")
    detail: str = Field(description="Whose limit it is, and when to come back.")
    violated_policies: list[str] = Field(alias="violated-policies", description="Names of the limits.")
    reason: str = Field(description="The finer reason, such as rate:low, user:user-60s or gpu:stop.")
    retry_after_s: float | None = Field(None, description="The exact wait in seconds; absent if none helps.")


_SENTENCES: Final = {
    413: "The request costs more than the limit can ever admit.",
    429: "The caller has used up a limit of its own.",
    503: "The service has no capacity left.",
}

_FIELDS: Final = {
    "Retry-After": ("integer", "Seconds to wait, at least 1."),
    "RateLimit": ("string", "What is left of each user limit, where there is one."),
    "RateLimit-Policy": ("string", "The user limits themselves, where there are any."),
}

_METHODS: Final = ("get", "put", "post", "delete", "patch", "head", "trace")
"""Operations of a path in OpenAPI; OPTIONS is exempt."""


def limit(
    priority: Priority | str | None = None, cost: float = 1.0, *, throttle: Throttle | None = None
) -> Dependency:
    """Make a dependency that charges the caller once more: ``Depends(limit(priority="high", cost=4))``.

    It runs after the middleware and after the body was parsed, takes ``cost`` units from the bucket of
    its priority and from the caller's user windows, and counts as a request of its own, but not as another
    one in flight. Only a ``throttle`` that has not let the request in yet may make it wait for a place.
    The caller is whom the middleware saw. Refused inside the middleware, the answer is the middleware's;
    where an app with error handling of its own stands between them, and without the middleware, the same
    status and fields come with FastAPI's error body. It is never a 500.

    A request that the throttle exempts is not charged here either. Where there is no middleware and no
    ``throttle`` is given, nothing is charged and a warning is logged once: an app whose middleware is
    switched off in one environment must not fail there.

    Args:
        priority: whose bucket pays: ``high``, ``mid``, ``low``; None: that of the request.
        cost: units to take, > 0.
        throttle: the limits; None: those of the innermost middleware that charged the request.

    Raises:
        ConfigError: an argument is not allowed.
    """
    policy = RoutePolicy("/", priority=priority, cost=cost)
    door = _Door(throttle)

    async def charge(connection: HTTPConnection) -> AsyncIterator[Permit | None]:
        charged = door.before(connection)
        if charged is None:
            yield None
            return
        whose, demand = charged
        held: set[Throttle] = connection.scope.setdefault(HELD, set())
        inside = whose in held or whose in (connection.scope.get(MARKER) or {})
        verdict = await whose.admit(_further(demand, policy, holds_slot=demand.holds_slot and not inside))
        if isinstance(verdict, Rejection):
            raise _refusal(connection, whose, verdict.decision)
        held.add(whose)
        try:
            yield verdict
        except BaseException as error:
            verdict.settle(_outcome(error))
            raise
        else:
            verdict.settle(Outcome.SUCCESS)

    return charge


def hint(connection: HTTPConnection) -> Hint | None:
    """How the request should be served, as a dependency: ``Annotated[Hint | None, Depends(hint)]``.

    None without ``QUOTAS``, and where the request is exempt.
    """
    found = (connection.scope.get("state") or {}).get(MARKER)
    return found if isinstance(found, Hint) else None


async def guard_refused(connection: HTTPConnection, error: Exception) -> Any:  # noqa: ANN401 - as the connection is
    """Answer for a refused guard: ``app.add_exception_handler(GuardRefused, guard_refused)``.

    The answer is the middleware's: 503 with a problem document and Retry-After; a websocket is closed with
    1013. An app that has the middleware among its own (``app.add_middleware``) gets it without this line;
    one that is wrapped or mounted would answer 500 before the middleware sees the exception. The request
    says nothing about the app, neither to the limits nor to a breaker round the app.

    Args:
        connection: the request or the websocket; Starlette gives it.
        error: the `GuardRefused`; Starlette gives it.

    Returns:
        The response; None for a websocket, which is closed.
    """
    if not isinstance(error, GuardRefused):
        raise error
    seen: dict[Throttle, object] = connection.scope.get(MARKER) or {}
    for permit in seen.values():
        if isinstance(permit, Permit) and not permit.settled:
            permit.settle(Outcome.NEUTRAL)
    excuse(connection.scope, error.refusal.cause)
    decision = refused_by(error.refusal)
    if isinstance(connection, WebSocket):
        await connection.close(TRY_AGAIN_LATER, close_reason(decision))
        return None
    innermost = next(reversed(seen), None)
    status, fields, body = _answers(innermost.settings if innermost is not None else Settings()).refusal(
        decision
    )
    response = Response(body, status)
    response.raw_headers = fields
    return response


class _Door:
    """Finds the throttle to ask, and who asks."""

    def __init__(self, throttle: Throttle | None) -> None:
        self._own = None
        if throttle is not None:
            self._own = throttle, Callers(throttle.settings, RouteTable(), hint=throttle.hint)
        self._warned = False

    def before(self, connection: HTTPConnection) -> tuple[Throttle, Demand] | None:
        """Whom to charge with what the request asked for; None: nobody."""
        seen: dict[Throttle, Permit | None] = connection.scope.get(MARKER) or {}
        if self._own is None:
            charged = [(throttle, permit.demand) for throttle, permit in seen.items() if permit is not None]
            if not seen:
                self._warn()
            return charged[-1] if charged else None
        throttle, callers = self._own
        if throttle not in seen:
            if path_of(connection.scope) in throttle.settings.exempt_paths:
                return None
            return throttle, callers.demand(connection.scope)
        permit = seen[throttle]
        return None if permit is None else (throttle, permit.demand)

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            LOGGER.warning(
                "limit() charges nothing: no ThrottleMiddleware has seen the request; "
                "add the middleware, or give limit() a throttle"
            )


def _further(demand: Demand, policy: RoutePolicy, *, holds_slot: bool) -> Demand:
    """The same caller, with the price of the dependency.

    A request that is inside must not wait for a second place: if all did, nobody would ever leave.
    """
    return Demand(
        demand.priority if policy.priority is None else policy.priority,
        demand.user,
        policy.cost,
        plan=demand.plan,
        route=demand.route,
        address=demand.address,
        group=demand.group,
        slo_s=demand.slo_s,
        holds_slot=holds_slot,
        memory_bytes=demand.memory_bytes,
        precision=demand.precision,
    )


def _refusal(connection: HTTPConnection, throttle: Throttle, decision: Decision) -> Exception:
    """What to raise, so that no error handling on the way out makes a 500 of it."""
    if _reaches_middleware(connection, throttle):
        return Refused(decision)
    if connection.scope["type"] == "websocket":
        return WebSocketException(TRY_AGAIN_LATER, close_reason(decision))
    excuse(connection.scope, "load" if decision.reason in REPLACEABLE else "")
    status, fields, body = _answers(throttle.settings).refusal(decision)
    headers = {name.decode(): value.decode() for name, value in fields if not name.startswith(b"content-")}
    return HTTPException(status, json.loads(body)["detail"], headers)


def _answers(settings: Settings) -> Answers:
    return Answers(
        settings.headers, retry_after_max_s=settings.retry_after_max_s, jitter=settings.retry_jitter
    )


def _reaches_middleware(connection: HTTPConnection, throttle: Throttle) -> bool:
    """Whether the app that handles the request has the middleware among its own.

    Then nothing of Starlette's stands between them. An app that is wrapped or mounted
    would turn an exception that it does not know into a 500 before the middleware sees it.
    """
    if throttle not in (connection.scope.get(MARKER) or {}):
        return False
    added: Iterable[Any] = getattr(connection.scope.get("app"), "user_middleware", ())
    return any(isinstance(one.cls, type) and issubclass(one.cls, ThrottleMiddleware) for one in added)


def _outcome(error: BaseException) -> Outcome:
    if isinstance(error, HTTPException):
        return Outcome.FAILURE if error.status_code >= 500 else Outcome.SUCCESS
    if isinstance(error, (ClientDisconnect, WebSocketDisconnect, Refused)) or not isinstance(
        error, Exception
    ):
        return Outcome.NEUTRAL
    return Outcome.FAILURE


def throttle_responses() -> dict[int | str, dict[str, Any]]:
    """The refusals for one route: ``@app.get("/", responses=throttle_responses())``."""
    return _responses(ThrottleProblem.model_json_schema())


def document(app: FastAPI, *, throttle: Throttle | None = None) -> None:
    """Add the refusals to every operation of the OpenAPI document that the throttle guards.

    What the user has written for a status stays. Calling it twice changes nothing.
    Mounted apps have documents of their own.

    Args:
        app: whose document.
        throttle: whose exempt paths and routes are left out; None: those of the default settings.
    """
    settings = throttle.settings if throttle is not None else Settings()
    make = app.openapi

    def openapi() -> dict[str, Any]:
        schema = make()
        routes = RouteTable([*settings.routes, *visible(app)])
        _describe(schema, lambda path, method: _exempt(settings, routes, path, method))
        return schema

    app.openapi = openapi  # type: ignore[method-assign]  # the way that FastAPI documents


def _exempt(settings: Settings, routes: RouteTable, path: str, method: str) -> bool:
    if path in settings.exempt_paths:
        return True
    route = routes.match(path, method.upper())
    return route is not None and route.exempt


def _describe(schema: MutableMapping[str, Any], passes: Callable[[str, str], bool]) -> None:
    schemas = schema.setdefault("components", {}).setdefault("schemas", {})
    schemas.setdefault(ThrottleProblem.__name__, ThrottleProblem.model_json_schema())
    reference = {"$ref": f"#/components/schemas/{ThrottleProblem.__name__}"}
    for path, operations in schema.get("paths", {}).items():
        for method in _METHODS:
            if method in operations and not passes(path, method):
                responses = operations[method].setdefault("responses", {})
                for status, response in _responses(reference).items():
                    responses.setdefault(str(status), response)


def _responses(problem: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    return {
        status: {
            "description": sentence,
            "headers": _headers(status),
            "content": {"application/problem+json": {"schema": problem}},
        }
        for status, sentence in _SENTENCES.items()
    }


def _headers(status: int) -> dict[str, Any]:
    """The fields of a refusal; no wait helps a request that is too large."""
    return {
        name: {"description": about, "schema": {"type": kind}}
        for name, (kind, about) in _FIELDS.items()
        if status != 413 or name != "Retry-After"
    }
