"""Diagnoses a Redis server for user limits: kind, latency, and permissions."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from hashlib import sha1
from itertools import count, islice
from statistics import median
from typing import Any, Final

from autoglm_throttle.cli.doctor_result import DoctorResult, Severity, within
from autoglm_throttle.settings import Settings
from autoglm_throttle.settings.field_types import plain
from autoglm_throttle.settings.groups.store import RedisAddress, Topology, parse_redis_url
from autoglm_throttle.store import fleet
from autoglm_throttle.store import gpu as gpu_fleet
from autoglm_throttle.store.breakers import protocol as breakers
from autoglm_throttle.store.client import RedisClients
from autoglm_throttle.store.protocol import (
    VALUES,
    CheckRequest,
    StoreCharge,
    StoreErrorKind,
    WindowProtocol,
    script,
)
from autoglm_throttle.store.script import RIGHTS, error_kind
from autoglm_throttle.types import UserLimit

# Timeout of a connection, and of each reply: ten times the deadline of a decision.
REPLY_TIMEOUT_S: Final = 0.5

# Timeout of the whole diagnosis: looking up a host's name has no timeout of its own.
TOTAL_TIMEOUT_S: Final = 5.0

# Eviction policies that never drop a user's window before its end.
SAFE_EVICTION_POLICIES: Final = ("noeviction", "volatile-ttl")

OLDEST: Final = (6, 2)

ROUND_TRIPS: Final = 9  # Number of timed calls; the median of fewer would depend on a single odd one

MAX_ERROR_CHARS: Final = 200

# Number of users tried in a cluster; each node that would count one of them is examined.
USERS_TRIED: Final = 200

# One limit stored as a list, one stored as sub-buckets.
_BOTH_LAYOUTS: Final = (UserLimit("doctor-1s", 1000, 1), UserLimit("doctor-2s", 1_000_000, 2))

_REMEDIES: Final[Mapping[StoreErrorKind, str]] = {
    StoreErrorKind.UNREACHABLE: "is it running, and does REDIS_URL name the right host and port?",
    StoreErrorKind.TIMEOUT: "it hangs, has high latency, or expects TLS (rediss://)",
    StoreErrorKind.FORBIDDEN: "REDIS_URL must contain the user and password of the server",
    StoreErrorKind.LOST: "does the server expect TLS (rediss://), or plain TCP?",
}


DoctorResults = list[DoctorResult]

Execute = Callable[..., Any]  # Sends a command and returns its reply; raises redis-py's errors

_BY_ARGUMENTS: Final[dict[tuple[object, ...], str]] = {
    (): "llen rpop del get hgetall zcard subscribe",
    (0,): "lindex lpush set hget hdel zrem zscore hmget publish",
    (1,): "pexpire",
    (0, 0): "ltrim hset zadd zremrangebyscore zcount",
    (1, 0): "lrem",
}
# Command -> arguments after its key or channel: the fewest with which the server checks permissions.
ARGUMENTS: Final = {name: values for values, names in _BY_ARGUMENTS.items() for name in names.split()}


@dataclass(frozen=True, slots=True)
class RedisNode:
    """One server that holds keys of this service."""

    name: str  # Empty if there is only one
    connection: Any
    check_request: CheckRequest  # A charge of an invented user with keys on this server

    def execute(self, *tokens: object) -> Any:  # noqa: ANN401 - a reply may be anything
        """Send a command and read its reply."""
        self.connection.send_command(*tokens)
        return self.connection.read_response()

    def result(
        self,
        item: str,
        level: Severity,
        message: str,
        hint: str = "",
        value: str | float | list[str] | None = None,
    ) -> DoctorResult:
        """Make a result for this server; the message names it if there are several."""
        text = f"{self.name}: {message}" if self.name else message
        return DoctorResult("redis", item, level, text, hint, value)


def diagnose(settings: Settings) -> DoctorResults:
    """Diagnose the server of ``REDIS_URL`` within `TOTAL_TIMEOUT_S`."""
    url = settings.text_of("redis_url")
    try:
        return within(TOTAL_TIMEOUT_S, lambda: _diagnose(settings, url))
    except TimeoutError:
        text = f"{url}: no answer within {plain(TOTAL_TIMEOUT_S)} s"
        return [DoctorResult("redis", "connection", Severity.FAIL, text, "can its host name be resolved?")]


def _diagnose(settings: Settings, url: str) -> DoctorResults:
    from redis.exceptions import RedisClusterException, RedisError

    results: DoctorResults = []
    secret = settings.store.redis_url.get_secret_value() if settings.store.redis_url is not None else ""
    try:
        wire = WindowProtocol(
            settings.store.redis_prefix, settings.store.service, settings.store.redis_partitions
        )
        parts = parse_redis_url(secret)
        with closing(RedisClients(settings.store).sync(REPLY_TIMEOUT_S)) as client:
            nodes = _nodes(client, wire, parts.topology is Topology.CLUSTER)
            results.append(_connected(parts, url, len(nodes)))
            for node in nodes:
                results += [*_latency(node, settings), *check_server(node), *_access(node, settings, wire)]
    except (RedisError, RedisClusterException, OSError) as error:  # RedisClusterException is no RedisError
        kind = error_kind(error, sent=False)
        hint = _REMEDIES.get(kind, "")
        results.append(
            DoctorResult(
                "redis", "connection", Severity.FAIL, f"{url}: {_error_line(error)}", hint, kind.value
            )
        )
    return results


def _nodes(client: Any, wire: WindowProtocol, cluster: bool) -> list[RedisNode]:  # noqa: ANN401 - redis-py's
    """Open connections to the servers that hold our keys: several for a cluster, else one."""
    check_requests = (
        wire.build_check([StoreCharge("doctor", _BOTH_LAYOUTS, secrets.token_hex(8), 1)]) for _ in count()
    )
    if not cluster:
        return [RedisNode("", client.connection_pool.get_connection(), next(check_requests))]
    nodes_by_name: dict[str, tuple[Any, CheckRequest]] = {}
    for check_request in islice(check_requests, USERS_TRIED):
        node = client.get_node_from_key(check_request.keys[0])
        nodes_by_name.setdefault(node.name, (node, check_request))
    return [
        RedisNode(name, client.get_redis_connection(node).connection_pool.get_connection(), check_request)
        for name, (node, check_request) in sorted(nodes_by_name.items())
    ]


def _connected(parts: RedisAddress, url: str, nodes: int) -> DoctorResult:
    kind = {
        Topology.SINGLE: "one server",
        Topology.SENTINEL: f"the primary of {parts.service}, as Sentinel names it",
        Topology.CLUSTER: f"a cluster, keys of this service on {nodes} of its nodes",
    }[parts.topology]
    tls = "TLS" if parts.tls else "no TLS"
    return DoctorResult(
        "redis", "connection", Severity.OK, f"{url} answers: {kind}, {tls}", value=parts.topology.value
    )


def _latency(node: RedisNode, settings: Settings) -> DoctorResults:
    """Measure the round trip, and the difference between the two clocks."""
    from redis.exceptions import NoPermissionError

    times: list[tuple[float, float]] = []
    try:
        for _ in range(ROUND_TRIPS):
            began, wall = time.monotonic(), time.time()
            seconds, micros = node.execute("TIME")
            elapsed_s = time.monotonic() - began
            # TIME is assumed to be read in the middle of the round trip.
            times.append((elapsed_s, int(seconds) + int(micros) / 1e6 - wall - elapsed_s / 2))
    except NoPermissionError:
        return []  # the permission check reports it
    # The fastest round trip bounds the offset best: its error is at most half of it.
    offset = min(times)[1]
    clock = f"clock {abs(offset) * 1e3:.1f} ms {'behind' if offset < 0 else 'ahead of'} this host's"
    return [
        _round_trip(node, median(elapsed_s for elapsed_s, _ in times), settings.store.redis_deadline_s),
        node.result(
            "clock", Severity.OK, f"{clock}; windows use the server's clock only", value=round(offset, 6)
        ),
    ]


def _round_trip(node: RedisNode, median_s: float, deadline_s: float) -> DoctorResult:
    """Check that decisions, which wait for ``deadline_s`` at most, can wait for a round trip."""
    text = f"round trip {median_s * 1e3:.2f} ms, median of {ROUND_TRIPS}"
    value = round(median_s, 6)
    if median_s <= deadline_s / 2:
        return node.result("round_trip", Severity.OK, text, value=value)
    hint = (
        f"decisions wait at most REDIS_DEADLINE_S, {plain(deadline_s * 1e3)} ms: "
        "run the store closer to the service, or raise the deadline"
    )
    severity = Severity.FAIL if median_s > deadline_s else Severity.WARN
    return node.result("round_trip", severity, text, hint, value)


def check_server(node: RedisNode) -> DoctorResults:
    """Report version, role and eviction policy of the server."""
    from redis.exceptions import NoPermissionError

    try:
        text = node.execute("INFO").decode("utf-8", "replace")
    except NoPermissionError:
        hint = "grant +info to see its version, role and eviction policy"
        return [node.result("server", Severity.WARN, "its user has no permission for INFO", hint)]
    info = dict(line.partition(":")[::2] for line in text.splitlines() if ":" in line)
    return [check_version(node, info), _role(node, info), _eviction(node, info)]


def check_version(node: RedisNode, info: Mapping[str, str]) -> DoctorResult:
    """Check the version of a server, from its own information."""
    version = info.get("valkey_version") or info.get("redis_version", "")
    name = f"{'Valkey' if 'valkey_version' in info else 'Redis'} {version}"
    numbers = tuple(int(part) for part in info.get("redis_version", "").split(".")[:2] if part.isdigit())
    if numbers < OLDEST:
        return node.result(
            "version", Severity.FAIL, f"{name} is too old", "Redis 6.2 or later, or Valkey", version
        )
    return node.result("version", Severity.OK, name, value=version)


def _role(node: RedisNode, info: Mapping[str, str]) -> DoctorResult:
    role = info.get("role", "")
    if role != "master":
        hint = "use the address of its primary, or let Sentinel find it: redis+sentinel://"
        return node.result("role", Severity.FAIL, "it is a replica, which accepts no writes", hint, "replica")
    return node.result("role", Severity.OK, "it is a primary", value="primary")


def _eviction(node: RedisNode, info: Mapping[str, str]) -> DoctorResult:
    policy = info.get("maxmemory_policy", "")
    text = f"eviction policy {policy or 'not reported'}"
    if policy in SAFE_EVICTION_POLICIES:
        return node.result("eviction", Severity.OK, text, value=policy)
    text += ": when its memory is full, a user's window may be evicted, which resets the user's limit"
    return node.result(
        "eviction", Severity.WARN, text, "set maxmemory-policy volatile-ttl or noeviction", policy
    )


def _access(node: RedisNode, settings: Settings, wire: WindowProtocol) -> DoctorResults:
    """Check the permissions and the counting; counting is skipped if a permission is missing."""
    results = _permissions(node, settings)
    forbidden = any(result.level is Severity.FAIL for result in results)
    return results if forbidden else [*results, _counts(node, wire)]


def missing_permissions(execute: Execute, commands: Iterable[str], key: str) -> dict[str, list[str]] | None:
    """Return the commands rejected for want of a command, a key or a channel; None if the check is rejected.

    The commands are put into a transaction that is then discarded, so nothing is written. The server checks
    the permissions of a command when it queues it, and names the rejected one; inside a script it would not.
    """
    from redis.exceptions import NoPermissionError, ResponseError

    try:
        execute("MULTI")
    except NoPermissionError:
        return None
    missing: dict[str, list[str]] = {"command": [], "channel": [], "key": []}
    for command in commands:
        try:
            execute(*_call(command, key))
        except NoPermissionError as error:
            kind = next((kind for kind in ("command", "channel") if kind in str(error)), "key")
            missing[kind].append(command)
        except ResponseError:
            pass  # another error, such as full memory: the counting check reports it
    execute("DISCARD")
    return missing


def _call(command: str, key: str) -> Sequence[object]:
    if command in ("time", "ping"):
        return (command.upper(),)
    if command == "eval":
        return ("EVAL", "return 0", 1, key)
    if command == "evalsha":
        return ("EVALSHA", "0" * 40, 1, key)
    return (command.upper(), key, *ARGUMENTS[command])


def _permissions(node: RedisNode, settings: Settings) -> DoctorResults:
    """Report missing permissions of the server's user."""
    needed = (
        (settings.fleet.fleet, fleet.RIGHTS),
        (settings.fleet.fleet_gpu, gpu_fleet.RIGHTS),
        (settings.shared_breakers.shared, breakers.RIGHTS),
    )
    more = [command for is_on, rights in needed if is_on for command in rights.split()]
    commands = dict.fromkeys([*RIGHTS.split(), *more])
    missing = missing_permissions(node.execute, commands, node.check_request.keys[0])
    if missing is None and not more:
        return []  # the counting check fails if one is missing
    if missing is None:
        hint = "grant +multi +discard so that each command can be checked"
        text = "the permissions that a fleet needs were not checked"
        return [node.result("rights", Severity.WARN, text, hint)]
    results = []
    if missing["command"]:
        hint = "ACL SETUSER its name " + " ".join(f"+{command}" for command in missing["command"])
        text = f"its user has no permission for {', '.join(missing['command'])}"
        results.append(node.result("rights", Severity.FAIL, text, hint, missing["command"]))
    for scope, verb, sign in (("key", "touch", "~"), ("channel", "use", "&")):
        if missing[scope]:
            text = f"its user may not {verb} the {scope}s with the prefix {settings.store.redis_prefix}"
            hint = f"ACL SETUSER its name {sign}{settings.store.redis_prefix}:*"
            results.append(node.result("rights", Severity.FAIL, text, hint, [f"{scope}s"]))
    if not results:
        results.append(node.result("rights", Severity.OK, "its user has all permissions needed", value=[]))
    return results


