"""Classifies requests: turns an ASGI scope into a Demand with caller, priority and cost."""

from __future__ import annotations

import logging
import math
import time
import traceback
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache, partial
from itertools import islice
from typing import Any, NamedTuple

from autoglm_throttle.asgi import identity_source
from autoglm_throttle.asgi.routes import (
    BODY,
    MALFORMED,
    PLAIN,
    WEBSOCKET,
    WITHOUT_BODY,
    PathPolicy,
    RouteTable,
)
from autoglm_throttle.events import LOGGER, LogEvent
from autoglm_throttle.settings import RoutePolicy, Settings
from autoglm_throttle.settings.field_types import parse_quantity
from autoglm_throttle.types import Clock, Demand, Priority, SlotUse, WebSocketMode
from autoglm_throttle.types.identity import (
    CACHED_LENGTH_MAX,
    CallerHasher,
    ProxyChain,
    overflow_group,
)

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

# Versions of HTTP in which a body is announced by a field; None: the server does not tell.
WITH_BODY_FIELDS = ("1.1", "1.0", None)
_LENGTH, _ENCODING = b"content-length", b"transfer-encoding"
_BODY_FIELDS = frozenset((_LENGTH, _ENCODING))
_FORWARDED = b"x-forwarded-for"

Scope = Mapping[str, Any]
Identify = Callable[[Any], "Caller | None"]
OddityRecorder = Callable[[str], None]


class Caller(NamedTuple):
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


_UNKNOWN = Caller("")  # Plan and priority of a caller known by address alone


