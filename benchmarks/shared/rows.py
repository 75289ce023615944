"""The rows, by the short names that records use."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from autoglm_throttle.types import UserLimit
from benchmarks.shared import ours, rivals
from benchmarks.shared.contestant import Contestant, Opened


def _limits(strategy: str, pool: str) -> Callable[[str, UserLimit], Opened]:
    return partial(rivals.limits, strategy=strategy, pool=pool)


CONTESTANTS: dict[str, Contestant] = {
    "store": Contestant("ours, the store alone", ours.store),
    "throttle": Contestant("ours, the whole decision", ours.throttle),
    "moving": Contestant("limits moving, installed", _limits("MovingWindow", "installed")),
    "moving-raised": Contestant("limits moving, raised", _limits("MovingWindow", "raised")),
    "moving-blocking": Contestant("limits moving, blocking", _limits("MovingWindow", "blocking")),
    "fixed": Contestant("limits fixed, installed", _limits("FixedWindow", "installed")),
    "fixed-raised": Contestant("limits fixed, raised", _limits("FixedWindow", "raised")),
    "fixed-blocking": Contestant("limits fixed, blocking", _limits("FixedWindow", "blocking")),
    "throttled": Contestant("throttled-py GCRA, raised", partial(rivals.throttled, pool="raised")),
    "asgi-ratelimit": Contestant(
        "asgi-ratelimit, raised", partial(rivals.asgi_ratelimit, pool="raised"), ("evalsha", "eval", "ttl")
    ),
    "each": Contestant("redis-py, one EVALSHA each", rivals.each),
}
"""Those whose decisions are counted."""

PATIENT: dict[str, Contestant] = {
    "store": Contestant("ours, the store alone", partial(ours.store, deadline_s=ours.PATIENT_S)),
    "throttle": Contestant("ours, the whole decision", partial(ours.throttle, deadline_s=ours.PATIENT_S)),
    "moving-raised": CONTESTANTS["moving-raised"],
}
"""Those of whom it matters only what they admit."""

COUNTER = Contestant("limits sliding counter, raised", _limits("SlidingWindowCounter", "raised"))
"""Looked at for its exactness alone."""

TITLES: dict[str, str] = {name: who.title for name, who in CONTESTANTS.items()} | {
    "counter": COUNTER.title,
    "store-compact": "ours, the store alone, compact",
    "floor": "floor: pipelined, one call each",
    "floor-batch": "floor: one call for all",
    "control": "control: decides nothing",
}
"""What tables call all rows."""
