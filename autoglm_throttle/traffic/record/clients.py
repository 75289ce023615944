"""Clients of a recording: their hashes, and the sample of them that is recorded."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence
from typing import Any

from autoglm_throttle.settings.groups.callers import CallerSettings
from autoglm_throttle.types.identity import CallerHasher, ProxyChain

_CLIENT = re.compile(r"[0-9a-f]{16}")


class RecordedClients:
    """Hashes the identity of each client, and decides which ones are recorded.

    Args:
        callers: the key of the hashes, random if there is none, and the bits that identify an IPv6 client.
        header: a header field whose value already identifies the client; None: none.
        sample: share of the clients that is recorded, 0 to 1.
    """

    def __init__(self, callers: CallerSettings, header: str | None, sample: float) -> None:
        secret = callers.key_secret
        self.key_kind: str = "random" if secret is None else "secret"
        self._sample = sample
        self._header = b"" if header is None else header.strip().lower().encode()
        key = secrets.token_bytes(32) if secret is None else secret.get_secret_value().encode()
        self._hasher = CallerHasher(key)
        self._peers = ProxyChain((), callers.ipv6_prefix)

    def identify(self, stated: str, peer: Sequence[Any] | None, headers: Iterable[Sequence[bytes]]) -> str:
        """Return the 16 hex digits that identify the client.

        Args:
            stated: user as named by the throttle; empty without one.
            peer: address and port, as ASGI has them.
            headers: header fields of the request.
        """
        if self._header:
            for name, value in headers:
                if name == self._header:
                    text = value.decode("latin-1")
                    return text if _CLIENT.fullmatch(text) else self._hasher.hash("client", text)
        if stated:
            return self._hasher.text(stated)
        return self._hasher.hash("address", self._peers.group(str(peer[0]) if peer else ""))

    def has(self, client: str) -> bool:
        """Return whether a client belongs to the sample."""
        return self._sample >= 1.0 or int(client[:8], 16) / 2**32 < self._sample
