"""Demands of requests."""

from __future__ import annotations

import math

from autoglm_throttle.types.priority import Priority


class Demand:
    """The demand of one request.

    Args:
        priority: its class.
        user: the user limit it is charged to; empty means "unidentified". All unidentified demands share
            one user limit, so that an empty identity never escapes the limit.
        cost: units taken from the priority bucket and, rounded up, from the user limit; > 0.
        plan: name of the caller's plan; its user limit replaces the default one.
        route: name of the route policy that applies; its user limit replaces both.
        address: a second identity to be limited beside an unverified ``user``; no limit if empty.
        group: identity of the caller's network, charged while the user table is full.
        slo_s: seconds allowed for its complete answer; None: the service's own objective.
        holds_slot: whether it counts as a request in flight and may have to wait in the queue.
        memory_bytes: device memory that it will need beside the resident part, > 0; None: as learned.
            Only resource quotas read this and the next.
        precision: label that the caller accepts; it may only lower the service's choice.
        work_class: name of what costs alike, for the concurrency limit; empty: the route, if there is one,
            else the one class of the service.

    Raises:
        ValueError: ``cost`` or ``slo_s`` is not a finite number above 0, or ``memory_bytes`` is below 1.
        TypeError: ``user``, ``address``, ``group`` or ``precision`` is no text, or ``memory_bytes`` no int.
    """

    __slots__ = (
        "address",
        "cost",
        "group",
        "holds_slot",
        "memory_bytes",
        "plan",
        "precision",
        "priority",
        "route",
        "slo_s",
        "user",
        "work_class",
    )

    def __init__(  # noqa: PLR0913 - one argument for each input of a limit
        self,
        priority: Priority = Priority.MID,
        user: str = "",
        cost: float = 1.0,
        *,
        plan: str | None = None,
        route: str | None = None,
        address: str = "",
        group: str = "",
        slo_s: float | None = None,
        holds_slot: bool = True,
        memory_bytes: int | None = None,
        precision: str = "",
        work_class: str = "",
    ) -> None:
        if not 0.0 < cost < math.inf:
            raise ValueError(f"cost must be a finite number above 0, not {cost!r}")
        if slo_s is not None and not 0.0 < slo_s < math.inf:
            raise ValueError(f"slo_s must be a finite number above 0, not {slo_s!r}")
        if not (isinstance(user, str) and isinstance(address, str) and isinstance(group, str)):
            raise TypeError(f"user, address and group must be texts, not {user!r}, {address!r}, {group!r}")
        if memory_bytes is not None or precision != "":
            _check_resources(memory_bytes, precision)
        self.priority: Priority = priority
        self.user: str = user
        self.cost: float = cost
        self.plan: str | None = plan
        self.route: str | None = route
        self.address: str = address
        self.group: str = group
        self.slo_s: float | None = slo_s
        self.holds_slot: bool = holds_slot
        self.memory_bytes: int | None = memory_bytes
        self.precision: str = precision
        self.work_class: str = work_class or route or ""

    def __repr__(self) -> str:
        return f"Demand({self.priority.label}, user={self.user!r}, cost={self.cost:g})"


def _check_resources(memory_bytes: int | None, precision: str) -> None:
    whole = isinstance(memory_bytes, int) and not isinstance(memory_bytes, bool)
    if memory_bytes is not None and not whole:
        raise TypeError(f"memory_bytes must be a whole number of bytes, not {memory_bytes!r}")
    if memory_bytes is not None and memory_bytes < 1:
        raise ValueError(f"memory_bytes must be 1 or more, not {memory_bytes!r}")
    if not isinstance(precision, str):
        raise TypeError(f"precision must be a text, not {precision!r}")