def _counts(node: RedisNode, wire: WindowProtocol) -> DoctorResult:
    """Charge one unit of an invented user, in both layouts, and refund it."""
    from redis.exceptions import ResponseError

    try:
        (answer,) = wire.decode(_run(node, wire.encode([node.check_request])), [node.check_request])
        if isinstance(answer, StoreErrorKind):
            return node.result("counting", Severity.FAIL, f"it cannot count: {answer}", value=answer.value)
        allowed = all(ok == 1 for ok in answer[::VALUES])
        back = wire.build_refund(node.check_request, answer)
        moved = wire.decode(_run(node, wire.encode([back])), [back])
    except ResponseError as error:
        kind = error_kind(error, sent=True)
        hint = f"its user needs: {RIGHTS}" if kind is StoreErrorKind.FORBIDDEN else ""
        _clear(node)
        return node.result(
            "counting", Severity.FAIL, f"it cannot count: {_error_line(error)}", hint, kind.value
        )
    except ValueError as error:
        return node.result(
            "counting", Severity.FAIL, f"it cannot count: {error}", value=StoreErrorKind.CONFUSED.value
        )
    if not allowed or moved[0] != [1, 1]:
        text = f"it counts incorrectly: {answer}, {moved[0]}"
        return node.result("counting", Severity.FAIL, text, value=StoreErrorKind.CONFUSED.value)
    return node.result("counting", Severity.OK, "it charges and refunds correctly", value="ok")


def _run(node: RedisNode, encoded: tuple[list[str], list[str | int]]) -> object:
    from redis.exceptions import NoScriptError

    keys, arguments = encoded
    text = script()
    try:
        digest = sha1(text.encode(), usedforsecurity=False).hexdigest()
        return node.execute("EVALSHA", digest, len(keys), *keys, *arguments)
    except NoScriptError:
        return node.execute("EVAL", text, len(keys), *keys, *arguments)


def _clear(node: RedisNode) -> None:
    """Delete keys that a script without all permissions may have written without a time to live."""
    from redis.exceptions import ResponseError

    for key in node.check_request.keys:
        with suppress(ResponseError):
            node.execute("DEL", key)


def _error_line(error: BaseException) -> str:
    """Return an error in one line."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return text if len(text) <= MAX_ERROR_CHARS else f"{text[: MAX_ERROR_CHARS - 3]}..."
