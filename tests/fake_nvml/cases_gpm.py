"""How busy the parts of a card are: differences of two samples."""

from __future__ import annotations

from autoglm_throttle.gpu.nvml.provider import NvmlProvider
from autoglm_throttle.types import GpuSample
from tests.fake_nvml.cases import World, provider

BUSY = {
    "d0_gpm_1": 9_900, "d0_gpm_2": 4_250, "d0_gpm_3": 1_200, "d0_gpm_5": 3_300, "d0_gpm_10": 2_100,
    "d0_gpm_60": 150, "d0_gpm_61": 50,
}  # fmt: skip


def ratios(row: GpuSample) -> tuple[float | None, ...]:
    return (
        row.graphics_active_ratio,
        row.sm_active_ratio,
        row.sm_occupancy_ratio,
        row.tensor_active_ratio,
        row.dram_active_ratio,
    )


def second(world: World, source: NvmlProvider) -> GpuSample:
    """The row of a reading a second later."""
    world.now += 1.0
    return source.read()[0]


NOTHING = (None,) * 5


def case_metrics_come_with_the_second_reading(world: World) -> None:
    world.set(**BUSY)
    source = provider(world)
    assert ratios(source.read()[0]) == NOTHING
    for _ in range(3):
        row = second(world, source)
        assert [round(ratio or 0.0, 6) for ratio in ratios(row)] == [0.99, 0.425, 0.12, 0.33, 0.21]
        assert (row.nvlink_rx_bps, row.nvlink_tx_bps) == (1.5 * 2**20, 0.5 * 2**20)
        assert (row.health, row.notes) == ("ok", ())


def case_two_samples_are_kept_and_given_back(world: World) -> None:
    world.set(g_count=2)
    source = provider(world)
    for _ in range(4):
        second(world, source)
        assert world.samples() == 4
    source.close()
    assert world.samples() == 0


def case_samples_are_never_too_close(world: World) -> None:
    world.set(d0_gpm_2=5_000)
    source = provider(world)
    source.read()
    world.now += 0.05
    assert ratios(source.read()[0]) == NOTHING
    assert second(world, source).sm_active_ratio == 0.5
    world.set(d0_gpm_2=7_000)
    world.now += 0.0999
    assert source.read()[0].sm_active_ratio == 0.5, "what was found a moment ago"
    world.now += 0.01
    assert source.read()[0].sm_active_ratio == 0.7


def case_a_card_before_hopper_has_none(world: World) -> None:
    world.set(d0_gpm=0)
    source = provider(world)
    for _ in range(2):
        row = second(world, source)
        assert ratios(row) == NOTHING
        assert row.health == "ok"
        assert [note.split(":")[0] for note in row.notes] == ["nvmlGpmQueryDeviceSupport"]
    assert world.samples() == 0


def case_gpm_kept_for_root_is_no_fault(world: World) -> None:
    for call in ("gpm_support", "gpm"):
        world.set(**{f"d0_err_{call}": 4})
        source = provider(world)
        for _ in range(2):
            row = second(world, source)
            assert (ratios(row), row.health) == (NOTHING, "ok")
            assert len(row.notes) == 1
            assert "administrator" in row.notes[0]
        source.close()
        world.set(**{f"d0_err_{call}": 0})


def case_gpm_that_is_missing_is_remembered(world: World) -> None:
    for key in ("d0_err_gpm_support", "d0_err_gpm", "d0_err_gpm_metrics", "g_err_gpm_alloc"):
        for code in (3, 13, 25):
            world.set(**{key: code})
            source = provider(world)
            for _ in range(2):
                row = second(world, source)
                assert (ratios(row), row.health) == (NOTHING, "ok")
            assert len(row.notes) == 1, (key, code, row.notes)
            world.set(**{key: 0})
            assert ratios(second(world, source)) == NOTHING, "not asked again"
            source.close()
            assert world.samples() == 0


def case_one_metric_that_fails_costs_only_itself(world: World) -> None:
    world.set(**BUSY, d0_err_gpm_5=3, d0_err_gpm_60=999)
    source = provider(world)
    source.read()
    row = second(world, source)
    assert (row.tensor_active_ratio, row.nvlink_rx_bps, row.sm_active_ratio) == (None, None, 0.425)
    assert row.health == "ok"


