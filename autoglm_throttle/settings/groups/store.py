"""Settings of the shared store and the fleet, and the parser of ``REDIS_URL``."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final, Literal
from urllib.parse import parse_qsl, unquote

from pydantic import SecretStr
from pydantic_core import MultiHostHost, MultiHostUrl, ValidationError

from autoglm_throttle.settings import field_types as f
from autoglm_throttle.settings.field_types import FieldTypeError, choice, number, whole, word
from autoglm_throttle.settings.groups.base import Group
from autoglm_throttle.settings.problems import masked_url
from autoglm_throttle.types import STALL_S, StoreFailureMode

Topology = Literal["single", "sentinel", "cluster"]
"""Arrangement of the servers: one, a primary found through sentinels, or a cluster."""

_SCHEMES: Final[dict[str, Topology]] = {
    "redis": "single",
    "unix": "single",
    "redis+sentinel": "sentinel",
    "redis+cluster": "cluster",
}

# Options allowed after ? of a TLS URL, with the names of redis-py.
TLS_OPTIONS: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
# Sentinels have users of their own: without these options no password is sent to them.
SENTINEL_OPTIONS: Final = ("sentinel_username", "sentinel_password")
CERT_REQS: Final = ("required", "optional", "none")
PORT: Final = 6379
SENTINEL_PORT: Final = 26379
DATABASES: Final = 2**31  # only the server knows its own maximum (16 by default)
_ENCODE: Final = "'/', '?', '#' and '@' in a password or a path must be written %2F, %3F, %23 and %40"
_NO_HOST: Final = "socket"


RedisLogin = tuple[str | None, str | None]
"""A user and its password; None: the default user, or no password."""


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """The parts of a URL; its text shows no login."""

    topology: Topology
    tls: bool
    hosts: tuple[tuple[str, int], ...]
    """Host and port of each server; of the sentinels under SENTINEL; none for a unix socket."""
    path: str = ""  # of the unix socket
    service: str = ""  # name of the primary at the sentinels
    db: int = 0
    login: RedisLogin = field(default=(None, None), repr=False)  # at each server, but not at the sentinels
    options: tuple[tuple[str, str | bool], ...] = ()  # of `TLS_OPTIONS`, in the order written
    sentinel_login: RedisLogin = field(default=(None, None), repr=False)


def parse_redis_url(text: str) -> RedisAddress:
    """Parse a URL such as ``redis://HOST:PORT/DB``; special characters are percent-encoded.

    Raises:
        ValueError: the URL is not allowed; the text names the reason, and quotes no part of the URL.
    """
    scheme, separator, rest = text.strip().partition("://")
    is_socket, tls = scheme.lower() == "unix", scheme.lower().startswith("rediss")
    topology = _SCHEMES.get(scheme.lower().replace("rediss", "redis"))
    if topology is None or not separator:
        raise ValueError("it begins with none of these schemes")
    if is_socket:
        before, slash, path = rest.partition("/")
        rest = f"{before}{_NO_HOST}{slash}{path}"  # the parser demands a host
    url = _split(scheme, rest)
    if url.fragment is not None or "@" in f"{url.path}{url.query}":
        raise ValueError(_ENCODE)
    allowed = ("db",) * is_socket + TLS_OPTIONS * tls + SENTINEL_OPTIONS * (topology == "sentinel")
    query = _query(url.query or "", allowed)
    hosts = url.hosts()
    path, service, db = unquote(url.path or ""), "", query.pop("db", "")
    if is_socket and (hosts[0]["host"] != _NO_HOST or len(path) < 2):
        raise ValueError("after unix:// comes a path that begins with /")
    if not is_socket:
        path, service, db = "", *_service_and_database(url.path or "", topology)
    if db and not (db.isascii() and db.isdigit() and len(db) <= 10 and int(db) < DATABASES):
        raise ValueError("its path is no number of a database")
    number = int(db or 0)
    if number and topology == "cluster":
        raise ValueError("a cluster has only database 0")
    places = () if is_socket else _hosts(hosts, topology)
    login = _login(hosts[0]["username"], hosts[0]["password"]) if hosts else (None, None)
    sentinel_login = (query.pop("sentinel_username", None), query.pop("sentinel_password", None))
    options = tuple((name, _option(name, value)) for name, value in query.items())
    return RedisAddress(topology, tls, places, path, service, number, login, options, sentinel_login)


def _split(scheme: str, rest: str) -> MultiHostUrl:
    login, at, place = rest.rpartition("@")
    try:
        # A comma in a password would begin the next host.
        return MultiHostUrl(f"{scheme}://{login.replace(',', '%2C')}{at}{place}")
    except ValidationError as error:
        # The reason of the parser, such as "invalid port number", quotes no part of the URL.
        raise ValueError(f"{error.errors()[0]['ctx']['error']}; {_ENCODE}") from None


def _query(text: str, allowed: tuple[str, ...]) -> dict[str, str]:
    pairs = parse_qsl(text, keep_blank_values=True)
    query = dict(pairs)
    if len(query) < len(pairs):
        raise ValueError("an option is given twice")
    if not query.keys() <= set(allowed):
        known = f"allowed are: {', '.join(allowed)}" if allowed else "no option is allowed"
        raise ValueError(
            f"an option is not known after this scheme, {known} (times have settings of their own)"
        )
    return query


def _login(username: str | None, password: str | None) -> RedisLogin:
    return unquote(username or "") or None, unquote(password or "") or None


def _hosts(hosts: list[MultiHostHost], topology: Topology) -> tuple[tuple[str, int], ...]:
    default = SENTINEL_PORT if topology == "sentinel" else PORT
    if len(hosts) > 1 and topology == "single":
        raise ValueError("several hosts need redis+sentinel:// or redis+cluster://")
    if not hosts or not all(host["host"] for host in hosts):
        raise ValueError("a host is missing")
    if any(host["port"] == 0 for host in hosts):
        raise ValueError("a port is 1 to 65535")
    return tuple((unquote(host["host"] or "").strip("[]"), host["port"] or default) for host in hosts)


def _service_and_database(path: str, topology: Topology) -> tuple[str, str]:
    """Return the name of the primary and the number of the database."""
    steps = [unquote(step) for step in path.rstrip("/").split("/")[1:]]
    service = steps.pop(0) if topology == "sentinel" and steps else ""
    if topology == "sentinel" and not service:
        raise ValueError("the name under which the sentinels know the primary is missing")
    if len(steps) > 1:
        raise ValueError("too many parts in its path")
    return service, "".join(steps)


def _option(name: str, value: str) -> str | bool:
    if name == "ssl_check_hostname" and value.lower() not in {"true", "false"}:
        raise ValueError(f"?{name}= is true or false")
    if name == "ssl_cert_reqs" and value not in CERT_REQS:
        raise ValueError(f"?{name}= is {', '.join(CERT_REQS)}")
    if not value:
        raise ValueError(f"?{name}= is empty")
    return value.lower() == "true" if name == "ssl_check_hostname" else value


URL_CHARACTERS: Final = 2000  # enough for a dozen nodes with long names
KEYS_AT_LEAST: Final = 8  # maximum keys of one request: four limits of a user and four of its address

# A part of a key has no colon, brace or blank, so that two different keys are never one text.
_KEY_TEXT: Final = word(r"[A-Za-z0-9_.-]{1,60}", "letters, digits, _ . and -, at most 60", "default")
_HOST: Final = word(r"[A-Za-z0-9_.-]{1,253}", "letters, digits, _ . and -, at most 253", "gpu-7.example.org")


def _redis_url(raw: object) -> SecretStr:
    text = f.secret_text(raw).strip()
    if not text.isprintable() or len(text) > URL_CHARACTERS:
        raise FieldTypeError
    parse_redis_url(text)
    return SecretStr(text)


_URL_TEXT: Final = (
    "redis://HOST:PORT/DB, unix:///PATH, redis+sentinel://HOST:PORT,HOST:PORT/NAME or "
    "redis+cluster://HOST:PORT; rediss for TLS"
)
_REDIS_URL: Final = f.secret(_URL_TEXT, "redis://localhost:6379/0", _redis_url, masked_url)


class StoreSettings(Group):
    """Settings of the shared store."""

    environment: ClassVar[str] = "REDIS_URL* REDIS_ON_ERROR* SERVICE REDIS_PREFIX REDIS_DEADLINE_S"

    redis_url: Annotated[SecretStr, _REDIS_URL] | None = None
    """Redis 6.2 or later, or Valkey, that counts user limits for all processes; not set: each counts in its
    own memory."""
    redis_on_error: Annotated[StoreFailureMode, choice(StoreFailureMode)] = StoreFailureMode.LOCAL
    """Decision while the store is unavailable. local: each process, on its part of the limits; allow: all are
    admitted; deny: all are rejected with 503."""
    service: Annotated[str, _KEY_TEXT] = "default"
    """Name in keys: services of one name count together."""
    redis_prefix: Annotated[str, _KEY_TEXT] = "athr"
    """Prefix of every key. Another one empties all windows."""
    redis_deadline_s: Annotated[float, number(STALL_S, 10, "s")] = 0.05
    """Longest wait of a request for the store, then REDIS_ON_ERROR decides. [measured: at 5000 decisions per
    second p99 is 8 ms]"""
    redis_partitions: Annotated[int, whole(1, 256, "partitions")] = 16
    """Slots of a cluster over which users are spread; 64 for more than five nodes. Another number empties all
    windows. [measured: 6, 6 and 4 on three nodes, at half the time of 64]"""
    redis_connect_s: Annotated[float, number(STALL_S, 60, "s")] = 0.25
    """Longest wait for a connection."""
    redis_read_s: Annotated[float, number(STALL_S, 60, "s", above=True)] = 1.0
    """Time without a reply after which a connection is given up; above REDIS_DEADLINE_S."""
    redis_failures: Annotated[int, whole(1, 100, "calls")] = 3
    """Consecutive failed calls after which the store counts as unavailable; one refused connection is
    enough."""
    redis_probe_s: Annotated[float, number(0.1, 3600, "s")] = 1.0
    """Time from one attempt to reach it again to the next, +-20 %."""
    redis_in_flight: Annotated[int, whole(1, 64, "calls")] = 2
    """Calls to the Redis that are in flight at once, in each event loop. [measured: 1, 2 and 4 are equal on
    loopback; the second hides the network latency of the first]"""
    redis_batch_keys: Annotated[int, whole(KEYS_AT_LEAST, 4096, "keys")] = 128
    """Keys in one call at most. [measured: 128 keys are about 0.6 ms of one core of the Redis]"""
    redis_queue: Annotated[int, whole(1, 1_000_000, "decisions")] = 4096
    """Decisions that may wait for the Redis in each event loop; REDIS_ON_ERROR decides those beyond."""
    refused_cache: Annotated[int, whole(0, 10_000_000, "users")] = 100_000
    """Entries of the deny cache: rejected users for which the store is not queried again before they can be
    admitted; 0: no cache. [measured: with nine of ten requests rejected the store receives 1.1 % of them]"""
    refused_cache_s: Annotated[float, number(0.01, 60, "s")] = 1.0
    """Longest lifetime of an entry in the deny cache; after it a raised limit takes effect."""


class FleetSettings(Group):
    """Settings of a fleet of processes on one Redis."""

    environment: ClassVar[str] = "FLEET FLEET_GPU FLEET_HOST"

    fleet: Annotated[bool, f.FLAG] = False
    """Whether all processes on the Redis share the priority rates, wherever requests arrive; then WORKERS
    does not divide them."""
    fleet_gpu: Annotated[bool, f.FLAG] = False
    """Whether the GPUs of all hosts on the Redis count, for a gateway in front of them; a service that uses
    its own only leaves it off."""
    fleet_host: Annotated[str, _HOST] | None = None
    """Name under which this host's GPUs are published; not set: the host's own. [convention]"""
    fleet_lease_s: Annotated[float, number(0.1, 60, "s")] = 1.0
    """How long a process of a fleet may keep tokens that it does not need. [simulated]"""
    fleet_heartbeat_s: Annotated[float, number(0.5, 300, "s")] = 5.0
    """Heartbeat interval of a process of a fleet; after three missing heartbeats it counts as lost."""
