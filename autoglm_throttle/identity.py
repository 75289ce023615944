"""The keyed hash that stands for a caller, and the walk along a proxy chain that finds its address.

Keys, logs, metrics and records hold the hash; the value itself stays inside this file.
A plain hash of a short key could be guessed back, so the hash is an HMAC (RFC 2104).
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Iterable, Sequence
from functools import lru_cache

REMEMBERED = 8192
"""Identities kept ready: an HMAC costs about ten times a dictionary look-up."""

REMEMBERED_LENGTH = 256
"""Characters; a longer value is hashed anew each time, so that nobody fills the memory with long keys."""

HOPS_READ = 20
"""Elements of X-Forwarded-For that are looked at, from the right: a bound on work per request."""

UNIX = "unix"
"""Stands for a peer without an address: a server on a UNIX socket."""

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


SHARED_KEY = b"autoglm-throttle shared identities"
"""The key where processes share a store and none was set: with one drawn by each of them, every process
would count a caller anew. Everybody can read it here, so values that are short can be guessed back."""

_DRAWN = secrets.token_bytes(32)
"""One key for the whole process: with one for each middleware, every mount would count its callers anew."""


class Identity:
    """Turns what a caller is known by into 16 hex digits.

    Args:
        secret: the HMAC key, the same in all processes that share a store.
            None takes the random one of this process. ``Settings.identity_key`` says which.
    """

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = secret if secret is not None else _DRAWN
        self._remembered = lru_cache(REMEMBERED)(self._hash)

    def of(self, kind: str, value: str) -> str:
        """The identity text of a value; the kind keeps an address apart from a key that looks like one."""
        if len(value) > REMEMBERED_LENGTH:
            return self._hash(kind, value)
        return self._remembered(kind, value)

    def text(self, user: str) -> str:
        """What stands for a user: 16 lower-case hex digits are an identity, any other name becomes one."""
        if len(user) == 16 and not user.strip("0123456789abcdef"):
            return user
        return self.of("user", user)

    def _hash(self, kind: str, value: str) -> str:
        message = f"{kind}:{value}".encode("utf-8", "surrogatepass")
        return hmac.digest(self._secret, message, "sha256")[:8].hex()


class ProxyChain:
    """Finds the client's address from the peer and X-Forwarded-For.

    Only what a trusted peer says is read, from right to left, up to the first hop that is not trusted:
    everything left of it could have been written by the client.

    Args:
        trusted: addresses, CIDRs, and the word ``unix`` for peers without an address.
        ipv6_prefix: bits that tell IPv6 callers apart, 32..128. A subscriber usually holds a /64.

    Raises:
        ValueError: an entry of ``trusted`` is neither of these.
    """

    def __init__(self, trusted: Iterable[str] = (), ipv6_prefix: int = 64) -> None:
        entries = tuple(trusted)
        self._unix = UNIX in entries
        self._networks: tuple[_Network, ...] = tuple(
            ipaddress.ip_network(entry, strict=False) for entry in entries if entry != UNIX
        )
        self._host_bits = 128 - ipv6_prefix
        self.reads_header: bool = bool(entries)
        """Whether X-Forwarded-For can matter at all."""
        self._grouped = lru_cache(REMEMBERED)(self._group)
        self._trusted = lru_cache(REMEMBERED)(self._is_trusted)

    def group(self, address: str) -> str:
        """The address as it is counted: an IPv6 prefix, an IPv4 address, or ``unix``."""
        return self._grouped(address)

    def trusts(self, peer: str) -> bool:
        """Whether the peer may say who its client is; an empty peer is the UNIX socket."""
        return self._trusted(peer)

    def client(self, peer: str, forwarded: Sequence[bytes]) -> str:
        """The address a request is counted under.

        Args:
            peer: the other end of the connection; empty for a UNIX socket.
            forwarded: the X-Forwarded-For lines in the order they stand in the request.
        """
        if not (forwarded and self.trusts(peer)):
            return self.group(peer)
        last = peer
        for element in reversed(_elements(forwarded)):
            address = _parse(element)
            if address is None:
                break
            last = str(address)
            if not self.trusts(last):
                break
        return self.group(last)

    def _is_trusted(self, peer: str) -> bool:
        address = _parse(peer)
        if address is None:
            return self._unix and not peer
        return any(address in network for network in self._networks)

    def _group(self, text: str) -> str:
        address = _parse(text)
        if address is None:
            return text or UNIX
        if address.version == 6:
            return str(ipaddress.IPv6Address(int(address) >> self._host_bits << self._host_bits))
        return str(address)


def overflow_group(address: str) -> str:
    """The neighbourhood that newcomers share once nobody can be forgotten: an IPv4 /24 or an IPv6 /48."""
    parsed = _parse(address)
    if parsed is None:
        return UNIX
    prefix = 24 if parsed.version == 4 else 48
    return str(ipaddress.ip_network(f"{parsed}/{prefix}", strict=False))


def _elements(lines: Sequence[bytes]) -> list[str]:
    joined = b",".join(lines).decode("latin-1")
    return [part.strip(" \t") for part in joined.rsplit(",", HOPS_READ)[-HOPS_READ:]]


def _parse(text: str) -> _Address | None:
    """Read ``1.2.3.4``, ``1.2.3.4:80``, ``[2001:db8::1]:443`` or ``2001:db8::1%eth0``; None for all else."""
    if text.startswith("["):
        text, closed, port = text[1:].partition("]")
        if not closed or (port and not (port[0] == ":" and port[1:].isdecimal())):
            return None
    elif text.count(":") == 1:
        text, _, port = text.partition(":")
        if not port.isdecimal():
            return None
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if address.version == 6 else None
    return mapped or address
