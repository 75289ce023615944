"""The compact form counts in as few bytes as its largest part needs, and nobody can tell which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.store.protocol import Answer, WindowEntry
from autoglm_throttle.types import UNITS_AT_MOST
from tests.contract.reference import Reference
from tests.contract.script_store import SECOND, START, ScriptStore, limit, refund_of
from tests.contract.test_script_is_the_reference import Player

HEAD = 10
"""Bytes before the counts."""
EDGES = (255, 256, 65_535, 65_536)


def ask(store: ScriptStore, units: int, most: int = UNITS_AT_MOST, user: str = "a") -> WindowEntry:
    return store.ask((limit(most, exact=False),), units, user)


def stands(player: Player) -> tuple[int, int]:
    """Bytes of a count, as the mark says, and counts under the only key."""
    value = player.store.client.get(ask(player.store, 1).keys[0])
    size = value[0] - 248
    return size, (len(value) - HEAD) // size


@pytest.mark.parametrize(
    ("units", "size"),
    [(1, 1), (255, 1), (256, 2), (65_535, 2), (65_536, 3), (UNITS_AT_MOST, 3)],
)
def test_as_few_bytes_as_the_largest_needs(store: ScriptStore, units: int, size: int) -> None:
    player = Player(store)
    store.call([ask(store, units)], player.clock)
    assert stands(player) == (size, 1)
    left = store.call([ask(store, 0)], player.clock)[0][1]
    assert left == UNITS_AT_MOST - units


@pytest.mark.parametrize("edge", EDGES)
def test_the_parts_before_keep_their_counts_when_one_grows(store: ScriptStore, edge: int) -> None:
    player = Player(store)
    for units in (7, 255, 0, 3, edge - 2, 1, 1, 1, 1):
        player.send([ask(store, units)])
        player.clock += SECOND if units != 1 else 0
    player.send([ask(store, UNITS_AT_MOST)])
    for later_s in (1, 55, 1, 1, 1, 1, 1, 1, 60):
        player.clock += later_s * SECOND
        player.send([ask(store, 0), ask(store, 300, most=300)])


@pytest.mark.parametrize("large", [256, 65_535, 65_536])
def test_counts_are_small_again_when_the_large_has_left(store: ScriptStore, large: int) -> None:
    player = Player(store)
    for second in range(62):
        assert second < 61 or stands(player) == (2 if large < 65_536 else 3, 61)
        store.call([ask(store, 9 if second else large)], player.clock + second * SECOND)
    assert stands(player) == (1, 61)
    assert store.call([ask(store, 0)], player.clock + 61 * SECOND)[0][1] == UNITS_AT_MOST - 61 * 9


@pytest.mark.parametrize("large", [256, 65_536])
def test_counts_stay_large_until_the_last_large_has_left(store: ScriptStore, large: int) -> None:
    player = Player(store)
    for units in (large, 1, large, 1):
        player.send([ask(store, units)])
        player.clock += SECOND
    for later_s in (57, 1, 1, 1):
        player.clock += later_s * SECOND
        player.send([ask(store, 1)])
    assert stands(player)[0] == 1


@pytest.mark.parametrize("later_s", [0, 5])
def test_counts_are_small_again_when_the_large_is_given_back(store: ScriptStore, later_s: int) -> None:
    player = Player(store)
    player.send([ask(store, 4)])
    player.clock += SECOND
    player.send([ask(store, 3), ask(store, 66_000)])
    for _ in range(later_s):
        player.clock += SECOND
        player.send([ask(store, 2)])
    assert stands(player)[0] == 3
    player.send([refund_of(*player.allowed[2], 500)])
    assert stands(player)[0] == 2
    player.send([store.wire.build_refund(*player.allowed[2])])
    assert stands(player)[0] == 1
    player.send([ask(store, 0), ask(store, 100, most=100)])


@pytest.mark.parametrize("change", [(66_000, 65_535), (65_535, 66_000), (300, 255), (255, 300)])
def test_limit_crossing_a_layout_edge_keeps_its_counts(store: ScriptStore, change: tuple[int, int]) -> None:
    player = Player(store)
    before, after = change
    for units in (before // 2, before - before // 2 - 1, 1, 1):
        player.send([ask(store, units, before)])
    player.clock += SECOND
    player.send([ask(store, 1, after), ask(store, after, after)])
    player.clock += 60 * SECOND
    player.send([ask(store, after, after), ask(store, 1, before), ask(store, after, after)])


@dataclass(frozen=True)
class Act:
    """A request, or a refund of the n-th last allowed one, some seconds after what came before."""

    later_s: int
    most: int
    units: int
    changed: int | None


acts = st.builds(
    Act,
    later_s=st.sampled_from([0, 0, 0, 1, 1, 2, 58, 59, 60, 61, -1]),
    most=st.sampled_from([255, 300, 1023, 4000]),
    units=st.sampled_from([0, 1, 2, 3, 254, 255, 256, 257]) | st.integers(0, 1023),
    changed=st.none() | st.none() | st.integers(0, 5),
)
stories = st.lists(acts, min_size=1, max_size=30)


class Teller:
    """Tells a story in units of so many, and hears answers in the same units.

    The scale of 257 makes 65,792 of 256: the upper edge then lies where the lower one is at a scale of 1.
    """

    def __init__(self, store: ScriptStore, scale: int) -> None:
        self.store = store.fresh()
        self.scale = scale
        self.reference = Reference()
        self.clock = START
        self.allowed: list[tuple[WindowEntry, Answer]] = []

    def tell(self, act: Act) -> list[int]:
        self.clock += act.later_s * SECOND
        entry: WindowEntry
        if act.changed is not None and self.allowed:
            earlier = self.allowed[-1 - act.changed % len(self.allowed)]
            entry = refund_of(*earlier, act.units * self.scale)
        else:
            entry = ask(self.store, act.units * self.scale, act.most * self.scale)
        answer = self.store.call([entry], self.clock)[0]
        if self.scale == 1:
            assert answer == self.reference.call([entry], self.clock)[0]
        if not entry.refunds and answer[0] == 0:
            self.allowed.append((entry, answer))
        heard = list(answer)
        place = 1 if not entry.refunds else 0
        heard[place], rest = divmod(heard[place], self.scale)
        assert rest == 0
        return heard


def play(store: ScriptStore, story: Sequence[Act]) -> None:
    heard = []
    for scale in (1, 257):
        teller = Teller(store, scale)
        heard.append([teller.tell(act) for act in story])
    assert heard[0] == heard[1]


@pytest.mark.slow
@given(story=stories)
def test_on_fakeredis(fake_store: ScriptStore, story: Sequence[Act]) -> None:
    play(fake_store, story)
    fake_store.client.flushall()


@given(story=stories)
def test_on_servers(store: ScriptStore, story: Sequence[Act]) -> None:
    play(store, story)
