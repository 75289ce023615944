"""Plays a load on an ASGI application in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypedDict, Unpack

from starlette.types import ASGIApp

from autoglm_throttle.traffic.inproc.clock import MovableClock
from autoglm_throttle.traffic.load import Load
from autoglm_throttle.traffic.result import Result

Watch = Callable[[float], Mapping[str, float] | None]
"""Called once a virtual second with the seconds since the start, from 0 on; what it gives is kept in
``Result.watched``. The place to let a throttle with ``sampling="manual"`` read its GPUs."""


class Manner(TypedDict, total=False):
    """How clients behave."""

    abort: float
    """Share of the requests whose client loses patience and leaves at a random time; 0."""
    seed: int
    """Of who leaves when; 0."""
    timeout_s: float
    """From the intended start to the last byte of the answer; 30 s, as over HTTP."""
    priority_header: str
    """Carries the priority; ``x-priority``."""
    identity_header: str
    """Carries the client's text; ``x-client``. Empty: none."""


def run_inprocess(
    app: ASGIApp,
    load: Load,
    *,
    clock: MovableClock | None = None,
    watch: Watch | None = None,
    **manner: Unpack[Manner],
) -> Result:
    """Play a load on an application: same classes, sheet and report as over HTTP, in virtual time."""
    raise NotImplementedError
