"""What is learned of the memory: idle, fill, slope, and when nothing can be said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.control.memory import FillBasis, MemoryFill, MemoryLoad
from autoglm_throttle.settings.groups.gpu import GpuSettings
from autoglm_throttle.types import Demand, GpuSample
from tests.control.quotas import GB, card, loaded, seen, unloaded

KEY = ("", "GPU-0")


def basis_at(memory: MemoryFill, now: float) -> FillBasis:
    """The basis, as a quota reports it."""
    return FillBasis.UNKNOWN if memory.projected(MemoryLoad(), now) is None else memory.basis


def fresh() -> tuple[MemoryFill, MemoryLoad]:
    return MemoryFill(GpuSettings()), MemoryLoad()


def watched(*steps: tuple[float, int]) -> tuple[MemoryFill, MemoryLoad, float]:
    """A sample each second: gigabytes used, and requests in flight then."""
    memory, load = fresh()
    now = 0.0
    for used_gb, held in steps:
        now += 1.0
        more = held - load.in_flight
        loaded(load, more)
        unloaded(load, -more)
        memory.learn(seen(card(used_gb, now)), load, now)
    return memory, load, now


def test_nothing_is_known_before_a_sample() -> None:
    memory, load = fresh()
    assert memory.projected(load, 0.0) is None
    assert basis_at(memory, 0.0) is FillBasis.UNKNOWN


def test_the_bases_are_a_closed_set() -> None:
    assert set(FillBasis) == {"cache", "device", "kept", "unknown"}


def test_weights_are_no_fill() -> None:
    memory, load, now = watched((40.0, 0), (70.0, 4))
    assert memory.projected(load, now) == pytest.approx(0.5)
    assert memory.usable_bytes == 60 * GB
    assert basis_at(memory, now) is FillBasis.DEVICE


def test_a_model_that_is_still_loading_is_no_work() -> None:
    memory, _, _ = watched((5.0, 0), (40.0, 0))
    assert memory.idle_bytes.get(KEY) == 40 * GB
    assert memory.fill == 0.0


def test_after_the_first_request_idle_only_falls() -> None:
    memory, _, _ = watched((40.0, 0), (50.0, 2), (45.0, 0))
    assert memory.idle_bytes.get(KEY) == 40 * GB
    memory, _, _ = watched((40.0, 0), (50.0, 2), (35.0, 0))
    assert memory.idle_bytes.get(KEY) == 35 * GB


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 6)), min_size=1, max_size=20))
def test_idle_only_falls_and_the_slope_is_never_negative(steps: list[tuple[float, int]]) -> None:
    memory, load = fresh()
    lowest = None
    for now, (used_gb, held) in enumerate(steps, 1):
        more = held - load.in_flight
        loaded(load, more)
        unloaded(load, -more)
        memory.learn(seen(card(used_gb, float(now))), load, float(now))
        idle = memory.idle_bytes.get(KEY)
        assert idle is not None
        assert memory.slope >= 0.0
        fill = memory.projected(load, float(now))
        assert fill is None or 0.0 <= fill <= 1.0
        if load.had_requests:
            assert lowest is None or idle <= lowest
            lowest = idle


def test_the_slope_is_what_a_unit_adds() -> None:
    memory, load, now = watched((0.0, 0), (10.0, 1), (40.0, 4), (20.0, 2))
    assert memory.slope == pytest.approx(0.1)
    loaded(load, 2, cost=1.5)
    assert memory.projected(load, now) == pytest.approx(0.2 + 0.3)
    unloaded(load, 2, cost=1.5)
    unloaded(load, 2)
    assert memory.projected(load, now) == 0.0


def test_memory_that_falls_while_requests_come_has_no_negative_price() -> None:
    memory, _, _ = watched((0.0, 0), (30.0, 1), (10.0, 5), (1.0, 9))
    assert memory.slope == 0.0


def test_stated_memory_is_no_part_of_the_slope() -> None:
    memory, load = fresh()
    memory.learn(seen(card(0.0, 1.0)), load, 1.0)
    demand = Demand(memory_bytes=30 * GB)
    load.add(demand)
    assert memory.projected(load, 1.0) == pytest.approx(0.3)
    loaded(load, 1)
    memory.learn(seen(card(40.0, 2.0)), load, 2.0)
    assert memory.slope == pytest.approx(0.1)
    assert memory.projected(load, 2.0) == pytest.approx(0.4)
    load.remove(demand)
    assert memory.projected(load, 2.0) == pytest.approx(0.1)


def test_repeated_measurement_counts_once() -> None:
    memory, load, now = watched((0.0, 0), (10.0, 1))
    loaded(load, 3)
    memory.learn(seen(card(10.0, now)), load, now + 0.5)
    assert memory.projected(load, now) == pytest.approx(0.4)


@pytest.mark.parametrize(("age_s", "known"), [(3.0, True), (3.01, False)])
def test_an_old_fill_is_not_known(age_s: float, known: bool) -> None:
    memory, load, now = watched((10.0, 0), (20.0, 1))
    assert (memory.projected(load, now + age_s) is not None) is known
    assert (basis_at(memory, now + age_s) is FillBasis.DEVICE) is known


def test_slow_source_is_trusted_longer() -> None:
    memory, load = fresh()
    memory.learn(seen(card(10.0, 1.0, period_s=10.0)), load, 1.0)
    assert basis_at(memory, 26.0) is FillBasis.DEVICE
    assert basis_at(memory, 26.01) is FillBasis.UNKNOWN
    memory.learn(seen(card(10.0, 30.0), interval_s=8.0), load, 30.0)
    assert basis_at(memory, 54.0) is FillBasis.DEVICE


@pytest.mark.parametrize(
    "row",
    [
        card(None, 1.0),
        card(10.0, 1.0, health="lost"),
        card(10.0, 1.0, kind="engine"),
        card(10.0, 1.0, memory_total_bytes=None),
        card(10.0, 1.0, memory_total_bytes=0),
        card(10.0, 1.0, age_s=4.0),
        card(87.0, 1.0),
    ],
    ids=["no use", "lost", "engine", "no total", "no memory", "old", "taken in advance"],
)
def test_row_without_a_fill_is_skipped(row: GpuSample) -> None:
    memory, load = fresh()
    memory.learn(seen(card(10.0, 0.5)), load, 1.0)
    memory.learn(seen(row), load, 1.0)
    assert basis_at(memory, 1.0) is FillBasis.UNKNOWN
    memory.learn(seen(row, card(10.0, 1.0, device="GPU-1")), load, 1.0)
    assert basis_at(memory, 1.0) is FillBasis.DEVICE


def test_the_fullest_device_counts() -> None:
    memory, load = fresh()
    idle = [card(10.0, 1.0, device=f"GPU-{n}") for n in range(3)]
    memory.learn(seen(*idle), load, 1.0)
    loaded(load, 1)
    memory.learn(
        seen(card(20.0, 2.0), card(55.0, 2.0, device="GPU-1"), card(30.0, 2.0, device="GPU-2")), load, 2.0
    )
    assert memory.projected(load, 2.0) == pytest.approx(0.5)


def test_engine_reports_its_cache_fill() -> None:
    memory, load = fresh()
    loaded(load, 2)
    memory.learn(seen(card(95.0, 1.0), kv=0.4, at_s=1.0), load, 1.0)
    assert basis_at(memory, 1.0) is FillBasis.CACHE
    assert memory.projected(load, 1.0) == 0.4
    assert memory.usable_bytes is None
    unloaded(load, 2)
    memory.learn(seen(kv=0.4, at_s=2.0), load, 2.0)
    assert memory.projected(load, 2.0) == 0.4, "a cache is told exactly: it is never taken for kept"


def test_figures_of_another_basis_are_forgotten() -> None:
    memory, load, now = watched((0.0, 0), (10.0, 1), (40.0, 4))
    assert memory.slope > 0.0
    memory.learn(seen(kv=0.9, at_s=now - 1.0), load, now)
    assert memory.slope == 0.0
    assert basis_at(memory, now) is FillBasis.CACHE


class TestKept:
    """A fill that stays when requests go is not theirs: what is left beside it is."""

    def test_half_of_the_requests_went_and_the_fill_stayed(self) -> None:
        memory, load, now = watched((10.0, 0), (60.0, 4), (60.0, 3))
        assert basis_at(memory, now) is FillBasis.DEVICE
        memory, load, now = watched((10.0, 0), (60.0, 4), (60.0, 2))
        assert basis_at(memory, now) is FillBasis.KEPT
        assert memory.projected(load, now) == 0.0
        assert memory.usable_bytes == 40 * GB
        assert memory.ceiling == pytest.approx(32 / 40)
        assert memory.max_bytes(0.5) == 45 * GB, "once it goes"

    def test_requests_between_two_samples_count(self) -> None:
        memory, load = fresh()
        memory.learn(seen(card(10.0, 1.0)), load, 1.0)
        unloaded(loaded(load, 4), 4)
        memory.learn(seen(card(60.0, 2.0)), load, 2.0)
        assert basis_at(memory, 2.0) is FillBasis.DEVICE
        memory.learn(seen(card(60.0, 3.0)), load, 3.0)
        assert basis_at(memory, 3.0) is FillBasis.KEPT

    @pytest.mark.parametrize("used_gb", [63.0, 57.0])
    def test_it_counts_again_once_it_moves(self, used_gb: float) -> None:
        memory, load, now = watched((10.0, 0), (60.0, 4), (60.0, 0), (used_gb, 4))
        assert basis_at(memory, now) is FillBasis.DEVICE
        assert memory.projected(load, now) == pytest.approx((used_gb - 10) / 90)

    def test_more_requests_at_the_same_fill_are_remembered(self) -> None:
        memory, _, now = watched((10.0, 0), (60.0, 4), (60.0, 8), (60.0, 4))
        assert basis_at(memory, now) is FillBasis.KEPT

    def test_an_empty_device_keeps_nothing(self) -> None:
        memory, _, now = watched((10.0, 0), (10.5, 4), (10.5, 0))
        assert basis_at(memory, now) is FillBasis.DEVICE

    def test_a_price_is_not_learned_from_what_is_kept(self) -> None:
        memory, _, _ = watched((0.0, 0), (40.0, 4))
        price = memory.slope
        memory, _, _ = watched((0.0, 0), (40.0, 4), (40.0, 1), (40.0, 0))
        assert memory.slope == pytest.approx(price * 100 / 60), "a larger share of the smaller rest"
        memory, _, _ = watched((0.0, 0), (40.0, 4), (40.0, 1), (40.0, 0), (50.0, 0))
        assert memory.slope == price

    def test_what_comes_in_counts_towards_the_rest(self) -> None:
        memory, load, now = watched((0.0, 0), (60.0, 6), (60.0, 3))
        loaded(load, 2)
        assert memory.projected(load, now) == pytest.approx(2 * 0.1 * 100 / 40)
        load.add(Demand(memory_bytes=4 * GB))
        assert memory.projected(load, now) == pytest.approx(0.5 + 0.1)

    @pytest.mark.parametrize("used_gb", [92.0, 95.0, 100.0])
    def test_beyond_the_target_nothing_is_left(self, used_gb: float) -> None:
        memory, load, now = watched((30.0, 0), (used_gb, 4), (used_gb, 0))
        assert basis_at(memory, now) is FillBasis.KEPT
        assert memory.ceiling == 0.0
        assert memory.projected(load, now) == 0.0

    def test_a_jump_is_learned_from_the_fill_as_it_was(self) -> None:
        memory, _, now = watched((0.0, 0), (40.0, 4), (40.0, 1), (60.0, 3))
        assert basis_at(memory, now) is FillBasis.DEVICE
        assert memory.fill == pytest.approx(0.6)
        assert memory.slope == pytest.approx(0.1, rel=0.01)


def test_how_fast_requests_end() -> None:
    memory, _, _ = watched((0.0, 0), (10.0, 4), (5.0, 2))
    assert memory.end_rates[0] == pytest.approx(0.2 * 2)


def test_how_many_requests_end_is_counted_beside_what_they_cost() -> None:
    memory, load, now = watched((0.0, 0), (10.0, 4))
    loaded(load, 1, cost=9.0)
    unloaded(load, 1, cost=9.0)
    load.add(Demand(memory_bytes=GB))
    load.remove(Demand(memory_bytes=GB))
    memory.learn(seen(card(10.0, now + 1.0)), load, now + 1.0)
    assert memory.end_rates[1] == pytest.approx(0.2 * 2)
    assert memory.end_rates[0] == pytest.approx(0.2 * 9.0)


def test_restarted_counters_give_no_negative_rate() -> None:
    memory, load, now = watched((0.0, 0), (10.0, 4), (10.0, 0))
    assert load.ended == 4
    memory.learn(seen(card(10.0, now + 1.0)), MemoryLoad(), now + 1.0)
    assert memory.end_rates[1] == memory.end_rates[0] == pytest.approx(0.2 * 4 * 0.8)


def test_how_soon_the_next_measurement_comes() -> None:
    memory, load, now = watched((0.0, 0), (10.0, 4))
    assert memory.renewal_s == 1.0
    memory.learn(seen(card(10.0, now + 1.0), interval_s=2.0), load, now + 1.0)
    assert memory.renewal_s == 2.0
    memory.learn(seen(card(10.0, now + 2.0, period_s=10.0)), load, now + 2.0)
    assert memory.renewal_s == 10.0


@pytest.mark.parametrize(
    ("idle_gb", "target", "ceiling"), [(0.0, 0.92, 0.92), (40.0, 0.92, 52 / 60), (80.0, 0.92, 0.6)]
)
def test_the_ceiling_is_the_target_of_the_whole_device(idle_gb: float, target: float, ceiling: float) -> None:
    memory, load = MemoryFill(GpuSettings(gpu_memory_target=target)), MemoryLoad()
    memory.learn(seen(card(idle_gb, 1.0)), load, 1.0)
    assert memory.ceiling == pytest.approx(ceiling)
    assert memory.max_bytes(0.1) == pytest.approx(0.1 * (100 - idle_gb) * GB)
    assert memory.max_bytes(1.0) == pytest.approx((100 * target - idle_gb) * GB)


def test_a_cache_has_no_ceiling_but_its_own() -> None:
    memory, load, now = watched((40.0, 0), (95.0, 1))
    assert memory.ceiling < 1.0
    memory.learn(seen(card(95.0, now + 1.0), kv=0.4, at_s=now + 1.0), load, now + 1.0)
    assert (memory.ceiling, memory.max_bytes(0.5)) == (1.0, None)


def test_fractions_leave_nothing_behind() -> None:
    load = MemoryLoad()
    costs = [0.1, 0.2, 0.3]
    for cost in costs:
        load.add(Demand(cost=cost))
    for cost in costs:
        load.remove(Demand(cost=cost))
    assert (load.in_flight, load.cost, load.stated_bytes) == (0, 0.0, 0)
    assert load.released == pytest.approx(0.6)
