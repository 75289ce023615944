"""Every call that reads a card, with every error of the table: what comes of it, and nothing else does."""

from __future__ import annotations

from functools import partial

from autoglm_throttle.gpu.nvml.provider import NvmlProvider
from autoglm_throttle.types import GpuSample, ProviderUnavailable
from autoglm_throttle.types.errors import NotPresentError
from tests.fake_nvml.cases import World, provider, raised

TELLS: dict[str, tuple[str, ...]] = {
    "util": ("utilization_pct", "memory_busy_pct"),
    "memory": (),
    "memory_old": (),
    "limit_mw": ("power_limit_w",),
    "limit_default_mw": ("power_limit_default_w",),
    "energy_mj": ("energy_j",),
    "temp": (),
    "temp_old": (),
    "margin": ("temperature_margin_c",),
    "clock": ("sm_clock_mhz",),
    "clock_max": ("sm_clock_max_mhz",),
    "reasons": ("throttle",),
    "fields": ("throttled_ns", "nvlink_tx_bytes", "nvlink_rx_bytes", "nvlink_errors", "pcie_tx_bytes",
               "pcie_rx_bytes"),
    "power_mw": (),
    "gpm_support": ("sm_active_ratio",),
    "gpm": ("sm_active_ratio",),
    "gpm_metrics": ("sm_active_ratio",),
}  # fmt: skip
"""Short name of a call -> what only it tells; those without have another in reserve."""

RESERVE = {"memory_old", "temp_old", "power_mw"}
"""Calls that are made only where the newer one is missing."""

ONCE = {"gpm_support", "clock_max", "limit_default_mw"}
"""Calls whose answer does not change: made once after each opening."""

LASTING = (3, 13, 25)
PASSING = (2, 4, 9, 10, 12, 18, 999)
"""What a call about one number may say and say otherwise the next time. At the opening some mean more."""
FATAL = (6, 15, 16)

KNOWN = {name for names in TELLS.values() for name in names} | {
    "memory_used_bytes", "memory_total_bytes", "power_w", "temperature_c",
}  # fmt: skip


def twice(world: World, source: NvmlProvider) -> GpuSample:
    """The second reading's row, which has everything."""
    source.read()
    world.now += 1.0
    return source.read()[0]


def unknown(row: GpuSample) -> set[str]:
    return {name for name in KNOWN if getattr(row, name) is None}


def case_a_whole_card_tells_everything(world: World) -> None:
    row = twice(world, provider(world))
    assert unknown(row) == set()
    assert (row.health, row.notes) == ("ok", ())


def case_what_a_call_cannot_tell_is_unknown_and_the_rest_is_told(world: World) -> None:
    for call, names in TELLS.items():
        for code in LASTING:
            world.set(**{f"d0_err_{call}": code})
            source = provider(world)
            row = twice(world, source)
            assert unknown(row) == set(names), (call, code)
            assert row.health == "ok", (call, code)
            quiet = call in RESERVE | {"memory", "temp"}
            assert bool(row.notes) is not quiet, (call, code, row.notes)
            world.set(**{f"d0_err_{call}": 0})
            world.now += 1.0
            again = unknown(source.read()[0])
            assert again == set(names), (call, code, "asked again")
            source.close()
            assert unknown(twice(world, source)) == set(), "asked again after a new opening"
            source.close()


def case_an_error_that_passes_is_one_unknown_number(world: World) -> None:
    source = provider(world)
    twice(world, source)
    for call in TELLS.keys() - RESERVE - ONCE - {"gpm"}:
        for code in PASSING:
            world.set(**{f"d0_err_{call}": code})
            world.now += 1.0
            (row,) = source.read()
            lost = {"memory": {"memory_used_bytes", "memory_total_bytes"}, "temp": {"temperature_c"}}
            assert unknown(row) == lost.get(call, set(TELLS[call])), (call, code)
            assert row.health == "degraded", (call, code)
            assert len(row.notes) == 1, (call, code, row.notes)
            world.set(**{f"d0_err_{call}": 0})
            world.now += 1.0
            (row,) = source.read()
            assert (unknown(row), row.health) == (set(), "ok"), (call, code)


def case_an_error_of_the_card_in_any_call_is_its_loss(world: World) -> None:
    for call in TELLS.keys() - RESERVE - ONCE:
        for code in FATAL:
            source = provider(world)
            twice(world, source)
            world.set(**{f"d0_err_{call}": code})
            world.now += 1.0
            (row,) = source.read()
            assert (row.health, unknown(row)) == ("lost", KNOWN), (call, code)
            world.set(**{f"d0_err_{call}": 0})
            world.now += 61.0
            assert source.read()[0].health == "ok", (call, code)
            source.close()
            assert world.samples() == 0


def case_a_closed_library_in_any_call_is_one_new_opening(world: World) -> None:
    for call in TELLS.keys() - RESERVE - {"gpm_metrics"}:  # which a source just opened does not ask for
        world.set(**{f"d0_err_{call}": 1})
        before = world.opened()
        source = provider(world)
        assert "again and again" in raised(ProviderUnavailable, partial(twice, world, source))
        world.set(**{f"d0_err_{call}": 0})
        assert world.opened() - before in {2, 3}, call
        assert twice(world, source).health == "ok"
        source.close()


def case_a_library_closed_between_two_questions_of_the_opening(world: World) -> None:
    for key in ("g_err_driver", "g_err_count", "d0_err_handle", "d0_err_uuid", "d0_err_pci"):
        world.set(**{key: 1})
        source = provider(world)
        assert "again and again" in raised(ProviderUnavailable, source.read), key
        world.set(**{key: 0})
        assert source.read()[0].health == "ok"
        source.close()


def case_everything_refused_is_a_source_that_tells_nothing(world: World) -> None:
    for code in (2, 4, 9, 12, 18, 999):
        source = provider(world)
        twice(world, source)
        world.set(d0_err=code)
        world.now += 1.0
        kind = NotPresentError if code in {9, 12} else ProviderUnavailable
        assert raised(kind, source.read).startswith(f"NVML {code} ")
        world.set(d0_err=0)
        world.now += 1.0
        assert source.read()[0].health == "ok"
        source.close()


def case_everything_unsupported_is_a_card_that_tells_nothing(world: World) -> None:
    for code in LASTING:
        world.set(**{f"d0_err_{call}": code for call in TELLS})
        (row,) = provider(world).read()
        assert (unknown(row), row.health) == (KNOWN, "ok")
        assert row.notes
