"""Encodes requests as bytes, once: only priority, client and body differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autoglm_throttle.traffic.generator.target import TargetUrl
from autoglm_throttle.traffic.request_source import PlannedRequest, RequestSource
from autoglm_throttle.types import Priority

Encode = Callable[[int], bytes]
"""The bytes of a planned request, by its index."""

RequestKey = tuple[int, int, int]
"""Kind, priority and client: they determine the bytes of a request."""

CACHE_BYTES = 64 << 20
"""Total size of cached requests; further ones are encoded on each send."""


def builder(
    requests: Sequence[PlannedRequest], client: Callable[[int], str], target: TargetUrl
) -> Callable[[RequestKey], bytes]:
    """Return a function that encodes a request; most are encoded only once.

    Args:
        requests: by kind.
        client: maps a client to its identity text.
        target: destination of the requests.
    """
    ready: dict[RequestKey, bytes] = {}
    budget = CACHE_BYTES

    def make(key: RequestKey) -> bytes:
        nonlocal budget
        kind, priority, number = key
        request = requests[kind]
        data = target.head(request, Priority(priority), client(number)) + request.body
        if budget > 0:
            budget -= len(data)
            ready[key] = data
        return data

    def build(key: RequestKey) -> bytes:
        return ready.get(key) or make(key)

    return build


def encoder(load: RequestSource, target: TargetUrl) -> Encode:
    """Return a function that encodes each planned request."""
    kinds, priorities, clients = load.plan.kinds, load.plan.priorities, load.plan.clients
    build = builder(load.requests, load.client, target)

    def encode(index: int) -> bytes:
        return build((kinds[index], priorities[index], clients[index]))

    return encode
