"""What a card tells beside its load: energy, heat, why it slows down, and its links."""

from __future__ import annotations

from autoglm_throttle.types import ProviderUnavailable
from tests.fake_nvml.cases import World, provider, raised


def case_energy_and_margin_in_our_units(world: World) -> None:
    world.set(d0_energy_mj=7_250_500, d0_margin=-3)
    (row,) = provider(world).read()
    assert (row.energy_j, row.temperature_margin_c) == (7250.5, -3)


def case_what_slows_a_card_down_by_its_bits(world: World) -> None:
    names = {
        0x04: "sw_power_cap",
        0x08: "hw_slowdown",
        0x20: "sw_thermal",
        0x40: "hw_thermal",
        0x80: "hw_power_brake",
    }
    source = provider(world)
    for bit, name in names.items():
        world.set(d0_reasons=bit)
        assert source.read()[0].throttle == frozenset({name})
    world.set(d0_reasons=0x1FF)
    assert source.read()[0].throttle == frozenset(names.values())
    world.set(d0_reasons=0x1 | 0x2 | 0x10 | 0x100)
    assert source.read()[0].throttle == frozenset(), "idleness and clocks that somebody chose are no fault"
    world.set(d0_err_reasons=3)
    assert source.read()[0].throttle is None


def case_time_slowed_down_is_a_sum(world: World) -> None:
    world.set(d0_field_74=1_000, d0_field_75=200, d0_field_270=30, d0_field_271=4)
    assert provider(world).read()[0].throttled_ns == 1_234


def case_the_numbers_of_those_fields_follow_the_driver(world: World) -> None:
    fields = {"d0_field_74": 1, "d0_field_75": 2, "d0_field_252": 10, "d0_field_253": 20, "d0_field_270": 100,
              "d0_field_271": 200}  # fmt: skip
    world.set(**fields)
    for version, told in (((580, 82), 303), ((580, 65), 33), ((575, 51), 33), ((580, 70), 3), ((550, 90), 3)):
        world.set(g_driver_major=version[0], g_driver_minor=version[1])
        assert provider(world).read()[0].throttled_ns == told, version
    for code in (3, 13, 999):
        world.set(g_err_driver=code)
        assert provider(world).read()[0].throttled_ns == 3, "a driver that does not tell its version"


def case_counters_of_the_links(world: World) -> None:
    world.set(d0_field_138=3, d0_field_139=5, d0_field_197=1 << 40, d0_field_198=77)
    world.set(d0_field_38=1, d0_field_45=10, d0_field_52=100, d0_field_59=1_000, d0_field_160=10_000)
    (row,) = provider(world).read()
    assert (row.nvlink_tx_bytes, row.nvlink_rx_bytes) == (3 << 10, 5 << 10), "the driver counts in KiB"
    assert (row.pcie_tx_bytes, row.pcie_rx_bytes, row.nvlink_errors) == (1 << 40, 77, 11_111)


def case_power_by_field_and_by_the_older_call(world: World) -> None:
    world.set(d0_field_186=333_000, d0_power_mw=444_000)
    source = provider(world)
    assert source.read()[0].power_w == 333.0
    for code in (2, 3):
        world.set(d0_err_field_186=code)
        (row,) = provider(world).read()
        assert (row.power_w, row.health) == (444.0, "ok")
    world.set(d0_err_field_186=999)
    (row,) = source.read()
    assert (row.power_w, row.health) == (444.0, "degraded")


def case_a_field_that_the_card_lacks_is_not_asked_for_again(world: World) -> None:
    world.set(d0_err_field_197=3, d0_err_field_160=2, d0_field_38=7)
    source = provider(world)
    for _ in range(2):
        (row,) = source.read()
        assert (row.pcie_tx_bytes, row.pcie_rx_bytes, row.nvlink_errors, row.health) == (None, 0, 7, "ok")
        assert row.notes == ("nvmlDeviceGetFieldValues pcie_tx_bytes: not supported",)
    world.set(d0_err_field_197=0, d0_err_field_160=0, d0_field_160=1)
    (row,) = source.read()
    assert (row.pcie_tx_bytes, row.nvlink_errors) == (None, 7)
    source.close()
    (row,) = source.read()
    assert (row.pcie_tx_bytes, row.nvlink_errors) == (0, 8), "asked again after a new opening"


def case_a_sum_without_a_part_is_unknown(world: World) -> None:
    world.set(d0_field_74=500, d0_field_75=70, d0_err_field_75=999)
    source = provider(world)
    (row,) = source.read()
    assert (row.throttled_ns, row.health) == (None, "degraded"), "or the counter would seem to fall"
    world.set(d0_err_field_75=0)
    (row,) = source.read()
    assert (row.throttled_ns, row.health) == (570, "ok")


def case_a_card_without_fields_is_read(world: World) -> None:
    for code in (3, 13):
        world.set(d0_err_fields=code, d0_power_mw=90_000)
        (row,) = provider(world).read()
        links = (row.throttled_ns, row.nvlink_errors, row.nvlink_rx_bytes, row.pcie_rx_bytes)
        assert links == (None,) * 4
        assert (row.power_w, row.health) == (90.0, "ok")


def case_errors_of_a_field_may_be_those_of_the_card(world: World) -> None:
    source = provider(world)
    source.read()
    world.set(d0_err_field_198=15)
    assert source.read()[0].health == "lost"
    world.set(d0_err_field_198=1)
    world.now += 61.0
    source = provider(world)
    opened = world.opened()
    raised(ProviderUnavailable, source.read)
    assert world.opened() == opened + 2, "opened anew once"


def case_the_greatest_clock_is_asked_for_once(world: World) -> None:
    world.set(d0_smclk_max=1980)
    source = provider(world)
    source.read()
    world.set(d0_smclk_max=1, d0_smclk=900)
    (row,) = source.read()
    assert (row.sm_clock_mhz, row.sm_clock_max_mhz) == (900, 1980)


def case_the_default_limit_is_asked_for_once(world: World) -> None:
    world.set(d0_limit_mw=400_000, d0_err_limit_default_mw=999)
    source = provider(world)
    (row,) = source.read()
    assert (row.power_limit_w, row.power_limit_default_w) == (400.0, None)
    world.set(d0_err_limit_default_mw=0, d0_limit_default_mw=350_000)
    assert source.read()[0].power_limit_default_w == 350.0, "an error that passes is no answer"
    world.set(d0_limit_mw=300_000, d0_limit_default_mw=1)
    (row,) = source.read()
    assert (row.power_limit_w, row.power_limit_default_w) == (300.0, 350.0)


def case_an_instance_tells_what_is_true_of_its_card(world: World) -> None:
    world.set(
        d0_mig=1, d0_mig_count=1, d0_reasons=0x40, d0_margin=2, d0_smclk=1200, d0_field_75=9, d0_field_186=5,
        d0_energy_mj=5, d0_field_197=5,
    )  # fmt: skip
    (row,) = provider(world).read()
    assert (row.throttle, row.temperature_margin_c, row.throttled_ns) == (frozenset({"hw_thermal"}), 2, 9)
    assert (row.sm_clock_mhz, row.sm_clock_max_mhz) == (1200, 1980)
    alone = (row.power_w, row.power_limit_w, row.power_limit_default_w, row.energy_j, row.pcie_tx_bytes)
    assert alone == (None,) * 5
    assert row.nvlink_tx_bytes is None, "what belongs to the whole card cannot be split"
