"""Classifies requests: turns an ASGI scope into a Demand with caller, priority and cost."""

from __future__ import annotations

import logging
import math
import time
import traceback
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from autoglm_throttle.asgi import identity_source
from autoglm_throttle.asgi.routes import METHODS, WITHOUT_BODY, RouteTable, path_of, work_class_of
from autoglm_throttle.events import LOGGER, LogEvent
from autoglm_throttle.settings import RoutePolicy, Settings
from autoglm_throttle.settings.field_types import parse_quantity
from autoglm_throttle.types import Clock, Demand, Priority, SlotUse, WebSocketMode
from autoglm_throttle.types.identity import CACHE_ENTRIES, CallerHasher, ProxyChain, overflow_group

# Bytes; a longer identity or priority header is treated as absent, a longer deadline as malformed.
MAX_VALUE_BYTES = 8192

# Characters of a peer that count. An address has 45, but a server behind a proxy may pass on any client text,
# and the caches must stay bounded.
MAX_PEER_CHARS = 128

# Seconds between two log lines about a failing ``identify``, which may fail at each request.
WARNING_INTERVAL_S = 60.0

# Header that requests a cheaper variant of the model; read if the service has labels for them.
PRECISION_HEADER = b"x-precision"

# Common spellings of a priority, the empty one included. Any other text is parsed separately.
KNOWN_PRIORITIES = (b"", b"high", b"mid", b"low", b"1", b"2", b"3")

# Transfer of a request: complete with its head; with a body; of a route that declares streams; a websocket
# that holds a slot.
PLAIN, BODY, STREAM, WEBSOCKET = range(4)

# Versions of HTTP in which a body is announced by a field; None: the server does not tell.
WITH_BODY_FIELDS = ("1.1", "1.0", None)
_LENGTH, _ENCODING = b"content-length", b"transfer-encoding"
_BODY_FIELDS = frozenset((_LENGTH, _ENCODING))

Scope = Mapping[str, Any]
Identify = Callable[[Any], "Caller | None"]
OddityRecorder = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Caller:
    """The result of a user's own ``identify(scope)``."""

    user: str
    """Any text that identifies the caller, such as a user id; it is hashed before it is stored.
    Empty: the address identifies the caller.
    """
    plan: str | None = None
    """Name of the plan that applies; None looks a verified user up among the members of the plans."""
    priority: Priority | None = None
    """The class of work; None leaves it to routes, header and default."""
    verified: bool = False
    """Whether the identity was checked. If not, the address is limited beside it."""


