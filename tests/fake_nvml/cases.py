"""What the NVML provider does in every case the library can make, told once for both fakes.

The cases run over the plain object in the test process, and over the compiled library in its own.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import pynvml
import pytest

from autoglm_throttle.gpu.nvml.provider import NvmlProvider
from autoglm_throttle.gpu.select import providers
from autoglm_throttle.settings.groups.gpu import GpuSettings
from autoglm_throttle.types import GpuSample, ProviderMisconfigured, ProviderUnavailable
from autoglm_throttle.types.errors import NoSourceError, NotPresentError

UUID = "GPU-00000000-0000-0000-0000-{:012d}"
MIG_UUID = "MIG-00000000-0000-0000-0000-{:012d}"
PATIENCE_S = 60.0


class World(Protocol):
    """A fake library and a clock moved by hand."""

    now: float

    def set(self, **keys: int) -> None:
        """Set keys of the state; ``g`` is the global device, ``d0_gpu`` is key ``gpu`` of device 0."""
        ...

    def opened(self) -> int: ...
    def references(self) -> int: ...
    def samples(self) -> int:
        """GPM samples that were allocated and not freed."""
        ...


def state_key(name: str) -> tuple[int, str]:
    device, _, key = name.partition("_")
    return -1 if device == "g" else int(device[1:]), key


def provider(world: World, *devices: str, environ: Mapping[str, str] | None = None) -> NvmlProvider:
    return NvmlProvider(devices, environ=environ or {}, clock=lambda: world.now)


def raised(kind: type[Exception], call: Callable[[], object]) -> str:
    with pytest.raises(kind) as caught:
        call()
    assert caught.type is kind, f"{caught.type.__name__} is not {kind.__name__}"
    return str(caught.value)


def devices(rows: Any) -> list[str]:
    return [row.device for row in rows]


def case_every_number_of_a_card(world: World) -> None:
    world.set(
        d0_gpu=92, d0_mem=30, d0_total=80 << 30, d0_used=60 << 30, d0_reserved=1 << 30, d0_power_mw=612_500,
        d0_limit_mw=400_000, d0_limit_default_mw=700_000, d0_temp=71, d0_smclk=1755, d0_smclk_max=1980,
    )  # fmt: skip
    (row,) = provider(world).read()
    assert row == GpuSample(
        device=UUID.format(0),
        index=0,
        taken_at_s=1000.0,
        source="nvml",
        name="Fake GPU 0",
        utilization_pct=92,
        memory_busy_pct=30,
        memory_used_bytes=60 << 30,
        memory_total_bytes=80 << 30,
        power_w=612.5,
        power_limit_w=400.0,
        power_limit_default_w=700.0,
        temperature_c=71,
        sm_clock_mhz=1755,
        sm_clock_max_mhz=1980,
        energy_j=0.0,
        temperature_margin_c=45,
        throttle=frozenset(),
        throttled_ns=0,
        nvlink_tx_bytes=0,
        nvlink_rx_bytes=0,
        nvlink_errors=0,
        pcie_tx_bytes=0,
        pcie_rx_bytes=0,
    )


def case_the_library_is_opened_once_and_closed_once(world: World) -> None:
    source = provider(world)
    for _ in range(3):
        source.read()
    assert (world.opened(), world.references()) == (1, 1)
    source.close()
    source.close()
    assert world.references() == 0
    source.read()
    assert world.opened() == 2


def case_the_old_structs_are_used_where_the_new_ones_are_not(world: World) -> None:
    for code in (25, 13):
        world.set(d0_used=10, d0_reserved=5, d0_temp=66, d0_err_memory=code, d0_err_temp=code)
        source = provider(world)
        for _ in range(2):
            (row,) = source.read()
            assert (row.memory_used_bytes, row.temperature_c, row.health, row.notes) == (15, 66, "ok", ())
        source.close()


def case_a_passing_error_is_one_unknown_number(world: World) -> None:
    world.set(d0_gpu=50, d0_err_limit_mw=999, d0_err_clock=4)
    source = provider(world)
    (row,) = source.read()
    assert (row.health, row.power_limit_w, row.sm_clock_mhz, row.utilization_pct) == (
        "degraded",
        None,
        None,
        50,
    )
    assert {note.split(":")[0] for note in row.notes} == {
        "nvmlDeviceGetEnforcedPowerLimit",
        "nvmlDeviceGetClockInfo",
    }
    world.set(d0_err_limit_mw=0, d0_err_clock=0)
    (row,) = source.read()
    assert (row.health, row.power_limit_w, row.notes) == ("ok", 700.0, ())


def case_a_lost_card_is_lost_and_the_others_go_on(world: World) -> None:
    for code in (15, 16, 28):
        world.set(g_count=3, d2_gpu=70, d1_err=0)
        source = provider(world)
        assert [row.health for row in source.read()] == ["ok"] * 3
        world.set(d1_err=code)
        rows = source.read()
        assert [row.health for row in rows] == ["ok", "lost", "ok"]
        assert devices(rows) == [UUID.format(n) for n in range(3)]
        assert (rows[1].utilization_pct, rows[1].memory_total_bytes, rows[2].utilization_pct) == (
            None,
            None,
            70,
        )
        assert rows[1].notes
        source.close()


def case_a_lost_card_is_looked_up_again_once_a_minute(world: World) -> None:
    world.set(g_count=2)
    source = provider(world)
    source.read()
    world.set(d1_err=15)
    source.read()
    world.set(d1_err=0)
    world.now += 59.0
    assert source.read()[1].health == "lost"
    world.now += 2.0
    assert source.read()[1].health == "ok"
    world.set(d1_err=15)
    source.read()
    world.now += 61.0
    assert source.read()[1].health == "lost"
    world.set(d1_err=0, d1_uuid=7)
    world.now += 61.0
    (_, row) = source.read()
    assert (row.health, row.device) == ("lost", UUID.format(1)), "another card is at its place"
    world.set(d1_uuid=1, d1_err_handle=3)
    world.now += 61.0
    assert source.read()[1].health == "lost", "a look-up without an answer"
    assert world.opened() == 1


def case_all_lost_is_told_and_not_raised(world: World) -> None:
    source = provider(world)
    source.read()
    world.set(d0_err=15)
    (row,) = source.read()
    assert row.health == "lost"


def case_a_card_lost_before_the_start_has_a_stand_in_name(world: World) -> None:
    world.set(g_count=2, d0_err_handle=15)
    source = provider(world)
    rows = source.read()
    assert [(row.device, row.health) for row in rows] == [("index-0", "lost"), (UUID.format(1), "ok")]


def case_a_card_lost_at_a_later_opening_keeps_its_name(world: World) -> None:
    world.set(g_count=2)
    source = provider(world)
    source.read()
    source.close()
    world.set(d0_err_handle=15)
    rows = source.read()
    assert [(row.device, row.health) for row in rows] == [(UUID.format(0), "lost"), (UUID.format(1), "ok")]
    world.set(d0_err_handle=0)
    world.now += 61.0
    assert [row.health for row in source.read()] == ["ok", "ok"]


def case_one_odd_card_at_the_opening_does_not_cost_the_others(world: World) -> None:
    world.set(g_count=2, d0_err_uuid=999)
    rows = provider(world).read()
    assert [row.health for row in rows] == ["lost", "ok"]


def case_cards_of_another_job_are_left_out(world: World) -> None:
    world.set(g_count=3, d0_err_handle=4, d2_err_handle=4)
    assert devices(provider(world).read()) == [UUID.format(1)]


def case_no_permission_at_all_is_unavailable_with_the_remedy(world: World) -> None:
    world.set(g_count=2, d0_err_handle=4, d1_err_handle=4)
    assert "utility" in raised(ProviderUnavailable, provider(world).read)


def case_no_driver_and_no_library_are_not_present(world: World) -> None:
    for code, said in ((9, "not loaded"), (12, "not found")):
        world.set(g_err_init=code)
        assert said in raised(NotPresentError, provider(world).read)


def case_no_card_is_not_present(world: World) -> None:
    world.set(g_count=0)
    assert "lists no GPU" in raised(NotPresentError, provider(world).read)


def case_a_mismatch_and_a_lost_cgroup_heal(world: World) -> None:
    source = provider(world)
    world.set(g_err_init=18)
    assert "reboot" in raised(ProviderUnavailable, source.read)
    world.set(g_err_init=0)
    source.read()
    world.set(d0_err=999)
    assert "daemon-reload" in raised(ProviderUnavailable, source.read)
    source.close()
    assert "daemon-reload" in raised(ProviderUnavailable, source.read), "at the look-up, too"
    world.set(d0_err=0)
    assert source.read()[0].health == "ok"
    source.close()
    assert world.references() == 0, "an opening that failed half-way leaves nothing behind"


def case_an_error_of_the_count_is_unavailable(world: World) -> None:
    world.set(g_err_count=17)
    raised(ProviderUnavailable, provider(world).read)


def case_somebody_else_shut_the_library_down(world: World) -> None:
    source = provider(world)
    source.read()
    world.set(d0_gpu=33)
    pynvml.nvmlShutdown()
    assert source.read()[0].utilization_pct == 33
    assert world.opened() == 2
    world.set(d0_err=1)
    assert "again and again" in raised(ProviderUnavailable, source.read)


def case_a_close_that_fails_is_no_matter(world: World) -> None:
    source = provider(world)
    source.read()
    pynvml.nvmlShutdown()
    source.close()


def case_devices_by_index_and_uuid(world: World) -> None:
    world.set(g_count=3)
    assert devices(provider(world, "2", UUID.format(0)).read()) == [UUID.format(2), UUID.format(0)]


def case_an_unknown_device_lists_the_present_ones(world: World) -> None:
    world.set(g_count=2, d1_mig=1, d1_mig_count=1)
    said = raised(ProviderMisconfigured, provider(world, "0", "GPU-ffff", "9").read)
    present = f"0 = {UUID.format(0)}, 1 = {UUID.format(1)}, {MIG_UUID.format(200)}"
    assert said == f"no such GPU: GPU-ffff, 9; present are {present}"


def case_a_named_device_that_goes_later_is_a_loss(world: World) -> None:
    world.set(g_count=2)
    source = provider(world, "1", "0")
    source.read()
    source.close()
    world.set(g_count=1)
    assert devices(source.read()) == [UUID.format(0)]


def case_cuda_visible_devices_choose(world: World) -> None:
    world.set(g_count=3, d0_bus=9)
    chosen = provider(world, environ={"CUDA_VISIBLE_DEVICES": "0"})
    assert devices(chosen.read()) == [UUID.format(1)], "PCI order"
    ours = provider(world, "0", environ={"CUDA_VISIBLE_DEVICES": "1"})
    assert devices(ours.read()) == [UUID.format(0)], "our own list comes first"
    for value in ("", "-1"):
        hidden = provider(world, environ={"CUDA_VISIBLE_DEVICES": value})
        assert "names none of the 3" in raised(NotPresentError, hidden.read)


def case_indexes_of_different_cards_are_a_guess(world: World) -> None:
    world.set(g_count=2, d1_model=1)
    assert devices(provider(world, environ={"CUDA_VISIBLE_DEVICES": "1"}).read()) == [UUID.format(1)]


def case_a_card_without_name_and_address_is_read(world: World) -> None:
    world.set(d0_err_name=3, d0_err_pci=13)
    (row,) = provider(world).read()
    assert (row.name, row.health) == ("", "ok")


def case_mig_gives_one_row_per_instance(world: World) -> None:
    world.set(
        g_count=2, d0_mig=1, d0_mig_count=2, d0_temp=55, d0_gpu=99, d100_total=10 << 30, d100_used=1 << 30,
        d101_total=20 << 30, d101_used=2 << 30,
    )  # fmt: skip
    rows = provider(world).read()
    assert [(row.device, row.index, row.kind) for row in rows] == [
        (MIG_UUID.format(100), 100, "mig"),
        (MIG_UUID.format(101), 101, "mig"),
        (UUID.format(1), 1, "gpu"),
    ]
    assert [row.gpu_instance for row in rows] == [f"{UUID.format(0)}/1", f"{UUID.format(0)}/2", ""]
    first = rows[0]
    assert (first.memory_used_bytes, first.memory_total_bytes, first.temperature_c) == (1 << 30, 10 << 30, 55)
    assert first.utilization_pct is first.power_w is None
    assert first.notes == ("utilization and power are not reported per MIG instance",)
    assert first.health == "ok"


def case_what_shares_its_part_of_a_card_or_does_not_tell_it_has_none_to_itself(world: World) -> None:
    world.set(d0_mig=1, d0_mig_count=4, d100_gi=7, d101_gi=7, d102_gi=9, d102_ci=1, d103_err_gi=3)
    rows = provider(world).read()
    assert [row.gpu_instance for row in rows] == ["", "", f"{UUID.format(0)}/9", ""]


def case_mig_instances_by_uuid_and_by_the_older_form(world: World) -> None:
    world.set(d0_mig=1, d0_mig_count=3)
    for entry in (MIG_UUID.format(101), f"MIG-{UUID.format(0)}/2/0"):
        assert devices(provider(world, entry).read()) == [MIG_UUID.format(101)]
        assert devices(provider(world, environ={"CUDA_VISIBLE_DEVICES": entry}).read()) == [
            MIG_UUID.format(101)
        ]


def case_mig_without_instances_is_not_present(world: World) -> None:
    world.set(d0_mig=1)
    assert "no instance" in raised(NotPresentError, provider(world).read)


def case_a_mig_instance_that_is_destroyed_is_lost(world: World) -> None:
    world.set(d0_mig=1, d0_mig_count=2)
    source = provider(world)
    source.read()
    world.set(d101_err=6)
    assert [row.health for row in source.read()] == ["ok", "lost"]
    world.set(d101_err=0)
    world.now += 61.0
    assert [row.health for row in source.read()] == ["ok", "ok"]


def case_a_divided_card_that_falls_off_loses_its_instances(world: World) -> None:
    world.set(g_count=2, d0_mig=1, d0_mig_count=2)
    source = provider(world)
    before = devices(source.read())
    source.close()
    world.set(d0_err_handle=15)
    rows = source.read()
    assert devices(rows) == before
    assert [(row.health, row.kind) for row in rows] == [("lost", "mig"), ("lost", "mig"), ("ok", "gpu")]


def case_an_error_in_the_question_for_mig_is_that_of_the_card(world: World) -> None:
    world.set(g_count=2, d0_err_mig=15)
    assert [row.health for row in provider(world).read()] == ["lost", "ok"]


def case_forget_makes_no_call(world: World) -> None:
    source = provider(world)
    source.read()
    source.reset_after_fork()
    assert world.references() == 1
    source.close()
    assert world.references() == 1, "what is forgotten is not closed"
    assert repr(source) == "NvmlProvider(not open)"
    source.read()
    assert UUID.format(0) in repr(source)


def case_a_child_opens_for_itself(world: World) -> None:
    source = provider(world)
    source.read()
    opened = world.opened()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            rows = source.read()
            said = f"{rows[0].health} {world.opened() - opened} {world.references()}"
        except BaseException:  # noqa: BLE001 - it travels through the pipe
            said = traceback.format_exc()
        os.write(write_end, said.encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    assert said == "ok 1 1", said
    assert source.read()[0].health == "ok"


def case_automatic_choice_finds_the_card_or_nothing(world: World) -> None:
    world.set(g_err_init=9)
    (auto,) = providers(GpuSettings(), clock=lambda: world.now)
    assert "not loaded" in raised(NoSourceError, auto.read)
    world.set(g_err_init=0)
    assert devices(auto.read()) == [UUID.format(0)]
    assert auto.name == "nvml"
    auto.close()
