"""Keyed hashes of callers, and the client's address from a proxy chain.

A plain hash of a short key could be guessed back, so the hash is an HMAC (RFC 2104).
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache

CACHE_ENTRIES = 1024  # an HMAC costs about ten times a dictionary look-up; most demands are remembered
CACHED_LENGTH_MAX = 256  # characters; longer values are hashed anew, so that they cannot fill the memory
HOPS_READ = 20  # elements of X-Forwarded-For that are read, from the right: a bound on work per request
UNIX = "unix"
"""Stands for a peer without an address: a server on a UNIX socket."""

SHARED_KEY = b"autoglm-throttle shared identities"
"""The default key for processes that share a store; it is public, so short values can be guessed back."""

# One for the whole process: with a key for each middleware, each mount would hash a caller differently.
_PROCESS_KEY = secrets.token_bytes(32)

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class CallerHasher:
    """Hashes identifiers of callers to 16 hex digits; without ``secret`` by a random key of this process."""

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = secret if secret is not None else _PROCESS_KEY
        self._cached_hash = lru_cache(CACHE_ENTRIES)(self._hash)

    def hash(self, kind: str, value: str) -> str:
        """Return the hash of a value; the kind separates an address from an equal key."""
        if len(value) > CACHED_LENGTH_MAX:
            return self._hash(kind, value)
        return self._cached_hash(kind, value)

    def text(self, user: str) -> str:
        """Return the hash of a user: 16 lower-case hex digits are one already, any other name is hashed."""
        if len(user) == 16 and not user.strip("0123456789abcdef"):
            return user
        return self.hash("user", user)

    def _hash(self, kind: str, value: str) -> str:
        message = f"{kind}:{value}".encode("utf-8", "surrogatepass")
        return hmac.digest(self._secret, message, "sha256")[:8].hex()


class ProxyChain:
    """Finds the client's address from the peer and X-Forwarded-For.

    Only hops added by trusted peers are read, from right to left, up to the first untrusted hop:
    everything left of it could have been written by the client. Peers are addresses, CIDRs, and the word
    ``unix`` for those without an address; ``ipv6_prefix`` bits identify an IPv6 caller.
    """

    def __init__(self, trusted: Iterable[str], ipv6_prefix: int) -> None:
        entries = tuple(trusted)
        self._unix = UNIX in entries
        self._networks = [ipaddress.ip_network(entry, strict=False) for entry in entries if entry != UNIX]
        self._host_bits = 128 - ipv6_prefix
        self.reads_header: bool = bool(entries)  # whether X-Forwarded-For can matter at all
        # Address -> the one that it is counted as: an IPv6 prefix, an IPv4 address, or ``unix``.
        self.group: Callable[[str], str] = lru_cache(CACHE_ENTRIES)(self._group)
        # Whether the X-Forwarded-For of a peer is trusted; an empty peer is the UNIX socket.
        self.trusts: Callable[[str], bool] = lru_cache(CACHE_ENTRIES)(self._trusts)

    def client(self, peer: str, forwarded: Sequence[bytes]) -> str:
        """Return the address a request is counted under, from its peer and its X-Forwarded-For lines."""
        if not (forwarded and self.trusts(peer)):
            return self.group(peer)
        last = peer
        joined = b",".join(forwarded).decode("latin-1")
        for element in reversed(joined.rsplit(",", HOPS_READ)[-HOPS_READ:]):
            address = _parse(element.strip(" \t"))
            if address is None:
                break
            last = str(address)
            if not self.trusts(last):
                break
        return self.group(last)

    def _trusts(self, peer: str) -> bool:
        address = _parse(peer)
        if address is None:
            return self._unix and not peer
        return any(address in network for network in self._networks)

    def _group(self, text: str) -> str:
        with suppress(OSError, ValueError):
            socket.inet_pton(socket.AF_INET, text)  # takes a tenth of the time of `ipaddress`
            return text
        address = _parse(text)
        if address is None:
            return text or UNIX
        if address.version == 6:
            return str(ipaddress.IPv6Address(int(address) >> self._host_bits << self._host_bits))
        return str(address)


def overflow_group(address: str) -> str:
    """Return the network that new users share once the user table is full: an IPv4 /24 or an IPv6 /48."""
    parsed = _parse(address)
    if parsed is None:
        return UNIX
    prefix = 24 if parsed.version == 4 else 48
    return str(ipaddress.ip_network(f"{parsed}/{prefix}", strict=False))


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
    # a dual-stack socket reports an IPv4 client as ::ffff:a.b.c.d (RFC 4291, 2.5.5.2).
    mapped = address.ipv4_mapped if address.version == 6 else None
    return mapped or address
