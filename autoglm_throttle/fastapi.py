"""FastAPI helpers: an additional charge as a dependency, rejected guards, rejections in OpenAPI."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException, WebSocketException
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.websockets import WebSocket

from autoglm_throttle.admission.counters import REPLACEABLE
from autoglm_throttle.admission.permit import Permit, Rejection
from autoglm_throttle.asgi import RequestClassifier, RouteTable, ThrottleMiddleware, exempt, mark
from autoglm_throttle.asgi.dialects import PROBLEM, dialect_of
from autoglm_throttle.asgi.marks import visible_routes
from autoglm_throttle.asgi.responses import TRY_AGAIN_LATER, ResponseBuilder, close_reason, rejected_by
from autoglm_throttle.asgi.routes import path_of
from autoglm_throttle.asgi.scope import (
    MARKER,
    Scope,
    attribute_to_throttle,
    outcome_of,
    permit_of,
    verdicts_of,
)
from autoglm_throttle.events import LOGGER
from autoglm_throttle.settings import RoutePolicy, Settings
from autoglm_throttle.throttle import Throttle
from autoglm_throttle.types import (
    Decision,
    Demand,
    GuardRejected,
    Outcome,
    Priority,
    PriorityName,
    Rejected,
    ResourceAdvice,
)

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = [
    "ThrottleProblem",
    "add_to_openapi",
    "advice",
    "exempt",
    "guard_rejected",
    "limit",
    "mark",
    "permit",
    "throttle_responses",
]

# The scope entry with the throttles in which a dependency holds a slot for the request.
HELD: Final = "autoglm_throttle.held"

Dependency = Callable[[HTTPConnection], AsyncIterator[Permit | None]]


class ThrottleProblem(BaseModel):
    """The body of a rejection: RFC 9457 with three additional members."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")

    type: str = Field(description="A URI that names the kind of problem.")
    title: str = Field(description="The HTTP status as text.")
    status: int = Field(description="The HTTP status of the response.")
    detail: str = Field(description="The limit that rejected the request, and when to retry.")
    violated_policies: list[str] = Field(alias="violated-policies", description="Names of the limits.")
    reason: str = Field(description="The finer reason, such as rate:low, user:user-60s or gpu:overload.")
    retry_after_s: float | None = Field(
        None, description="The exact wait in seconds; absent if waiting cannot help."
    )


_NO_CHARGE: Final = (
    "limit() charges nothing: no ThrottleMiddleware handled the request; "
    "add the middleware, or give limit() a throttle"
)

_DESCRIPTIONS: Final = {
    413: "The request costs more than the limit can ever admit.",
    429: "The caller has exceeded its own limit.",
    503: "The service has no capacity left.",
}
# Schema of the other dialects: all have this member.
_ERROR: Final = {"type": "object", "properties": {"error": {"type": "object"}}, "required": ["error"]}
_FIELDS: Final = {
    "Retry-After": ("integer", "Seconds to wait, at least 1."),
    "RateLimit": ("string", "The remaining units of each user limit, if any."),
    "RateLimit-Policy": ("string", "The user limits of the caller, if any."),
}

# Operations of a path in OpenAPI.
_METHODS: Final = ("get", "put", "post", "delete", "patch", "head", "options", "trace")


def limit(
    priority: Priority | PriorityName | None = None, cost: float = 1.0, *, throttle: Throttle | None = None
) -> Dependency:
    """Create a dependency that charges the caller again: ``Depends(limit(priority="high", cost=4))``.

    It runs after the middleware and after the body was parsed. It takes ``cost`` more units from the bucket
    of its priority and from the caller's user limits. All charges of a request are one: the response tells
    the units left after it, a rejection refunds all, and a sum that no limit can ever admit is a 413.
    It is a request of its own, which may wait in the queue, only for a ``throttle`` that has not admitted the
    request yet. The caller is the one found by the middleware. The middleware answers a rejection inside it.
    Behind an app with its own error handling, and without the middleware, the same status and fields come
    with FastAPI's error body. It is never a 500.

    A request that the throttle exempts is not charged here either. Without a middleware and without
    ``throttle``, nothing is charged and a warning is logged once: an app that disables its
    middleware in one environment must not fail there.

    Args:
        priority: the bucket to charge: ``high``, ``mid``, ``low``; None: that of the request.
        cost: units to take, > 0.
        throttle: the limits; None: those of the innermost middleware that charged the request.

    Raises:
        ConfigError: an argument is not allowed.
    """
    policy = RoutePolicy("/", priority=priority, cost=cost)
    find = _find_charge if throttle is None else partial(_find_own_charge, throttle, _classifier(throttle))
    warn_once = cache(partial(LOGGER.warning, _NO_CHARGE))

    async def charge(connection: HTTPConnection) -> AsyncIterator[Permit | None]:
        charged = find(connection.scope)
        if charged is None:
            if throttle is None and not connection.scope.get(MARKER):
                warn_once()
            yield None
            return
        charged_throttle, charged_for = charged
        if isinstance(charged_for, Permit):
            await _top_up(connection, charged_throttle, charged_for, policy)
            yield charged_for
            return
        holders: set[Throttle] = connection.scope.setdefault(HELD, set())
        # A request in flight must not wait for a second slot: if all did, none would finish.
        holds_slot = charged_for.holds_slot and charged_throttle not in holders
        verdict = await charged_throttle.admit(_additional_demand(charged_for, policy, holds_slot=holds_slot))
        if isinstance(verdict, Rejection):
            raise _rejection_error(connection, charged_throttle, verdict.decision)
        holders.add(charged_throttle)
        try:
            yield verdict
        except BaseException as error:
            verdict.settle(_outcome(error))
            raise
        else:
            verdict.settle(Outcome.SUCCESS)

    return charge