def case_a_sample_that_fails_is_taken_again(world: World) -> None:
    world.set(d0_gpm_2=5_000)
    source = provider(world)
    source.read()
    world.set(d0_err_gpm=999)
    row = second(world, source)
    assert (ratios(row), row.health) == (NOTHING, "degraded")
    world.set(d0_err_gpm=0)
    assert second(world, source).sm_active_ratio == 0.5, "against the sample before the failure"


def case_no_memory_for_samples_now_is_memory_later(world: World) -> None:
    world.set(g_err_gpm_alloc=20, d0_gpm_2=5_000)
    source = provider(world)
    assert source.read()[0].health == "degraded"
    assert world.samples() == 0
    world.set(g_err_gpm_alloc=0)
    second(world, source)
    assert second(world, source).sm_active_ratio == 0.5


def case_samples_that_cannot_be_freed_are_no_matter(world: World) -> None:
    source = provider(world)
    source.read()
    world.set(g_err_gpm_free=999)
    source.close()
    assert world.references() == 0


def case_nothing_is_compared_over_a_loss(world: World) -> None:
    world.set(d0_gpm_2=5_000)
    source = provider(world)
    source.read()
    assert second(world, source).sm_active_ratio == 0.5
    world.set(d0_err=15)
    second(world, source)
    world.set(d0_err=0)
    world.now += 61.0
    assert ratios(source.read()[0]) == NOTHING
    assert second(world, source).sm_active_ratio == 0.5


def case_an_instance_has_metrics_of_its_own(world: World) -> None:
    world.set(
        d0_mig=1, d0_mig_count=2, d100_gi=7, d101_gi=9, d0_gpm_1=1, d100_gpm_1=4_000, d101_gpm_1=8_000,
        d100_gpm_60=1,
    )  # fmt: skip
    source = provider(world)
    source.read()
    world.now += 1.0
    rows = source.read()
    assert [row.graphics_active_ratio for row in rows] == [0.4, 0.8]
    assert [row.utilization_pct for row in rows] == [None, None]
    assert [row.nvlink_rx_bps for row in rows] == [None, None], "the links are the card's"
    source.close()
    assert world.samples() == 0


def case_an_instance_without_a_number_has_no_metrics(world: World) -> None:
    world.set(d0_mig=1, d0_mig_count=1, d100_err_gi=3)
    source = provider(world)
    source.read()
    row = second(world, source)
    assert (ratios(row), row.health) == (NOTHING, "ok")
    assert any(note.startswith("nvmlGpmSampleGet") for note in row.notes)


class Slow:
    """A clock that goes on by itself whenever it is looked at."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.by_s = 0.0

    def __call__(self) -> float:
        self.world.now += self.by_s
        return self.world.now


def in_brief(row: GpuSample) -> bool:
    return any(note.startswith("partial") for note in row.notes)


def case_a_slow_card_leaves_the_others_in_brief(world: World) -> None:
    world.set(g_count=2, d1_gpm_2=5_000, d1_field_197=9, d1_field_74=4)
    clock = Slow(world)
    source = NvmlProvider(environ={}, clock=clock)
    source.read()
    world.now += 1.0
    clock.by_s = 0.15
    first, last = source.read()
    assert not in_brief(first)
    assert first.pcie_tx_bytes == 0
    assert in_brief(last)
    assert (last.sm_active_ratio, last.pcie_tx_bytes, last.nvlink_errors) == (None, None, None)
    assert (last.throttled_ns, last.power_w, last.health) == (4, 100.0, "ok")
    clock.by_s = 0.0
    world.now += 1.0
    (_, last) = source.read()
    assert (last.sm_active_ratio, last.pcie_tx_bytes, last.notes) == (0.5, 9, ())


def case_how_long_a_reading_may_take_follows_the_interval(world: World) -> None:
    """The second card is looked at after about four looks at the clock."""
    world.set(g_count=2)
    clock = Slow(world)
    source = NvmlProvider(environ={}, clock=clock)
    for gap_s, by_s, brief in (
        (1.0, 0.05, False), (0.2, 0.1, True), (4.0, 0.15, False), (4.0, 1.0, True), (10.0, 1.0, False),
        (1_000.0, 1.0, False), (1_000.0, 2.0, True),
    ):  # fmt: skip
        clock.by_s = 0.0
        source.read()
        world.now += gap_s
        clock.by_s = by_s
        (_, last) = source.read()
        assert in_brief(last) is brief, (gap_s, by_s)
