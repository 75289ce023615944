"""Random traces: what many callers ask of a store while its clock goes as it likes."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from autoglm_throttle.types import UserLimit
from tests.contract.script_store import SECOND, limit

WINDOW_S = 60
"""The server's own clock must not let a key die while a trace lasts."""
WINDOWS_S = (WINDOW_S, 61, 3600)


@dataclass(frozen=True)
class Hit:
    """A request; ``plan`` names its limits, ``sizes`` how large they are now."""

    plan: int
    sizes: tuple[int, ...]
    user: str
    units: int


@dataclass(frozen=True)
class Refund:
    """A refund of units of the n-th last allowed request; None gives back all of them."""

    which: int
    units: int | None


@dataclass(frozen=True)
class Step:
    """One call.

    The clock goes to an instant, and some microseconds on: ``now`` where it is, ``retry`` where the last
    refusal ends, ``edge`` where the units of the n-th last allowed request leave.
    """

    to: str
    which: int
    moved_us: int
    entries: tuple[Hit | Refund, ...]


PLANS: tuple[tuple[tuple[int, bool], ...], ...] = (
    ((WINDOW_S, True),),
    ((WINDOW_S, False),),
    ((61, False), (3600, True)),
    ((WINDOW_S, True), (61, True), (3600, False)),
)
"""Windows of 1 to 3 limits, and whether they are exact."""


def limits_of(hit: Hit) -> tuple[UserLimit, ...]:
    plan = PLANS[hit.plan]
    return tuple(
        limit(units, window_s, exact=exact) for units, (window_s, exact) in zip(hit.sizes, plan, strict=False)
    )


def edges_us(window_s: int) -> list[int]:
    """How far the clock goes from one unit to where something about a window changes."""
    width = -(-window_s * SECOND // 60)
    edges = (0, width, 59 * width, 60 * width, 61 * width, 62 * width, window_s * SECOND)
    return sorted({edge * sign + off for edge in edges for sign in (1, -1) for off in (-1, 0, 1)})


_moves = st.sampled_from([0, 0, 1, 999, 15_625]) | st.integers(0, 20 * SECOND)
_jumps = st.sampled_from([edge for window_s in WINDOWS_S for edge in edges_us(window_s)]) | st.integers(
    -4000 * SECOND, 4000 * SECOND
)
_sizes = st.tuples(*[st.integers(1, 70)] * 3)
hits = st.builds(
    Hit,
    plan=st.integers(0, len(PLANS) - 1),
    sizes=st.sampled_from([(20, 40, 60), (60, 60, 60)]) | _sizes,
    user=st.sampled_from("abc"),
    units=st.sampled_from([1, 1, 1, 0]) | st.integers(0, 12) | st.integers(0, 60),
)
refunds = st.builds(Refund, which=st.integers(0, 5), units=st.none() | st.integers(1, 60))
steps = st.builds(
    Step,
    to=st.sampled_from(["now", "now", "retry", "edge", "edge"]),
    which=st.integers(0, 30),
    moved_us=_moves | st.sampled_from([-1, 0, 1]) | _moves | _jumps,
    entries=st.lists(hits | hits | refunds, min_size=1, max_size=6).map(tuple),
)
traces = st.lists(steps, min_size=1, max_size=25)