class RequestClassifier:
    """Builds a Demand from each scope. Never raises, even if the scope is malformed.

    Demands are remembered by what identifies the caller, for as many as ``settings.users.max_users``.

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
        self._paths = routes.paths
        self._record_oddity = record_oddity
        self._clock = clock
        self._next_warning_s = -math.inf
        self._default = settings.callers.priority_default
        self._trust = settings.callers.priority_header_trust
        if identify is None:
            self._identify = identity_source.import_identify(settings.callers.identity)
        else:
            self._identify = identity_source.require_synchronous(identify, "identify", "it")
        # What ``identify`` does not know is known by address, not by key.
        source = "address" if self._identify is not None else settings.callers.identity
        self._key_header, self._scheme = identity_source.key_source(source)
        self._priority_header = settings.callers.priority_header.encode() if self._trust != "off" else b""
        self._deadline_header = (settings.callers.deadline_header or "").encode()
        self._slo_s = settings.concurrency.slo_s
        self._precisions = _precisions(settings)
        self._holds_slot = settings.concurrency.websockets is WebSocketMode.SLOT
        forwarded = _FORWARDED if self._proxies.reads_header else b""
        precision = PRECISION_HEADER if self._precisions else b""
        headers = {self._key_header, self._priority_header, self._deadline_header, forwarded, precision}
        self._wanted = _BODY_FIELDS.union(headers - {b""})
        self._address = partial(self._identity.hash, "address")
        self._client = lru_cache(settings.users.max_users)(self._proxies.client)
        # Identity of the network of an address; one object for all demands, as each keeps it.
        self._network: Callable[[str], str] = partial(_network, self._identity)
        self._demands = DemandTable(settings.users.max_users)
        # Peers of the first requests, for a service that trusts no proxy.
        self._first_peers: Counter[str] | None = None if settings.callers.trusted_proxies else Counter()
        self._counted_peers = 0
        self._is_forwarded = False  # Whether any of them had a field that proxies add

    def demand(self, scope: Scope) -> Demand:
        """Return the demand of one request, exempt or not."""
        classified = self.classify(scope)
        if classified is not None:
            return classified[0]
        try:
            return self._classify_fully(scope, self._routes.policy_of(scope))[0]
        except Exception:  # noqa: BLE001 - as in `classify`
            return self._malformed_demand(scope)

    def classify(self, scope: Scope) -> tuple[Demand, PathPolicy, int] | None:  # noqa: C901, PLR0912, PLR0915 - a call costs 1 %
        """Return the demand of one request, the policy of its path, and its transfer; None: it is exempt."""
        try:
            try:
                policy = self._paths[scope["method"]][scope["path"]]
                client = scope["client"]
                if policy.root_path != scope["root_path"]:
                    policy = self._routes.policy_of(scope)
            except Exception:  # noqa: BLE001 - not cached, a websocket, without optional keys, or malformed
                policy, client = self._routes.policy_of(scope), scope.get("client")
            if not policy.is_limited:
                return None
            if self._first_peers is not None:
                self._count_peer(scope, self._first_peers)
            if scope["type"] != "http":
                return self._classify_fully(scope, policy)
            transfer, headers, wanted = policy.transfer, scope["headers"], self._wanted
            peer = identity = client[0] if client else ""
            stated, has_body = None, False
            key = forwarded = None
            for name, value in headers:
                if name in wanted:
                    if name in _BODY_FIELDS:
                        has_body |= value != b"0"
                    elif name == self._key_header and key is None and len(value) <= CACHED_LENGTH_MAX:
                        key = value
                    elif name == _FORWARDED and forwarded is None and len(value) <= CACHED_LENGTH_MAX:
                        forwarded = value
                    elif name == self._priority_header and stated is None and value in KNOWN_PRIORITIES:
                        stated = value
                    else:  # a repeated one, or one with a value of its own
                        return self._classify_fully(scope, policy)
            if forwarded is not None:
                identity = self._client(peer[:MAX_PEER_CHARS], (forwarded,))
            if key:
                identity = (key, identity)
            # From HTTP/2 on a body needs no field.
            if policy.may_have_body and scope.get("http_version") not in WITH_BODY_FIELDS:
                has_body = True
            if transfer == BODY and not has_body:
                transfer = PLAIN
            caller, identify = None, self._identify
            if identify is not None:
                try:  # `_call_identify`, without the call
                    caller = identify(scope)
                    if caller.__class__ is not Caller:
                        caller = _caller_of(caller)
                    hash(caller)
                except Exception as error:  # noqa: BLE001 - it is the user's code
                    self._warn(error)
                    caller = None
                user, plan, priority, verified = caller or _UNKNOWN
                if not (verified and user):
                    caller = caller if user else None
                    identity = (caller, identity)
                else:  # a text takes less memory than its tuple
                    identity = user if plan is None and priority is None else caller
            if stated or policy.route is not None:
                identity = (identity, policy.route_key, stated, peer)
            demand = self._demands[identity]
            if demand is None:
                member = None if caller is None else self._resolve(caller)
                demand = self._full_demand(scope, policy.route, member)[0]
                if len(peer) <= MAX_PEER_CHARS and (member is not None or caller is None):
                    self._demands.remember(identity, demand)
            return demand, policy, transfer  # noqa: TRY300 - the usual end of a long block
        except Exception:  # noqa: BLE001 - a scope may hold anything, and the limits must hold all the same
            return self._malformed_demand(scope), MALFORMED, self._transfer(scope)

    def _malformed_demand(self, scope: Scope) -> Demand:
        self._record_oddity("malformed_scope")
        slot = self._holds_slot or scope.get("type") != "websocket"
        return Demand(self._default, self._address(""), group=self._network(""), holds_slot=slot)

    def _transfer(self, scope: Scope) -> int:
        if scope.get("type") == "websocket":
            return WEBSOCKET if self._holds_slot else PLAIN
        has_fields = scope.get("method") in WITHOUT_BODY or scope.get("http_version") in WITH_BODY_FIELDS
        return PLAIN if has_fields else BODY

    def _classify_fully(self, scope: Scope, policy: PathPolicy) -> tuple[Demand, PathPolicy, int]:
        """Classify a websocket, or a request whose fields have values of their own, without the table."""
        stated = None if self._identify is None else self._call_identify(scope)
        member = None if stated is None else self._resolve(stated)
        demand, values = self._full_demand(scope, policy.route, member)
        transfer = policy.transfer
        if scope.get("type") == "websocket":
            transfer = WEBSOCKET if demand.holds_slot else PLAIN
        elif transfer == BODY and values.get(_LENGTH, b"0") == b"0" and _ENCODING not in values:
            transfer = self._transfer(scope)
        return demand, policy, transfer

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

    def _full_demand(
        self, scope: Scope, route: RoutePolicy | None, member: Caller | None
    ) -> tuple[Demand, Mapping[bytes, bytes]]:
        """Return the demand of a request, and the values of the headers read; the first of a name counts.

        ``member`` is the caller that ``identify`` has named, under its hashed identity.
        """
        values: dict[bytes, bytes] = {}
        forwarded: list[bytes] = []
        for name, value in scope["headers"]:
            if name in self._wanted:
                if name == _FORWARDED:
                    forwarded.append(value)
                else:
                    values.setdefault(name, value)
        client = scope.get("client")
        peer = client[0][:MAX_PEER_CHARS] if client else ""
        address = self._proxies.client(peer, forwarded)
        caller = member or self._key_caller(values)
        limits_address = caller is not None and not caller.verified
        if caller is None:
            user = self._address(address)
            caller = self._member(user) or _UNKNOWN
        else:
            user = caller.user
        fixed = caller.priority
        cost, route_name, slo_s = 1.0, None, None
        holds_slot = scope.get("type") != "websocket" or self._holds_slot
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
            user,
            cost,
            plan=caller.plan,
            route=route_name,
            address=self._address(address) if limits_address else "",
            group=peer if address == peer else address,  # the same text once: of 100,000 callers, 6 MB
            slo_s=self._objective(values.get(self._deadline_header), slo_s),
            holds_slot=holds_slot,
            precision=label if label in self._precisions else "",  # empty: the service has no such variant
        )
        demand.group_of = self._network
        return demand, values

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

    def _key_caller(self, values: Mapping[bytes, bytes]) -> Caller | None:
        """Return the caller of a key in a header; None without one."""
        key = _text(values.get(self._key_header, b"")) if self._key_header else ""
        if self._scheme:
            scheme, _, key = key.partition(" ")
            key = key.strip() if scheme.lower() == self._scheme else ""
        if not key:
            return None
        user = self._identity.hash("key", key)
        return self._member(user) or Caller(user)

    def _call_identify(self, scope: Scope) -> Caller | None:
        """Return what ``identify`` says of a request; None if it says nothing, or fails."""
        try:
            caller = _caller_of(self._identify(scope) if self._identify is not None else None)
            hash(caller)
        except Exception as error:  # noqa: BLE001 - it is the user's code
            self._warn(error)
            return None
        return caller

    def _resolve(self, caller: Caller) -> Caller | None:
        """Return a caller under its hashed identity, with its plan's priority; None: it makes no sense."""
        try:
            user = self._identity.hash("user", caller.user)
            plan = self._plans.get(caller.plan) if caller.plan is not None else None
            if caller.plan is None and caller.verified:
                plan = self._plan_by_member.get(user)
            name = plan.name if plan is not None else caller.plan
            priority = plan.priority if plan is not None and caller.priority is None else caller.priority
            return Caller(user, name, None if priority is None else Priority(priority), bool(caller.verified))
        except Exception as error:  # noqa: BLE001 - it is the user's code
            self._warn(error)
            return None

    def _warn(self, error: Exception) -> None:
        """Count a failure of ``identify``, and log its place; the error's text may hold client data."""
        self._record_oddity("identify_failed")
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

    def _member(self, user: str) -> Caller | None:
        plan = self._plan_by_member.get(user)
        return Caller(user, plan.name, plan.priority, verified=True) if plan is not None else None