class RequestClassifier:
    """Builds a Demand from each scope. Never raises, even if the scope is malformed.

    Args:
        settings: identity, proxies, plans, priorities.
        routes: the policies by path.
        identify: the user's own identification; None: as in ``settings.identity``.
        record_oddity: counts an oddity, under a name from code.
        clock: monotonic seconds, read only if ``identify`` fails.

    Raises:
        ConfigError: ``settings.identity`` names a callable that cannot be imported.
    """

    def __init__(
        self,
        settings: Settings,
        routes: RouteTable,
        *,
        identify: Identify | None = None,
        record_oddity: OddityRecorder = lambda name: None,  # noqa: ARG005 - no listener
        clock: Clock = time.monotonic,
    ) -> None:
        self._identity = CallerHasher(settings.identity_key)
        self._proxies = ProxyChain(settings.callers.trusted_proxies, settings.callers.ipv6_prefix)
        self._plans = settings.plans
        self._plan_by_member = {member: plan for plan in self._plans.values() for member in plan.members}
        self._routes = routes
        self._record_oddity = record_oddity
        self._clock = clock
        self._next_warning_s = -math.inf
        self._default = settings.callers.priority_default
        self._trust = settings.callers.priority_header_trust
        if identify is None:
            self._identify = identity_source.import_identify(settings.callers.identity)
        else:
            self._identify = identity_source.require_synchronous(identify, "identify", "it")
        self._key_header, self._scheme = identity_source.key_source(settings.callers.identity)
        self._priority_header = settings.callers.priority_header.encode() if self._trust != "off" else b""
        self._deadline_header = (settings.callers.deadline_header or "").encode()
        self._slo_s = settings.concurrency.slo_s
        self._precisions = _precisions(settings)
        self._holds_slot = settings.concurrency.websockets is WebSocketMode.SLOT
        forwarded = b"x-forwarded-for" if self._proxies.reads_header else b""
        precision = PRECISION_HEADER if self._precisions else b""
        headers = {self._key_header, self._priority_header, self._deadline_header, forwarded, precision}
        self._wanted = _BODY_FIELDS.union(headers - {b""})
        self._work_classes: dict[str, OrderedDict[str, str]] = {method: OrderedDict() for method in METHODS}
        self._by_address = lru_cache(CACHE_ENTRIES)(self._address_identity)
        self._anonymous_demands = {
            stated: _DemandCache(partial(self._anonymous_demand, stated)) for stated in KNOWN_PRIORITIES
        }
        # Peers of the first requests, for a service that trusts no proxy.
        self._first_peers: Counter[str] | None = None if settings.callers.trusted_proxies else Counter()
        self._counted_peers = 0
        self._is_forwarded = False  # Whether any of them had a field that proxies add

    def demand(self, scope: Scope) -> Demand:
        """Return the demand of one request."""
        return self.classify(scope)[0]

    def classify(self, scope: Scope) -> tuple[Demand, str, int]:  # noqa: C901 - a call costs 1 %
        """Return the demand of one request, the name of its work class, and its transfer."""
        try:
            method = scope["method"]
            work_class = self._work_classes[method][scope["path"]]
            # From HTTP/2 on a body needs no field.
            has_fields = method in WITHOUT_BODY or scope.get("http_version") in WITH_BODY_FIELDS
            transfer = PLAIN if has_fields else BODY
        except Exception:  # noqa: BLE001 - not cached, a websocket, or malformed
            work_class, transfer = work_class_of(scope, self._work_classes), self._transfer(scope)
        try:
            if self._first_peers is not None:
                self._count_peer(scope, self._first_peers)
            stated = b""
            wanted, priority_header = self._wanted, self._priority_header
            anonymous_demands = self._anonymous_demands
            for name, value in scope["headers"]:
                if name in wanted:
                    if name in _BODY_FIELDS:
                        transfer = BODY if value != b"0" else transfer
                    # Any other identifying header, or a repeated one, needs the full classification.
                    elif name != priority_header or value not in anonymous_demands or stated:
                        return self._classify_fully(scope, work_class, transfer)
                    else:
                        stated = value
            if self._routes.has_routes or self._identify is not None or scope["type"] != "http":
                return self._classify_fully(scope, work_class, transfer)
            client = scope.get("client")
            peer = client[0] if client else ""
            if len(peer) > MAX_PEER_CHARS:
                return self._classify_fully(scope, work_class, transfer)
            return anonymous_demands[stated][peer], work_class, transfer
        except Exception:  # noqa: BLE001 - a scope may hold anything, and the limits must hold all the same
            self._record_oddity("malformed_scope")
            anonymous, group = self._by_address("")
            slot = self._holds_slot or scope.get("type") != "websocket"
            demand = Demand(self._default, anonymous.user, group=group, holds_slot=slot)
            return demand, work_class, self._transfer(scope)

    def _transfer(self, scope: Scope) -> int:
        if scope.get("type") == "websocket":
            return WEBSOCKET if self._holds_slot else PLAIN
        has_fields = scope.get("method") in WITHOUT_BODY or scope.get("http_version") in WITH_BODY_FIELDS
        return PLAIN if has_fields else BODY

    def _classify_fully(self, scope: Scope, work_class: str, transfer: int) -> tuple[Demand, str, int]:
        demand, values, route = self._full_demand(scope)
        if scope.get("type") == "websocket":
            transfer = WEBSOCKET if demand.holds_slot else PLAIN
            return demand, work_class if route is None else route.name, transfer
        if transfer == PLAIN and (values.get(_LENGTH, b"0") != b"0" or _ENCODING in values):
            transfer = BODY
        if route is not None:
            work_class = route.name
            if route.slot is not SlotUse.REQUEST:
                transfer = STREAM if route.slot is SlotUse.STREAM else PLAIN
        return demand, work_class, transfer

    def _count_peer(self, scope: Scope, peers: Counter[str]) -> None:
        client = scope.get("client")
        peers[client[0][:MAX_PEER_CHARS] if client else ""] += 1
        self._counted_peers += 1
        for name, _ in scope["headers"]:
            self._is_forwarded |= name in identity_source.FORWARDING
        if self._counted_peers >= identity_source.REQUESTS:
            self._first_peers = None
            if self._is_forwarded and identity_source.is_behind_proxy(peers):
                self._record_oddity("behind_proxy")
                LOGGER.warning(identity_source.WARNING)

    def _anonymous_demand(self, stated: bytes, peer: str) -> Demand:
        """Build the demand of a caller known only by address and stated priority; it never varies."""
        headers = [(self._priority_header, stated)] if stated else []
        return self._full_demand({"type": "http", "headers": headers, "client": (peer, 0)})[0]

    def _full_demand(self, scope: Scope) -> tuple[Demand, Mapping[bytes, bytes], RoutePolicy | None]:
        """Return the demand of a request, the values of the headers read, and the policy of its route."""
        values: dict[bytes, bytes] = {}
        forwarded: list[bytes] = []
        for name, value in scope["headers"]:
            if name in self._wanted:
                if name == b"x-forwarded-for":
                    forwarded.append(value)
                else:
                    values.setdefault(name, value)
        client = scope.get("client")
        peer = client[0][:MAX_PEER_CHARS] if client else ""
        caller, address, group = self._caller(scope, values, self._proxies.client(peer, forwarded))
        fixed = caller.priority
        cost, route, route_name, slo_s = 1.0, None, None, None
        holds_slot = scope.get("type") != "websocket" or self._holds_slot
        if self._routes.has_routes:
            route = self._routes.match(path_of(scope), scope.get("method") or "GET")
        if route is not None:
            cost, route_name, slo_s = route.cost, route.name, route.slo_s
            holds_slot = holds_slot and route.slot is not SlotUse.NONE
            fixed = route.priority if fixed is None else fixed
        priority = self._default if fixed is None else fixed
        # A caller's or route's fixed priority cannot be raised by a header, only lowered.
        stated = values.get(self._priority_header)
        if stated is not None:
            priority = self._stated_priority(stated, priority, peer, raises=fixed is None)
        label = _text(values[PRECISION_HEADER]).lower() if PRECISION_HEADER in values else ""
        demand = Demand(
            priority,
            caller.user,
            cost,
            plan=caller.plan,
            route=route_name,
            address=address,
            group=group,
            slo_s=self._objective(values.get(self._deadline_header), slo_s),
            holds_slot=holds_slot,
            precision=label if label in self._precisions else "",  # empty: the service has no such variant
        )
        return demand, values, route

    def _objective(self, stated: bytes | None, slo_s: float | None) -> float | None:
        """Return the seconds that the response may take. A client may shorten its objective only."""
        if stated is None:
            return slo_s
        try:
            wanted = parse_quantity(_text(stated), "s")
        except ValueError:
            wanted = 0.0
        if wanted <= 0.0:
            self._record_oddity("malformed_deadline")
            return slo_s
        least = self._slo_s if slo_s is None else slo_s
        return wanted if least is None else min(wanted, least)

    def _caller(self, scope: Scope, values: Mapping[bytes, bytes], client: str) -> tuple[Caller, str, str]:
        """Return the caller under its hashed identity, the address to limit beside it, and the group."""
        by_address, group = self._by_address(client)
        caller, unverified = by_address, False
        if self._identify is not None:
            stated = self._call_identify(scope)
            if stated is not None:
                caller, unverified = stated, not stated.verified
        elif self._key_header:
            key = _text(values.get(self._key_header, b""))
            if self._scheme:
                scheme, _, key = key.partition(" ")
                key = key.strip() if scheme.lower() == self._scheme else ""
            if key:
                user = self._identity.hash("key", key)
                known = self._member(user)
                caller, unverified = known or Caller(user), known is None
        return caller, by_address.user if unverified else "", group

    def _call_identify(self, scope: Scope) -> Caller | None:
        try:
            caller = self._identify(scope) if self._identify is not None else None
            if caller is None or not caller.user:
                return None
            user = self._identity.hash("user", caller.user)
            plan = self._plans.get(caller.plan) if caller.plan is not None else None
            if caller.plan is None and caller.verified:
                plan = self._plan_by_member.get(user)
            name = plan.name if plan is not None else caller.plan
            priority = plan.priority if plan is not None and caller.priority is None else caller.priority
            return Caller(user, name, None if priority is None else Priority(priority), bool(caller.verified))
        except Exception as error:  # noqa: BLE001 - it is the user's code
            self._record_oddity("identify_failed")
            self._warn(error)
            return None

    def _warn(self, error: Exception) -> None:
        """Log the place where ``identify`` failed. The error's text is omitted: it may hold client data."""
        now = self._clock()
        if now >= self._next_warning_s:
            self._next_warning_s = now + WARNING_INTERVAL_S
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{type(error).__name__} at {place.filename}:{place.lineno}"
            text = f"identify failed with {where}; the client address is used instead"
            LogEvent("identify_failed", logging.WARNING, text, {}).write()

    def _stated_priority(self, value: bytes, priority: Priority, peer: str, *, raises: bool) -> Priority:
        """Apply the priority of the header: any caller may lower it, only a trusted one may raise it."""
        text = _text(value)
        if not text:
            return priority
        stated = Priority.parse(text)
        if stated is Priority.LOW and not Priority.knows(text):
            self._record_oddity("unknown_priority")
        trusted = self._trust == "any" or (self._trust == "proxy" and self._proxies.trusts(peer))
        return stated if raises and trusted else max(priority, stated)

    def _address_identity(self, client: str) -> tuple[Caller, str]:
        user = self._identity.hash("address", client)
        group = self._identity.hash("group", overflow_group(client))
        return self._member(user) or Caller(user, verified=True), group

    def _member(self, user: str) -> Caller | None:
        plan = self._plan_by_member.get(user)
        return Caller(user, plan.name, plan.priority, verified=True) if plan is not None else None


class _DemandCache(dict[str, Demand]):
    """Cache of demands by address. Cheaper than an ``lru_cache``, which maintains an order."""

    def __init__(self, make: Callable[[str], Demand]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, peer: str) -> Demand:
        # Clearing everything is rare and cheaper per lookup than an eviction order.
        if len(self) >= CACHE_ENTRIES:
            self.clear()
        demand = self[peer] = self._make(peer)
        return demand


def _text(value: bytes) -> str:
    """Return the value of a header; empty if it is too long, or no printable ASCII."""
    text = value.decode("latin-1").strip() if len(value) <= MAX_VALUE_BYTES else ""
    return text if text.isascii() and text.isprintable() else ""


def _precisions(settings: Settings) -> frozenset[str]:
    if not settings.quota.quotas:
        return frozenset()
    own = [route.resource_policy.precision_hint for route in settings.routes if route.resource_policy]
    return frozenset(settings.quota.precisions).union(*(labels or () for labels in own))
