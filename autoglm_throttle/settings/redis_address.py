"""Parses the address of the shared store from one URL; pure, so that the settings may check it.

One URL scheme for each topology. No text made here contains a ``password``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, quote, unquote

from pydantic_core import MultiHostUrl, ValidationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic_core import MultiHostHost


class Topology(StrEnum):
    """Arrangement of the servers: one, a primary found through sentinels, or a cluster."""

    SINGLE = "single"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


_SCHEMES: Final[Mapping[str, tuple[Topology, bool]]] = {
    "redis": (Topology.SINGLE, False),
    "rediss": (Topology.SINGLE, True),
    "unix": (Topology.SINGLE, False),
    "redis+sentinel": (Topology.SENTINEL, False),
    "rediss+sentinel": (Topology.SENTINEL, True),
    "redis+cluster": (Topology.CLUSTER, False),
    "rediss+cluster": (Topology.CLUSTER, True),
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


@dataclass(frozen=True, slots=True)
class RedisLogin:
    """A user and its password; None: the default user, or no password."""

    username: str | None = None
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """The parts of a URL."""

    topology: Topology
    tls: bool
    hosts: tuple[tuple[str, int], ...]
    """Host and port of each server; of the sentinels under SENTINEL; none for a unix socket."""
    path: str = ""  # of the unix socket
    service: str = ""  # name of the primary at the sentinels
    db: int = 0
    login: RedisLogin = RedisLogin()  # at each server, but not at the sentinels
    options: tuple[tuple[str, str | bool], ...] = ()  # of `TLS_OPTIONS`, in the order written
    sentinel_login: RedisLogin = RedisLogin()

    @property
    def cluster(self) -> bool:
        """Whether the keys of one call must lie in one slot."""
        return self.topology is Topology.CLUSTER

    def __str__(self) -> str:
        """Format the URL for logs: without passwords and options."""
        scheme = "unix" if self.path else ("rediss" if self.tls else "redis")
        if self.topology is not Topology.SINGLE:
            scheme = f"{scheme}+{self.topology.value}"
        login = quote(self.login.username or "", safe="") + (":***" if self.login.password else "")
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        service, db = f"/{quote(self.service)}" if self.service else "", f"/{self.db}" if self.db else ""
        path = self.path or service + db
        return f"{scheme}://{login}{'@' if login else ''}{hosts}{path}"


def parse_redis_url(text: str) -> RedisAddress:
    """Parse a URL such as ``redis://HOST:PORT/DB``; special characters are percent-encoded.

    Raises:
        ValueError: the URL is not allowed; the text names the reason, and quotes no part of the URL.
    """
    scheme, separator, rest = text.strip().partition("://")
    topology, tls = _SCHEMES.get(scheme.lower(), (None, False))
    if topology is None or not separator:
        raise ValueError("it begins with none of these schemes")
    is_socket = scheme.lower() == "unix"
    if is_socket:
        before, slash, path = rest.partition("/")
        # The parser demands a host.
        rest = f"{before}{_NO_HOST}{slash}{path}"
    url = _split(scheme, rest)
    if url.fragment is not None or "@" in f"{url.path}{url.query}":
        raise ValueError(_ENCODE)
    allowed = ("db",) * is_socket + TLS_OPTIONS * tls + SENTINEL_OPTIONS * (topology is Topology.SENTINEL)
    query = _query(url.query or "", allowed)
    hosts = url.hosts()
    path, service, db = unquote(url.path or ""), "", query.pop("db", "")
    if is_socket and (hosts[0]["host"] != _NO_HOST or len(path) < 2):
        raise ValueError("after unix:// comes a path that begins with /")
    if not is_socket:
        service, db = _service_and_database(url.path or "", topology)
    number = _database(db)
    if number and topology is Topology.CLUSTER:
        raise ValueError("a cluster has only database 0")
    return RedisAddress(
        topology,
        tls,
        hosts=() if is_socket else _hosts(hosts, topology),
        path=path if is_socket else "",
        service=service,
        db=number,
        login=_login(hosts),
        sentinel_login=RedisLogin(query.pop("sentinel_username", None), query.pop("sentinel_password", None)),
        options=tuple((name, _option(name, value)) for name, value in query.items()),
    )


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
    if len(dict(pairs)) < len(pairs):
        raise ValueError("an option is given twice")
    if not dict(pairs).keys() <= set(allowed):
        known = f"allowed are: {', '.join(allowed)}" if allowed else "no option is allowed"
        text = f"an option is not known after this scheme, {known} (times have settings of their own)"
        raise ValueError(text)
    return dict(pairs)


def _login(hosts: list[MultiHostHost]) -> RedisLogin:
    username, password = (hosts[0]["username"], hosts[0]["password"]) if hosts else (None, None)
    return RedisLogin(unquote(username or "") or None, unquote(password or "") or None)


def _hosts(hosts: list[MultiHostHost], topology: Topology) -> tuple[tuple[str, int], ...]:
    default = SENTINEL_PORT if topology is Topology.SENTINEL else PORT
    if len(hosts) > 1 and topology is Topology.SINGLE:
        raise ValueError("several hosts need redis+sentinel:// or redis+cluster://")
    if not hosts or not all(host["host"] for host in hosts):
        raise ValueError("a host is missing")
    if any(host["port"] == 0 for host in hosts):
        raise ValueError("a port is 1 to 65535")
    return tuple((unquote(host["host"] or "").strip("[]"), host["port"] or default) for host in hosts)


def _service_and_database(path: str, topology: Topology) -> tuple[str, str]:
    """Return the name of the primary and the number of the database."""
    steps = [unquote(step) for step in path.rstrip("/").split("/")[1:]]
    service = ""
    if topology is Topology.SENTINEL:
        if not steps or not steps[0]:
            raise ValueError("the name under which the sentinels know the primary is missing")
        service = steps.pop(0)
    if len(steps) > 1:
        raise ValueError("too many parts in its path")
    return service, steps[0] if steps else ""


def _database(text: str) -> int:
    if text and not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) < DATABASES):
        raise ValueError("its path is no number of a database")
    return int(text or 0)


def _option(name: str, value: str) -> str | bool:
    if name == "ssl_check_hostname":
        if value.lower() not in {"true", "false"}:
            raise ValueError(f"?{name}= is true or false")
        return value.lower() == "true"
    if name == "ssl_cert_reqs" and value not in CERT_REQS:
        raise ValueError(f"?{name}= is {', '.join(CERT_REQS)}")
    if not value:
        raise ValueError(f"?{name}= is empty")
    return value