class DemandTable(dict[Hashable, Demand | None]):
    """Demands by what identifies their callers, None for others; a full table forgets its oldest entries."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __missing__(self, key: Hashable) -> None:
        return None

    def remember(self, key: Hashable, demand: Demand) -> None:
        """Add a demand."""
        if len(self) >= self._most:  # a few at once: the first key is searched among deleted ones
            for oldest in [*islice(self, 1 + self._most // 1000)]:
                self.pop(oldest, None)
        self[key] = demand


def _caller_of(stated: Caller | None) -> Caller | None:
    """Return what ``identify`` has stated, which may be an object of the user's own; None: nothing."""
    if stated is None or not stated.user or stated.__class__ is Caller:
        return stated if stated is not None and stated.user else None
    return Caller(stated.user, stated.plan, stated.priority, bool(stated.verified))


def _network(identity: CallerHasher, address: str) -> str:
    return identity.hash("group", overflow_group(address))


def _text(value: bytes) -> str:
    """Return the value of a header; empty if it is too long, or no printable ASCII."""
    text = value.decode("latin-1").strip() if len(value) <= MAX_VALUE_BYTES else ""
    return text if text.isascii() and text.isprintable() else ""


def _precisions(settings: Settings) -> frozenset[str]:
    if not settings.quota.quotas:
        return frozenset()
    own = [route.resource_policy.precision_hint for route in settings.routes if route.resource_policy]
    return frozenset(settings.quota.precisions).union(*(labels or () for labels in own))
