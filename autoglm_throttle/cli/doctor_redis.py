"""Diagnoses a Redis server for user limits: kind, latency, and permissions."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from hashlib import sha1
from statistics import median
from typing import Any, Final

from autoglm_throttle.cli.doctor_result import DoctorResult, Severity, within
from autoglm_throttle.settings import Settings
from autoglm_throttle.settings.field_types import plain
from autoglm_throttle.settings.groups.store import parse_redis_url
from autoglm_throttle.settings.problems import shortened
from autoglm_throttle.store import fleet, protocol
from autoglm_throttle.store import gpu as gpu_fleet
from autoglm_throttle.store.breakers import protocol as breakers
from autoglm_throttle.store.client import RedisClients
from autoglm_throttle.store.protocol import StoreCharge, StoreErrorKind, WindowEntry, WindowProtocol
from autoglm_throttle.store.script import RIGHTS, error_kind
from autoglm_throttle.types import UserLimit

REPLY_TIMEOUT_S: Final = 0.5  # of a connection, and of each reply: ten times the deadline of a decision
TOTAL_TIMEOUT_S: Final = 5.0  # of the whole diagnosis: looking up a host's name has no timeout of its own
SAFE_EVICTION_POLICIES: Final = ("noeviction", "volatile-ttl")  # never drop a user's window before its end
OLDEST: Final = (6, 2)
ROUND_TRIPS: Final = 9  # timed calls; the median of fewer would depend on a single odd one
USERS_TRIED: Final = 200  # in a cluster; each node that would count one of them is examined
# One limit stored as a list, one stored as sub-buckets.
_BOTH_LAYOUTS: Final = (UserLimit("doctor-1s", 1000, 1), UserLimit("doctor-2s", 1_000_000, 2))

_KINDS: Final = {
    "single": "one server",
    "sentinel": "the primary of {service}, as Sentinel names it",
    "cluster": "a cluster, keys of this service on {nodes} of its nodes",
}
_REMEDIES: Final = {
    StoreErrorKind.UNREACHABLE: "is it running, and does REDIS_URL name the right host and port?",
    StoreErrorKind.TIMEOUT: "it hangs, has high latency, or expects TLS (rediss://)",
    StoreErrorKind.FORBIDDEN: "REDIS_URL must contain the user and password of the server",
    StoreErrorKind.LOST: "does the server expect TLS (rediss://), or plain TCP?",
}

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

_result = partial(DoctorResult, "redis")


def diagnose(settings: Settings) -> list[DoctorResult]:
    """Diagnose the server of ``REDIS_URL`` within `TOTAL_TIMEOUT_S`."""
    url = settings.text_of("redis_url")
    try:
        return within(TOTAL_TIMEOUT_S, lambda: _diagnose(settings, url))
    except TimeoutError:
        text = f"{url}: no answer within {plain(TOTAL_TIMEOUT_S)} s"
        return [_result("connection", "fail", text, "can its host name be resolved?")]


def _diagnose(settings: Settings, url: str) -> list[DoctorResult]:
    from redis.exceptions import RedisClusterException, RedisError

    store = settings.store
    results: list[DoctorResult] = []
    try:
        wire = WindowProtocol(store.redis_prefix, store.service, store.redis_partitions)
        parts = parse_redis_url("" if store.redis_url is None else store.redis_url.get_secret_value())
        with closing(RedisClients(store).sync(REPLY_TIMEOUT_S)) as client:
            nodes = _nodes(client, wire, parts.topology == "cluster")
            kind = _KINDS[parts.topology].format(service=parts.service, nodes=len(nodes))
            text = f"{url} answers: {kind}, {'TLS' if parts.tls else 'no TLS'}"
            results.append(_result("connection", "ok", text, value=parts.topology))
            for name, (execute, request) in sorted(nodes.items()):
                found = [*_latency(execute, store.redis_deadline_s), *check_server(execute)]
                rights = _permissions(execute, request.keys[0], settings)
                may_count = all(one.level != "fail" for one in rights)
                found += [*rights, _counts(execute, request, wire)] if may_count else rights
                results += [replace(one, message=f"{name}: {one.message}") if name else one for one in found]
    except (RedisError, RedisClusterException, OSError) as error:  # RedisClusterException is no RedisError
        fault = error_kind(error, sent=False)
        hint = _REMEDIES.get(fault, "")
        results.append(_result("connection", "fail", f"{url}: {_error_line(error)}", hint, fault.value))
    return results


def _nodes(client: Any, wire: WindowProtocol, cluster: bool) -> dict[str, tuple[Execute, WindowEntry]]:  # noqa: ANN401 - redis-py's
    """Open connections to the servers that hold our keys: several by name for a cluster, else one.

    Each comes with a charge of an invented user that has keys on this server.
    """
    nodes: dict[str, tuple[Execute, WindowEntry]] = {}
    for _ in range(USERS_TRIED if cluster else 1):
        request = wire.build_check([StoreCharge("doctor", _BOTH_LAYOUTS, secrets.token_hex(8), 1)])
        node = client.get_node_from_key(request.keys[0]) if cluster else None
        name = "" if node is None else node.name
        if name not in nodes:
            owner = client if node is None else client.get_redis_connection(node)
            nodes[name] = partial(_execute, owner.connection_pool.get_connection()), request
    return nodes


def _execute(connection: Any, *tokens: object) -> Any:  # noqa: ANN401 - redis-py's; a reply may be anything
    connection.send_command(*tokens)
    return connection.read_response()


def _latency(execute: Execute, deadline_s: float) -> Iterator[DoctorResult]:
    """Measure the round trip, and the difference between the two clocks."""
    from redis.exceptions import NoPermissionError

    times: list[tuple[float, float]] = []
    try:
        for _ in range(ROUND_TRIPS):
            began, wall = time.monotonic(), time.time()
            seconds, micros = execute("TIME")
            elapsed_s = time.monotonic() - began
            # TIME is assumed to be read in the middle of the round trip.
            times.append((elapsed_s, int(seconds) + int(micros) / 1e6 - wall - elapsed_s / 2))
    except NoPermissionError:
        return  # the permission check reports it
    median_s = median(elapsed_s for elapsed_s, _ in times)
    text = f"round trip {median_s * 1e3:.2f} ms, median of {ROUND_TRIPS}"
    hint = (
        f"decisions wait at most REDIS_DEADLINE_S, {plain(deadline_s * 1e3)} ms: "
        "run the store closer to the service, or raise the deadline"
    )
    if median_s <= deadline_s / 2:
        yield _result("round_trip", "ok", text, value=round(median_s, 6))
    else:
        level: Severity = "fail" if median_s > deadline_s else "warn"
        yield _result("round_trip", level, text, hint, round(median_s, 6))
    # The fastest round trip bounds the offset best: its error is at most half of it.
    offset = min(times)[1]
    clock = f"clock {abs(offset) * 1e3:.1f} ms {'behind' if offset < 0 else 'ahead of'} this host's"
    yield _result("clock", "ok", f"{clock}; windows use the server's clock only", value=round(offset, 6))


def check_server(execute: Execute) -> Iterator[DoctorResult]:
    """Report version, role and eviction policy of the server."""
    from redis.exceptions import NoPermissionError

    try:
        text = execute("INFO").decode("utf-8", "replace")
    except NoPermissionError:
        hint = "grant +info to see its version, role and eviction policy"
        yield _result("server", "warn", "its user has no permission for INFO", hint)
        return
    info = dict(line.partition(":")[::2] for line in text.splitlines() if ":" in line)
    yield check_version(info)
    if info.get("role") == "master":
        yield _result("role", "ok", "it is a primary", value="primary")
    else:
        hint = "use the address of its primary, or let Sentinel find it: redis+sentinel://"
        yield _result("role", "fail", "it is a replica, which accepts no writes", hint, "replica")
    policy = info.get("maxmemory_policy", "")
    text = f"eviction policy {policy or 'not reported'}"
    if policy in SAFE_EVICTION_POLICIES:
        yield _result("eviction", "ok", text, value=policy)
    else:
        text += ": when its memory is full, a user's window may be evicted, which resets the user's limit"
        yield _result("eviction", "warn", text, "set maxmemory-policy volatile-ttl or noeviction", policy)


def check_version(info: Mapping[str, str]) -> DoctorResult:
    """Check the version of a server, from its own information."""
    version = info.get("valkey_version") or info.get("redis_version", "")
    name = f"{'Valkey' if 'valkey_version' in info else 'Redis'} {version}"
    numbers = tuple(int(part) for part in info.get("redis_version", "").split(".")[:2] if part.isdigit())
    if numbers < OLDEST:
        return _result("version", "fail", f"{name} is too old", "Redis 6.2 or later, or Valkey", version)
    return _result("version", "ok", name, value=version)


def missing_permissions(execute: Execute, commands: Iterable[str], key: str) -> dict[str, list[str]] | None:
    """Return the commands rejected for want of a command, a key or a channel; None if the check is rejected.

    The commands are put into a transaction that is then discarded, so nothing is written. The server checks
    the permissions of a command when it queues it, and names the rejected one; inside a script it would not.
    """
    from redis.exceptions import NoPermissionError, ResponseError

    calls: dict[str, tuple[object, ...]] = {
        "time": ("TIME",),
        "ping": ("PING",),
        "eval": ("EVAL", "return 0", 1, key),
        "evalsha": ("EVALSHA", "0" * 40, 1, key),
        **{name: (name.upper(), key, *values) for name, values in ARGUMENTS.items()},
    }
    try:
        execute("MULTI")
    except NoPermissionError:
        return None
    missing: dict[str, list[str]] = {"command": [], "channel": [], "key": []}
    for command in commands:
        try:
            execute(*calls[command])
        except NoPermissionError as error:
            kind = next((kind for kind in ("command", "channel") if kind in str(error)), "key")
            missing[kind].append(command)
        except ResponseError:
            pass  # another error, such as full memory: the counting check reports it
    execute("DISCARD")
    return missing


def _permissions(execute: Execute, key: str, settings: Settings) -> list[DoctorResult]:
    """Report missing permissions of the server's user."""
    needed = (
        (settings.fleet.fleet, fleet.RIGHTS),
        (settings.fleet.fleet_gpu, gpu_fleet.RIGHTS),
        (settings.shared_breakers.shared, breakers.RIGHTS),
    )
    more = [command for is_on, rights in needed if is_on for command in rights.split()]
    missing = missing_permissions(execute, dict.fromkeys([*RIGHTS.split(), *more]), key)
    if missing is None and not more:
        return []  # the counting check fails if one is missing
    if missing is None:
        hint = "grant +multi +discard so that each command can be checked"
        return [_result("rights", "warn", "the permissions that a fleet needs were not checked", hint)]
    prefix, commands = settings.store.redis_prefix, missing["command"]
    rules = " ".join(f"+{command}" for command in commands)
    rows = (
        ("command", f"has no permission for {', '.join(commands)}", rules, commands),
        ("key", f"may not touch the keys with the prefix {prefix}", f"~{prefix}:*", ["keys"]),
        ("channel", f"may not use the channels with the prefix {prefix}", f"&{prefix}:*", ["channels"]),
    )
    results = [
        _result("rights", "fail", f"its user {text}", f"ACL SETUSER its name {rule}", value)
        for kind, text, rule, value in rows
        if missing[kind]
    ]
    return results or [_result("rights", "ok", "its user has all permissions needed", value=[])]


