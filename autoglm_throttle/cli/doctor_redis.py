"""Diagnoses a Redis server for user limits: kind, latency, and permissions."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from hashlib import sha1
from itertools import count, islice
from typing import Any, Final

from autoglm_throttle.cli.distance import ROUND_TRIPS, round_trip
from autoglm_throttle.cli.doctor_rights import refused
from autoglm_throttle.cli.finding import Finding, Level, within
from autoglm_throttle.gpu import fleet as gpu_fleet
from autoglm_throttle.limiting.shared import redis_fleet
from autoglm_throttle.limiting.shared.redis_script import RIGHTS, error_kind
from autoglm_throttle.limiting.shared.store import VALUES, StoreCharge, StoreErrorKind
from autoglm_throttle.limiting.shared.wire import CheckRequest, WindowProtocol, script
from autoglm_throttle.model import UserLimit
from autoglm_throttle.redis_client import RedisClients, RedisOptions
from autoglm_throttle.resilience.shared import scripts as breakers
from autoglm_throttle.settings import Settings
from autoglm_throttle.settings.quantity import plain
from autoglm_throttle.settings.redis_url import RedisAddress, Topology, parse_redis_url

REPLY_S: Final = 0.5
"""Timeout of a connection, and of each reply: ten times the deadline of a decision."""

ALL_S: Final = 5.0
"""Timeout of the whole diagnosis: looking up a host's name has no timeout of its own."""

KEEPS_KEYS: Final = ("noeviction", "volatile-ttl")
"""Eviction policies that never drop a user's window before its end."""

OLDEST: Final = (6, 2)

WORDS_AT_MOST: Final = 200

USERS_TRIED: Final = 200
"""Number of users tried in a cluster; each node that would count one of them is examined."""

_BOTH_FORMS: Final = (UserLimit("doctor-1s", 1000, 1), UserLimit("doctor-2s", 1_000_000, 2))
"""One limit stored as a list, one stored as sub-buckets."""

_REMEDIES: Final[Mapping[StoreErrorKind, str]] = {
    StoreErrorKind.UNREACHABLE: "is it running, and does REDIS_URL name the right host and port?",
    StoreErrorKind.TIMEOUT: "it is frozen or far away, or it waits for TLS (rediss://)",
    StoreErrorKind.FORBIDDEN: "REDIS_URL must hold the user and password that the server knows",
    StoreErrorKind.LOST: "does the other side want TLS (rediss://), or none?",
}


Findings = list[Finding]


@dataclass(frozen=True, slots=True)
class _Node:
    """One server that holds keys of this service."""

    name: str
    """Empty if there is only one."""
    connection: Any
    asked: CheckRequest
    """A charge of an invented user with keys on this server."""

    def ask(self, *words: object) -> Any:  # noqa: ANN401 - a reply may be anything
        """Send a command and read its reply.

        Raises:
            RedisError: an error of the server or of the connection.
        """
        self.connection.send_command(*words)
        return self.connection.read_response()

    def finding(
        self,
        item: str,
        level: Level,
        message: str,
        hint: str = "",
        value: str | float | list[str] | None = None,
    ) -> Finding:
        """Make a result for this server."""
        return self.named(Finding("redis", item, level, message, hint, value))

    def named(self, finding: Finding) -> Finding:
        """Add the server's name to a result if there are several servers."""
        return replace(finding, message=f"{self.name}: {finding.message}") if self.name else finding


def examine(settings: Settings) -> Findings:
    """Diagnose the server of ``REDIS_URL`` within `TOTAL_TIMEOUT_S`."""
    url = settings.text_of("redis_url")
    try:
        return within(ALL_S, lambda: _examine(settings, url))
    except TimeoutError:
        text = f"{url}: no answer within {plain(ALL_S)} s"
        return [Finding("redis", "connection", Level.FAIL, text, "can the name of its host be looked up?")]


def _examine(settings: Settings, url: str) -> Findings:
    from redis.exceptions import RedisClusterException, RedisError

    findings: Findings = []
    secret = settings.redis_url.get_secret_value() if settings.redis_url is not None else ""
    try:
        wire = WindowProtocol(settings.redis_prefix, settings.service, settings.redis_partitions)
        parts = parse_redis_url(secret)
        with closing(RedisClients(RedisOptions(secret)).sync(REPLY_S)) as client:
            nodes = _nodes(client, wire, parts.cluster)
            findings.append(_connected(parts, url, len(nodes)))
            for node in nodes:
                findings += [*_way(node, settings), *_server(node), *_allowed(node, settings, wire)]
    except (RedisError, RedisClusterException, OSError) as error:  # RedisClusterException is no RedisError
        trouble = error_kind(error, sent=False)
        hint = _REMEDIES.get(trouble, "")
        findings.append(
            Finding("redis", "connection", Level.FAIL, f"{url}: {_words(error)}", hint, trouble.value)
        )
    return findings


