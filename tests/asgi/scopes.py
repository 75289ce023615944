"""Scopes, and callers made of them."""

from __future__ import annotations

from typing import Any

from autoglm_throttle.asgi.callers import Caller, RequestClassifier
from autoglm_throttle.asgi.routes import RouteTable
from autoglm_throttle.settings import PlanPolicy, Settings
from autoglm_throttle.types import Demand
from autoglm_throttle.types.identity import CallerHasher

SECRET = "a secret of more than sixteen bytes"
HASH = CallerHasher(SECRET.encode())
PEER = ("8.8.8.8", 1234)
PROXY = ("10.0.0.1", 1234)
Headers = list[tuple[bytes, bytes]]

ADDRESS = HASH.hash("address", "8.8.8.8")
KEY = HASH.hash("key", "k-123")


def scope(headers: Any = (), client: Any = PEER, **more: Any) -> dict[str, Any]:
    return {"type": "http", "method": "GET", "path": "/", "headers": headers, "client": client, **more}


def make(identify: Any = None, hints: list[str] | None = None, **settings: Any) -> RequestClassifier:
    chosen = Settings(key_secret=SECRET, **settings)
    seen = hints if hints is not None else []
    return RequestClassifier(chosen, RouteTable(chosen.routes), identify=identify, record_oddity=seen.append)


def known_as(demand: Demand) -> tuple[str, str]:
    return demand.user, demand.address


PLANS = {
    "gold": PlanPolicy("gold", user_limit="1000/minute", priority="high", members=[KEY]),
    "slow": PlanPolicy("slow", members=[ADDRESS]),
}


def named(scope: Any) -> Caller:
    return Caller("named")
