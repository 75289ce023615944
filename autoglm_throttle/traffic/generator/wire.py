"""Encodes requests as bytes, once: only priority, client and body differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autoglm_throttle.model import Priority
from autoglm_throttle.traffic.generator.target import Target
from autoglm_throttle.traffic.load import Load, Request

Encode = Callable[[int], bytes]
"""The bytes of a planned request, by its index."""

Key = tuple[int, int, int]
"""Kind, priority and client: they determine the bytes of a request."""

KEPT_BYTES = 64 << 20
"""Total size of cached requests; further ones are encoded on each send."""


def builder(
    requests: Sequence[Request], client: Callable[[int], str], target: Target
) -> Callable[[Key], bytes]:
    """Return a function that encodes a request; most are encoded only once.

    Args:
        requests: by kind.
        client: maps a client to its identity text.
        target: destination of the requests.
    """
    ready: dict[Key, bytes] = {}
    room = KEPT_BYTES

    def make(key: Key) -> bytes:
        nonlocal room
        kind, priority, number = key
        request = requests[kind]
        data = target.head(request, Priority(priority), client(number)) + request.body
        if room > 0:
            room -= len(data)
            ready[key] = data
        return data

    def build(key: Key) -> bytes:
        return ready.get(key) or make(key)

    return build


def encoder(load: Load, target: Target) -> Encode:
    """Return a function that encodes each planned request."""
    kinds, priorities, clients = load.plan.kinds, load.plan.priorities, load.plan.clients
    build = builder(load.requests, load.client, target)

    def encode(index: int) -> bytes:
        return build((kinds[index], priorities[index], clients[index]))

    return encode
