"""The only package that knows HTTP: maps a scope to a Demand and a Decision to a response."""

from autoglm_throttle.asgi.callers import Caller, RequestClassifier
from autoglm_throttle.asgi.marks import exempt, mark
from autoglm_throttle.asgi.middleware import ThrottleMiddleware
from autoglm_throttle.asgi.responses import EXPOSED_FIELDS
from autoglm_throttle.asgi.routes import RouteTable
from autoglm_throttle.asgi.scope import MARKER, permit_of, verdicts_of

__all__ = [
    "EXPOSED_FIELDS",
    "MARKER",
    "Caller",
    "RequestClassifier",
    "RouteTable",
    "ThrottleMiddleware",
    "exempt",
    "mark",
    "permit_of",
    "verdicts_of",
]
