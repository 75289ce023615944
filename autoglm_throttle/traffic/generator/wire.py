"""The bytes of requests, built once: only priority, client and body differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autoglm_throttle.model import Priority
from autoglm_throttle.traffic.generator.target import Target
from autoglm_throttle.traffic.load import Load, Request

Encode = Callable[[int], bytes]
"""The bytes of a planned request, by its index."""

Key = tuple[int, int, int]
"""Kind, priority and client: what makes one request differ from another."""

KEPT_BYTES = 64 << 20
"""Of requests kept ready; what is more is built each time it is sent."""


def builder(
    requests: Sequence[Request], client: Callable[[int], str], target: Target
) -> Callable[[Key], bytes]:
    """A function that gives the bytes of a request; most are built only once.

    Args:
        requests: by kind.
        client: the text that stands for a client.
        target: where they go.
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
    """A function that gives the bytes of each planned request."""
    kinds, priorities, clients = load.plan.kinds, load.plan.priorities, load.plan.clients
    build = builder(load.requests, load.client, target)

    def encode(index: int) -> bytes:
        return build((kinds[index], priorities[index], clients[index]))

    return encode