def advice(connection: HTTPConnection) -> ResourceAdvice | None:
    """Return the resource advice as a dependency: ``Annotated[ResourceAdvice | None, Depends(advice)]``.

    None without ``QUOTAS``, and for an exempt request.
    """
    entry = (connection.scope.get("state") or {}).get(MARKER)
    return entry if isinstance(entry, ResourceAdvice) else None


def permit(connection: HTTPConnection) -> Permit | None:
    """Return the permit of the request as a dependency: ``Annotated[Permit | None, Depends(permit)]``.

    An endpoint that waits for others may give its slot back meanwhile: `Permit.pause` and `Permit.resume`.
    None for an exempt request.
    """
    return permit_of(connection.scope)


async def guard_rejected(connection: HTTPConnection, error: Exception) -> Any:  # noqa: ANN401 - any response
    """Answer for a rejected guard: ``app.add_exception_handler(GuardRejected, guard_rejected)``.

    The answer is the middleware's: 503 with a problem document and Retry-After; a websocket is closed with
    1013. An app with ``app.add_middleware`` needs no handler. A wrapped or mounted app would answer 500
    before the middleware sees the exception. The request says nothing about the app, neither to the
    limits nor to a breaker around the app.

    Args:
        connection: the request or the websocket; Starlette gives it.
        error: the `GuardRejected`, or a client's exception caused by one, such as openai's
            ``APIConnectionError``; Starlette gives it, and any other error is raised again.

    Returns:
        The response; None for a websocket, which is closed.
    """
    rejected = GuardRejected.find(error)
    if rejected is None:
        raise error
    permits = verdicts_of(connection.scope)
    for held in permits.values():
        if isinstance(held, Permit) and not held.settled:
            held.settle(Outcome.NEUTRAL)
    # The rejection is ours: the breaker around the app must not count it.
    attribute_to_throttle(connection.scope, rejected.rejection.cause)
    decision = rejected_by(rejected.rejection)
    if isinstance(connection, WebSocket):
        await connection.close(TRY_AGAIN_LATER, close_reason(decision))
        return None
    innermost = next(reversed(permits), None)
    settings = Settings() if innermost is None else innermost.settings
    status, fields, body = _builder(settings, connection.scope).rejection(decision)
    response = Response(body, status)
    response.raw_headers = fields
    return response


def _classifier(throttle: Throttle) -> RequestClassifier:
    def record_oddity(name: str) -> None:
        # Looked up at each call: in a forked child the throttle has other parts.
        throttle.admission.record_oddity(name)

    return RequestClassifier(throttle.settings, RouteTable(), record_oddity=record_oddity)


def _find_charge(scope: Scope) -> tuple[Throttle, Permit | Demand] | None:
    permits: dict[Throttle, Permit | None] = verdicts_of(scope)
    charged = [(throttle, admitted) for throttle, admitted in permits.items() if admitted is not None]
    return charged[-1] if charged else None


def _find_own_charge(
    throttle: Throttle, classifier: RequestClassifier, scope: Scope
) -> tuple[Throttle, Permit | Demand] | None:
    """Return the throttle of the dependency, and the permit or the demand to charge there.

    None: the request is exempt.
    """
    permits: dict[Throttle, Permit | None] = verdicts_of(scope)
    if throttle in permits:
        admitted = permits[throttle]
        return None if admitted is None else (throttle, admitted)
    is_exempt = path_of(scope) in throttle.settings.callers.exempt_paths
    return None if is_exempt else (throttle, classifier.demand(scope))


async def _top_up(
    connection: HTTPConnection, throttle: Throttle, admitted: Permit, policy: RoutePolicy
) -> None:
    demand = _additional_demand(admitted.demand, policy, holds_slot=False)
    rejection = await throttle.admission.top_up(admitted, demand)
    if rejection is not None:
        raise _rejection_error(connection, throttle, rejection.decision)


