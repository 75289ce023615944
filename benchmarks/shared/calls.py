"""Script calls of the window protocol, sent without the batcher."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from autoglm_throttle.store.protocol import VALUES, StoreCharge, WindowProtocol, script
from autoglm_throttle.types import UserLimit
from tests.store import resp

SHA1 = hashlib.sha1(script().encode()).hexdigest()

_WIRE = WindowProtocol("bench", "calls", 16)


def arguments(users: Sequence[str], limit: UserLimit, units: int = 1) -> list[str | int]:
    """Build one EVALSHA that charges all users."""
    charges = [_WIRE.build_check((StoreCharge("user", (limit,), user, units),)) for user in users]
    keys, values = _WIRE.encode(charges)
    return ["EVALSHA", SHA1, len(keys), *keys, *values]


def packed(users: Sequence[str], limit: UserLimit) -> bytes:
    """Build the bytes of one command that charges all users."""
    return resp.encode(tuple(arguments(users, limit)))


def admitted(reply: Sequence[int]) -> int:
    """Count the admissions in a reply."""
    return sum(value == 0 for value in reply[1::VALUES])
