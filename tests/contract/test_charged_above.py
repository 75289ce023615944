"""Units that have been used already are charged above the limit alike by the script and in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.limiting.decisions import decision_of
from autoglm_throttle.limiting.user_limits import LimitSets, UserLimits
from autoglm_throttle.store.protocol import StoreCharge, WindowEntry
from autoglm_throttle.types import UNITS_AT_MOST, Demand, TokenLimit
from tests.contract.script_store import SECOND, START, ScriptStore
from tests.contract.test_memory_is_the_script import START_US, TICK_US, compare, ticks

ANN = Demand(user="07f3a9b1c2d3e4f5")


def charged(store: ScriptStore, charge: StoreCharge, units: int) -> WindowEntry:
    check = store.wire.build_check([replace(charge, units=-units)])
    return store.wire.build_refund(check, [0, 0, 0, 0])


steps = st.lists(st.tuples(ticks, st.booleans(), st.integers(1, 30)), min_size=1, max_size=20)


@given(most=st.integers(10, 25), window_s=st.sampled_from([60, 61, 90, 3600]), steps=steps)
def test_script_and_memory_count_alike(store: ScriptStore, most: int, window_s: int, steps: Any) -> None:
    store.fresh()
    limits = (TokenLimit(f"tokens-{window_s}s", most, window_s),)
    memory = UserLimits(LimitSets((limits,) * 3, by_plan={}, by_route={}, address_factor=1.0), 100)
    clock = START_US
    for passed, above, units in steps:
        clock += passed * TICK_US
        charge = StoreCharge("tokens.user", limits, ANN.user, units)
        if above:
            memory.charge(ANN, units, clock / SECOND)
            assert store.call([charged(store, charge, units)], clock) == [[units]]
        else:
            (answer,) = store.call([store.wire.build_check([charge])], clock)
            compare(answer, [charge], decision_of(memory.hit_units(ANN, units, clock / SECOND)))


def test_a_part_of_the_window_counts_up_to_a_maximum(store: ScriptStore) -> None:
    store.fresh()
    charge = StoreCharge("tokens.user", (TokenLimit("tokens-60s", 100, 60),), ANN.user, 1)
    most = charged(store, charge, UNITS_AT_MOST)
    assert store.call([charged(store, charge, 5), most, most], START) == [[5], [UNITS_AT_MOST - 5], [0]]
    assert store.call([most], START + SECOND) == [[UNITS_AT_MOST]]
    for later_s, wait_s in ((2, 60), (60, 2), (61, 1)):
        (answer,) = store.call([store.wire.build_check([charge])], START + later_s * SECOND)
        assert answer[:2] == [wait_s * SECOND, 0]
    assert store.call([store.wire.build_check([charge])], START + 62 * SECOND)[0][:2] == [0, 99]


@pytest.mark.parametrize("units", [-5, 5])
def test_another_type_of_value_is_left_alone(store: ScriptStore, units: int) -> None:
    store.fresh()
    charge = StoreCharge("tokens.user", (TokenLimit("tokens-60s", 100, 60),), ANN.user, 1)
    entry = charged(store, charge, units)
    store.client.hset(entry.keys[0], "a", 1)
    assert store.call([entry], START) == [[-2]]