def _additional_demand(demand: Demand, policy: RoutePolicy, *, holds_slot: bool) -> Demand:
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


def _rejection_error(connection: HTTPConnection, throttle: Throttle, decision: Decision) -> Exception:
    """Build an exception that no outer error handling turns into a 500."""
    if _reaches_middleware(connection, throttle):
        return Rejected(decision)
    if connection.scope["type"] == "websocket":
        return WebSocketException(TRY_AGAIN_LATER, close_reason(decision))
    attribute_to_throttle(connection.scope, "load" if decision.reason in REPLACEABLE else "")
    builder = _builder(throttle.settings, connection.scope)
    status, fields, _ = builder.rejection(decision)
    headers = {name.decode(): value.decode() for name, value in fields if not name.startswith(b"content-")}
    return HTTPException(status, builder.sentence(decision), headers)


def _builder(settings: Settings, scope: Scope) -> ResponseBuilder:
    # A mount has moved its prefix to the root path.
    root_path = scope.get("app_root_path", scope.get("root_path"))
    path = path_of({"path": scope.get("path"), "root_path": root_path})
    route = None
    if any(route.errors for route in settings.routes):
        route = RouteTable(settings.routes).match(path, scope.get("method") or "GET")
    return ResponseBuilder(settings.responses, _dialect(settings, path, route))


def _dialect(settings: Settings, path: str, route: RoutePolicy | None) -> str:
    errors = settings.responses.errors
    return dialect_of(path, errors if route is None else route.errors or errors)


def _reaches_middleware(connection: HTTPConnection, throttle: Throttle) -> bool:
    """Whether the app that handles the request lists the middleware itself.

    Then no Starlette error handling stands between them, which would turn the exception into a 500.
    """
    if throttle not in verdicts_of(connection.scope):
        return False
    added: Iterable[Any] = getattr(connection.scope.get("app"), "user_middleware", ())
    return any(isinstance(one.cls, type) and issubclass(one.cls, ThrottleMiddleware) for one in added)


def _outcome(error: BaseException) -> Outcome:
    if isinstance(error, HTTPException):
        return Outcome.FAILURE if error.status_code >= 500 else Outcome.SUCCESS
    return outcome_of(error)


def throttle_responses() -> dict[int | str, dict[str, Any]]:
    """Return the rejections of one route: ``@app.get("/", responses=throttle_responses())``."""
    return _responses(ThrottleProblem.model_json_schema())


def add_to_openapi(app: FastAPI, *, throttle: Throttle | None = None) -> None:
    """Add the rejections to every limited operation of the OpenAPI document.

    Responses that the user has documented stay. Calling it twice changes nothing.
    Mounted apps have documents of their own.

    Args:
        app: the app to document.
        throttle: its exempt paths and routes are left out; None: those of the default settings.
    """
    settings = throttle.settings if throttle is not None else Settings()
    make = app.openapi

    def openapi() -> dict[str, Any]:
        schema = make()
        routes = RouteTable([*settings.routes, *visible_routes(app)])
        _describe(schema, routes, settings)
        return schema

    app.openapi = openapi  # type: ignore[method-assign]  # as the FastAPI documentation does


def _describe(schema: dict[str, Any], routes: RouteTable, settings: Settings) -> None:
    schemas = schema.setdefault("components", {}).setdefault("schemas", {})
    schemas.setdefault(ThrottleProblem.__name__, ThrottleProblem.model_json_schema())
    reference = {"$ref": f"#/components/schemas/{ThrottleProblem.__name__}"}
    for path, operations in schema.get("paths", {}).items():
        for method in _METHODS:
            route = routes.match(path, method.upper())
            is_exempt = path in settings.callers.exempt_paths or (route is not None and route.exempt)
            if method in operations and not is_exempt:
                responses = operations[method].setdefault("responses", {})
                is_problem = _dialect(settings, path, route) == PROBLEM
                described = _responses(reference) if is_problem else _responses(_ERROR, "application/json")
                for status, response in described.items():
                    responses.setdefault(str(status), response)


def _responses(
    schema: dict[str, Any], media_type: str = "application/problem+json"
) -> dict[int | str, dict[str, Any]]:
    fields = {
        name: {"description": about, "schema": {"type": kind}} for name, (kind, about) in _FIELDS.items()
    }
    never = {name: field for name, field in fields.items() if name != "Retry-After"}
    return {
        status: {
            "description": sentence,
            "headers": never if status == 413 else fields,  # a request that is too large is never admitted
            "content": {media_type: {"schema": schema}},
        }
        for status, sentence in _DESCRIPTIONS.items()
    }