def _nodes(client: Any, wire: WindowProtocol, cluster: bool) -> list[_Node]:  # noqa: ANN401 - redis-py's
    """Open connections to the servers that hold our keys: several for a cluster, else one.

    Raises:
        RedisError: there is no connection.
        OSError: the same.
    """
    asks = (wire.build_check([StoreCharge("doctor", _BOTH_FORMS, secrets.token_hex(8), 1)]) for _ in count())
    if not cluster:
        return [_Node("", client.connection_pool.get_connection(), next(asks))]
    found: dict[str, tuple[Any, CheckRequest]] = {}
    for asked in islice(asks, USERS_TRIED):
        node = client.get_node_from_key(asked.keys[0])
        found.setdefault(node.name, (node, asked))
    return [
        _Node(name, client.get_redis_connection(node).connection_pool.get_connection(), asked)
        for name, (node, asked) in sorted(found.items())
    ]


def _connected(parts: RedisAddress, url: str, nodes: int) -> Finding:
    kind = {
        Topology.SINGLE: "one server",
        Topology.SENTINEL: f"the primary of {parts.service}, as Sentinel names it",
        Topology.CLUSTER: f"a cluster, our keys on {nodes} of its nodes",
    }[parts.topology]
    tls = "TLS" if parts.tls else "no TLS"
    return Finding(
        "redis", "connection", Level.OK, f"{url} answers: {kind}, {tls}", value=parts.topology.value
    )


def _way(node: _Node, settings: Settings) -> Findings:
    """Measure the round trip, and the difference between the two clocks."""
    from redis.exceptions import NoPermissionError

    times: list[tuple[float, float]] = []
    try:
        for _ in range(ROUND_TRIPS):
            began, wall = time.monotonic(), time.time()
            seconds, micros = node.ask("TIME")
            took = time.monotonic() - began
            # TIME is assumed to be read in the middle of the round trip.
            times.append((took, int(seconds) + int(micros) / 1e6 - wall - took / 2))
    except NoPermissionError:
        return []  # the permission check reports it
    # The fastest round trip bounds the offset best: its error is at most half of it.
    offset = min(times)[1]
    clock = f"clock {abs(offset) * 1e3:.1f} ms {'behind' if offset < 0 else 'ahead of'} this host's"
    return [
        node.named(round_trip("redis", [took for took, _ in times], settings.redis_deadline_s)),
        node.finding("clock", Level.OK, f"{clock}; windows go by the server's alone", value=round(offset, 6)),
    ]


def _server(node: _Node) -> Findings:
    """Report version, role and eviction policy of the server."""
    from redis.exceptions import NoPermissionError

    try:
        text = node.ask("INFO").decode("utf-8", "replace")
    except NoPermissionError:
        hint = "grant +info to see its version, role and eviction policy"
        return [node.finding("server", Level.WARN, "its user may not ask what it is", hint)]
    info = dict(line.partition(":")[::2] for line in text.splitlines() if ":" in line)
    return [_version(node, info), _role(node, info), _eviction(node, info)]


def _version(node: _Node, info: Mapping[str, str]) -> Finding:
    version = info.get("valkey_version") or info.get("redis_version", "")
    name = f"{'Valkey' if 'valkey_version' in info else 'Redis'} {version}"
    numbers = tuple(int(part) for part in info.get("redis_version", "").split(".")[:2] if part.isdigit())
    if numbers < OLDEST:
        return node.finding(
            "version", Level.FAIL, f"{name} is too old", "Redis 6.2 or later, or Valkey", version
        )
    return node.finding("version", Level.OK, name, value=version)


def _role(node: _Node, info: Mapping[str, str]) -> Finding:
    role = info.get("role", "")
    if role != "master":
        hint = "name its primary, or let a Sentinel name it: redis+sentinel://"
        return node.finding("role", Level.FAIL, "it is a replica, which counts nothing", hint, "replica")
    return node.finding("role", Level.OK, "it is a primary", value="primary")