def _counts(execute: Execute, request: WindowEntry, wire: WindowProtocol) -> DoctorResult:
    """Charge one unit of an invented user, in both layouts, and refund it."""
    from redis.exceptions import ResponseError

    def failed(text: str, kind: StoreErrorKind, hint: str = "") -> DoctorResult:
        return _result("counting", "fail", text, hint, kind.value)

    try:
        (answer,) = wire.decode(_run(execute, *wire.encode([request])), [request])
        if isinstance(answer, StoreErrorKind):
            return failed(f"it cannot count: {answer}", answer)
        back = wire.build_refund(request, answer)
        moved = wire.decode(_run(execute, *wire.encode([back])), [back])
    except ResponseError as error:
        # A script without all permissions may have written keys without a time to live.
        for key in request.keys:
            with suppress(ResponseError):
                execute("DEL", key)
        kind = error_kind(error, sent=True)
        hint = f"its user needs: {RIGHTS}" if kind is StoreErrorKind.FORBIDDEN else ""
        return failed(f"it cannot count: {_error_line(error)}", kind, hint)
    except ValueError as error:
        return failed(f"it cannot count: {error}", StoreErrorKind.CONFUSED)
    if any(answer[:: protocol.VALUES]) or moved[0] != [1, 1]:
        return failed(f"it counts incorrectly: {answer}, {moved[0]}", StoreErrorKind.CONFUSED)
    return _result("counting", "ok", "it charges and refunds correctly", value="ok")


def _run(execute: Execute, keys: list[str], arguments: list[str | int]) -> object:
    from redis.exceptions import NoScriptError

    text = protocol.script()
    try:
        digest = sha1(text.encode(), usedforsecurity=False).hexdigest()
        return execute("EVALSHA", digest, len(keys), *keys, *arguments)
    except NoScriptError:
        return execute("EVAL", text, len(keys), *keys, *arguments)


def _error_line(error: BaseException) -> str:
    """Return an error in one line of at most 200 characters."""
    return shortened(str(error).splitlines()[0] if str(error) else type(error).__name__, 200)
