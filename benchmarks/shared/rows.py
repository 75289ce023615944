"""The rows, by their short names in records."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from autoglm_throttle.types import UserLimit
from benchmarks.shared import ours, peers
from benchmarks.shared.candidate import Candidate, Opened


def _limits(strategy: str, pool: str) -> Callable[[str, UserLimit], Opened]:
    return partial(peers.limits, strategy=strategy, pool=pool)


CANDIDATES: dict[str, Candidate] = {
    "store": Candidate("ours, the store alone", ours.store),
    "throttle": Candidate("ours, the whole decision", ours.throttle),
    "moving": Candidate("limits moving, installed", _limits("MovingWindow", "installed")),
    "moving-raised": Candidate("limits moving, raised", _limits("MovingWindow", "raised")),
    "moving-blocking": Candidate("limits moving, blocking", _limits("MovingWindow", "blocking")),
    "fixed": Candidate("limits fixed, installed", _limits("FixedWindow", "installed")),
    "fixed-raised": Candidate("limits fixed, raised", _limits("FixedWindow", "raised")),
    "fixed-blocking": Candidate("limits fixed, blocking", _limits("FixedWindow", "blocking")),
    "throttled": Candidate("throttled-py GCRA, raised", partial(peers.throttled, pool="raised")),
    "asgi-ratelimit": Candidate(
        "asgi-ratelimit, raised", partial(peers.asgi_ratelimit, pool="raised"), ("evalsha", "eval", "ttl")
    ),
    "each": Candidate("redis-py, one EVALSHA each", peers.each),
}
"""Candidates of the decisions per second."""

LONG_DEADLINE: dict[str, Candidate] = {
    "store": Candidate("ours, the store alone", partial(ours.store, deadline_s=ours.LONG_DEADLINE_S)),
    "throttle": Candidate(
        "ours, the whole decision", partial(ours.throttle, deadline_s=ours.LONG_DEADLINE_S)
    ),
    "moving-raised": CANDIDATES["moving-raised"],
}
"""Candidates with a long deadline, for counts instead of speed."""

COUNTER = Candidate("limits sliding counter, raised", _limits("SlidingWindowCounter", "raised"))
"""Measured for its exactness alone."""

TITLES: dict[str, str] = {name: candidate.title for name, candidate in CANDIDATES.items()} | {
    "counter": COUNTER.title,
    "store-compact": "ours, the store alone, compact",
    "floor": "floor: pipelined, one call each",
    "floor-batch": "floor: one call for all",
    "control": "control: decides nothing",
}
"""Titles of all rows in tables."""