def _eviction(node: _Node, info: Mapping[str, str]) -> Finding:
    policy = info.get("maxmemory_policy", "")
    text = f"eviction policy {policy or 'not told'}"
    if policy in KEEPS_KEYS:
        return node.finding("eviction", Level.OK, text, value=policy)
    text += ": when its memory is full, a user may lose the window and so get a fresh limit"
    return node.finding(
        "eviction", Level.WARN, text, "set maxmemory-policy volatile-ttl or noeviction", policy
    )


def _allowed(node: _Node, settings: Settings, wire: WindowProtocol) -> Findings:
    """Check the permissions and the counting; counting is skipped if a permission is missing."""
    rights = _rights(node, settings)
    forbidden = any(finding.level is Level.FAIL for finding in rights)
    return rights if forbidden else [*rights, _counts(node, wire)]


def _rights(node: _Node, settings: Settings) -> Findings:
    """Report missing permissions of the server's user."""
    more = _of_fleets(settings)
    found = refused(node.ask, dict.fromkeys([*RIGHTS.split(), *more]), node.asked.keys[0])
    if found is None and not more:
        return []  # the counting check fails if one is missing
    if found is None:
        hint = "grant +multi +discard to have them looked at one by one"
        text = "whether its user may do what a fleet needs was not looked at"
        return [node.finding("rights", Level.WARN, text, hint)]
    findings = []
    if found.commands:
        hint = "ACL SETUSER its name " + " ".join(f"+{command}" for command in found.commands)
        text = f"its user may not run {', '.join(found.commands)}"
        findings.append(node.finding("rights", Level.FAIL, text, hint, list(found.commands)))
    for what, verb, sign in (("keys", "touch", "~"), ("channels", "use", "&")):
        if getattr(found, what):
            text = f"its user may not {verb} the {what} below {settings.redis_prefix}"
            hint = f"ACL SETUSER its name {sign}{settings.redis_prefix}:*"
            findings.append(node.finding("rights", Level.FAIL, text, hint, [what]))
    if not findings:
        findings.append(node.finding("rights", Level.OK, "its user may do all that is needed", value=[]))
    return findings


def _of_fleets(settings: Settings) -> list[str]:
    """Return the commands needed for more than user limits."""
    needed = (
        (settings.fleet, redis_fleet.RIGHTS),
        (settings.fleet_gpu, gpu_fleet.RIGHTS),
        (settings.breaker_shared, breakers.RIGHTS),
    )
    return [command for asked, rights in needed if asked for command in rights.split()]


def _counts(node: _Node, wire: WindowProtocol) -> Finding:
    """Charge one unit of an invented user, in both layouts, and refund it."""
    from redis.exceptions import ResponseError

    try:
        (answer,) = wire.decode(_run(node, wire.encode([node.asked])), [node.asked])
        allowed = all(ok == 1 for ok in answer[::VALUES])
        back = wire.build_refund(node.asked, answer)
        moved = wire.decode(_run(node, wire.encode([back])), [back])
    except ResponseError as error:
        trouble = error_kind(error, sent=True)
        hint = f"its user needs: {RIGHTS}" if trouble is StoreErrorKind.FORBIDDEN else ""
        _clear(node)
        return node.finding("counting", Level.FAIL, f"it cannot count: {_words(error)}", hint, trouble.value)
    except ValueError as error:
        return node.finding(
            "counting", Level.FAIL, f"it cannot count: {error}", value=StoreErrorKind.CONFUSED.value
        )
    if not allowed or list(moved[0]) != [1, 1]:
        text = f"it counts wrong: {list(answer)}, {list(moved[0])}"
        return node.finding("counting", Level.FAIL, text, value=StoreErrorKind.CONFUSED.value)
    return node.finding("counting", Level.OK, "it counts, and takes back", value="ok")


def _run(node: _Node, words: tuple[list[str], list[str | int]]) -> object:
    from redis.exceptions import NoScriptError

    keys, arguments = words
    text = script()
    try:
        digest = sha1(text.encode(), usedforsecurity=False).hexdigest()
        return node.ask("EVALSHA", digest, len(keys), *keys, *arguments)
    except NoScriptError:
        return node.ask("EVAL", text, len(keys), *keys, *arguments)


def _clear(node: _Node) -> None:
    """Delete keys that a script without all permissions may have written without a time to live."""
    from redis.exceptions import ResponseError

    for key in node.asked.keys:
        with suppress(ResponseError):
            node.ask("DEL", key)


def _words(error: BaseException) -> str:
    """Return an error in one line."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return text if len(text) <= WORDS_AT_MOST else f"{text[: WORDS_AT_MOST - 3]}..."
