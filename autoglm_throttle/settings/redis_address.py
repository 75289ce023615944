"""Parses the address of the shared store from one URL; pure, so that the settings may check it.

One URL scheme for each topology. No text made here contains a ``password``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping
    from urllib.parse import SplitResult


class Topology(StrEnum):
    """Arrangement of the servers: one, a primary found through sentinels, or a cluster."""

    SINGLE = "single"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


ALLOWED_TEXT: Final = (
    "redis://HOST:PORT/DB, unix:///PATH, redis+sentinel://HOST:PORT,HOST:PORT/NAME or "
    "redis+cluster://HOST:PORT; rediss for TLS"
)
"""Completes "must be ..."."""

_SCHEMES: Final[Mapping[str, tuple[Topology, bool]]] = {
    "redis": (Topology.SINGLE, False),
    "rediss": (Topology.SINGLE, True),
    "unix": (Topology.SINGLE, False),
    "redis+sentinel": (Topology.SENTINEL, False),
    "rediss+sentinel": (Topology.SENTINEL, True),
    "redis+cluster": (Topology.CLUSTER, False),
    "rediss+cluster": (Topology.CLUSTER, True),
}

TLS_OPTIONS: Final = (
    "ssl_ca_certs",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_cert_reqs",
    "ssl_check_hostname",
)
"""Options allowed after ``?`` of a TLS URL, with the names of redis-py."""

SENTINEL_OPTIONS: Final = ("sentinel_username", "sentinel_password")
"""Sentinels have users of their own: without these options no password is sent to them."""

CERT_REQS: Final = ("required", "optional", "none")

PORT: Final = 6379
SENTINEL_PORT: Final = 26379
"""Default ports of servers and sentinels."""

DATABASES: Final = 2**31
"""A database is a number below this; only the server knows its own maximum (16 by default)."""


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
    path: str = ""
    """Path of the unix socket."""
    service: str = ""
    """Name of the primary at the sentinels."""
    db: int = 0
    login: RedisLogin = RedisLogin()
    """At each server, but not at the sentinels."""
    options: tuple[tuple[str, str | bool], ...] = ()
    """Options of `TLS_OPTIONS`, in the order written."""
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
        path = self.path or "".join(
            [f"/{quote(self.service)}" if self.service else "", f"/{self.db}" if self.db else ""]
        )
        return f"{scheme}://{login}{'@' if login else ''}{hosts}{path}"


def parse_redis_url(text: str) -> RedisAddress:
    """Parse a URL.

    Args:
        text: a URL as in `ALLOWED_TEXT`; special characters are percent-encoded.

    Returns:
        Its parts.

    Raises:
        ValueError: the URL is not allowed; the text names the reason, without passwords.
    """
    try:
        parts = urlsplit(text.strip())
    except ValueError:
        raise ValueError("its brackets do not fit") from None
    # First, since the errors below may quote a part of the URL: an unencoded password ends up in these parts.
    if parts.fragment or "@" in parts.path + parts.query:
        raise ValueError(
            "'/', '?', '#' and '@' in a password or a path must be written %2F, %3F, %23 and %40"
        )
    if parts.scheme not in _SCHEMES:
        raise ValueError("its scheme is not known" if parts.scheme else "it has no scheme")
    topology, tls = _SCHEMES[parts.scheme]
    query = _query(parts.query, _allowed(parts.scheme, topology, tls))
    service, db = _service_and_database(parts, topology, query.pop("db", None))
    unix = parts.scheme == "unix"
    return RedisAddress(
        topology,
        tls,
        hosts=() if unix else _hosts(parts, SENTINEL_PORT if topology is Topology.SENTINEL else PORT),
        path=unquote(parts.path) if unix else "",
        service=service,
        db=db,
        login=_login(parts),
        sentinel_login=RedisLogin(query.pop("sentinel_username", None), query.pop("sentinel_password", None)),
        options=tuple((name, _option(name, value)) for name, value in query.items()),
    )


def _allowed(scheme: str, topology: Topology, tls: bool) -> tuple[str, ...]:
    """Option names allowed after ``?``."""
    return (
        ("db",) * (scheme == "unix") + TLS_OPTIONS * tls + SENTINEL_OPTIONS * (topology is Topology.SENTINEL)
    )


def _query(text: str, allowed: tuple[str, ...]) -> dict[str, str]:
    query: dict[str, str] = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        if name in query:
            raise ValueError("an option is given twice")
        if name not in allowed:
            known = f"allowed are: {', '.join(allowed)}" if allowed else "no option is allowed"
            raise ValueError(
                f"an option is not known after this scheme, {known} (times have settings of their own)"
            )
        query[name] = value
    return query


def _login(parts: SplitResult) -> RedisLogin:
    login, at, _ = parts.netloc.rpartition("@")
    if not at:
        return RedisLogin()
    username, _, password = login.partition(":")
    return RedisLogin(unquote(username) or None, unquote(password) or None)


def _hosts(parts: SplitResult, port: int) -> tuple[tuple[str, int], ...]:
    texts = parts.netloc.rpartition("@")[2].split(",")
    hosts = tuple(_host(text.strip(), port) for text in texts)
    if len(hosts) > 1 and _SCHEMES[parts.scheme][0] is Topology.SINGLE:
        raise ValueError("several hosts need redis+sentinel:// or redis+cluster://")
    return hosts


def _host(text: str, port: int) -> tuple[str, int]:
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed:
            raise ValueError("its brackets do not fit")
    else:
        host, colon, digits = text.partition(":")
        rest = colon + digits
    if not host:
        raise ValueError("a host is missing")
    if not rest:
        return unquote(host), port
    number = rest.removeprefix(":")
    if not rest.startswith(":") or not (number.isascii() and number.isdigit() and 0 < int(number) < 65536):
        raise ValueError("a port is not 1 to 65535 (an IPv6 address stands in brackets)")
    return unquote(host), int(number)


def _service_and_database(parts: SplitResult, topology: Topology, db: str | None) -> tuple[str, int]:
    """Name of the primary and number of the database."""
    if parts.scheme == "unix":
        if parts.netloc.rpartition("@")[2] or len(parts.path) < 2:
            raise ValueError("after unix:// comes a path that begins with /")
        return "", _database(db or "")
    steps = [unquote(step) for step in parts.path.split("/")[1:]]
    while steps and not steps[-1]:
        steps.pop()
    service = ""
    if topology is Topology.SENTINEL:
        if not steps or not steps[0]:
            raise ValueError("the name under which the sentinels know the primary is missing")
        service = steps.pop(0)
    if len(steps) > 1:
        raise ValueError("too many parts in its path")
    number = _database(steps[0] if steps else "")
    if number and topology is Topology.CLUSTER:
        raise ValueError("a cluster has only database 0")
    return service, number


def _database(text: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and int(text) < DATABASES):
        raise ValueError("its path is no number of a database")
    return int(text)


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
