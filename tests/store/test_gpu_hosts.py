"""Other hosts: valid for a while, then lost, never idle; left out if unknown."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.gpu.aggregate import Aggregator
from autoglm_throttle.settings.groups.gpu import GpuSettings
from autoglm_throttle.store.gpu import FORGET_S, MOST_HOSTS, STALE_LEAST_S, HostTable
from autoglm_throttle.store.gpu_payload import Publication
from autoglm_throttle.types import AggregateMode, GpuSample

GIB = 2**30


def gpu(
    host: str, index: int = 0, pct: float = 90.0, *, age_s: float = 0.0, memory: int = 80 * GIB
) -> GpuSample:
    return GpuSample(
        device=f"{host}/GPU-{index}",
        index=index,
        host=host,
        taken_at_s=-age_s,
        source="fleet",
        utilization_pct=pct,
        memory_total_bytes=memory,
    )


def published(*rows: GpuSample, interval_s: float = 1.0) -> Publication:
    return interval_s, rows


def two_hosts(now: float = 100.0) -> HostTable:
    hosts = HostTable()
    hosts.record_answer(now)
    for name in "ab":
        hosts.receive(name, 0.5, published(gpu(name)), now)
    return hosts


def health(hosts: HostTable, now: float) -> dict[str, str]:
    return {row.device: row.health for row in hosts.rows(now)}


def test_row_age_is_publication_plus_reading_age() -> None:
    hosts = HostTable()
    hosts.receive("a", 0.5, published(gpu("a", age_s=0.25)), 100.0)
    assert [row.taken_at_s for row in hosts.rows(100.0)] == [99.25]


def test_row_read_twice_is_one_measurement() -> None:
    hosts = HostTable()
    hosts.receive("a", 0.25, published(gpu("a")), 100.0)
    hosts.receive("a", 1.249, published(gpu("a")), 101.0)  # the way to the store and back took longer or less
    assert [row.taken_at_s for row in hosts.rows(101.0)] == [99.75]
    hosts.receive("a", 1.74, published(gpu("a", pct=91.0)), 101.5)
    assert [row.taken_at_s for row in hosts.rows(101.5)] == [99.76], "other values are another measurement"
    hosts.receive("a", 0.26, published(gpu("a", pct=91.0)), 101.5)
    assert [row.taken_at_s for row in hosts.rows(101.5)] == [101.24], "so are the same ones an interval later"


def test_row_is_new_at_rate_of_publication_or_measurement() -> None:
    hosts = HostTable()
    slow = replace(gpu("a", 1, age_s=20.0), period_s=30.0)
    hosts.receive("a", 0.0, published(gpu("a"), slow, interval_s=2.0), 100.0)
    assert {row.index: row.period_s for row in hosts.rows(100.0)} == {0: 2.0, 1: 30.0}
    assert health(hosts, 100.0) == {"a/GPU-0": "ok", "a/GPU-1": "ok"}
    hosts.receive("a", 0.0, published(gpu("a"), replace(slow, taken_at_s=-75.0), interval_s=2.0), 108.0)
    assert health(hosts, 108.0)["a/GPU-1"] == "ok"
    hosts.receive("a", 0.0, published(gpu("a"), replace(slow, taken_at_s=-75.1), interval_s=2.0), 109.0)
    assert health(hosts, 109.0)["a/GPU-1"] == "lost"


def test_a_silent_host_is_believed_then_lost_then_forgotten() -> None:
    hosts = two_hosts()
    hosts.receive("b", 0.0, published(gpu("b")), 104.0)
    silent = 100.0 - 0.5
    assert health(hosts, silent + STALE_LEAST_S)["a/GPU-0"] == "ok"
    late = silent + STALE_LEAST_S + 0.01
    assert health(hosts, late) == {"a/GPU-0": "lost", "b/GPU-0": "ok"}
    (row,) = (row for row in hosts.rows(late) if row.host == "a")
    assert (row.utilization_pct, row.memory_total_bytes) == (None, None), "unknown, never 0"
    assert "silent for 4 s" in row.notes[0]
    assert health(hosts, silent + FORGET_S)["a/GPU-0"] == "lost"
    assert "a/GPU-0" not in health(hosts, silent + FORGET_S + 0.01)


def test_a_host_with_a_long_interval_is_believed_for_longer() -> None:
    hosts = HostTable()
    hosts.record_answer(0.0)
    hosts.receive("a", 0.0, published(gpu("a"), interval_s=10.0), 100.0)
    assert health(hosts, 140.0) == {"a/GPU-0": "ok"}
    assert health(hosts, 140.1) == {"a/GPU-0": "lost"}


def test_for_how_long_can_be_said() -> None:
    hosts = HostTable(stale_after_s=8.0)
    hosts.record_answer(0.0)
    hosts.receive("a", 0.0, published(gpu("a")), 100.0)
    assert health(hosts, 108.0) == {"a/GPU-0": "ok"}
    assert health(hosts, 108.1) == {"a/GPU-0": "lost"}


def test_a_row_that_its_host_does_not_read_any_more_is_lost() -> None:
    hosts = HostTable()
    hosts.receive("a", 0.0, published(gpu("a", age_s=3.9), gpu("a", 1, age_s=4.1)), 100.0)
    assert health(hosts, 100.0) == {"a/GPU-0": "ok", "a/GPU-1": "lost"}


def test_device_unlisted_by_its_host_is_lost_then_removed() -> None:
    hosts = HostTable()
    hosts.receive("a", 0.0, published(gpu("a"), gpu("a", 1)), 100.0)
    hosts.receive("a", 0.0, published(gpu("a")), 101.0)
    assert health(hosts, 101.0) == {"a/GPU-0": "ok", "a/GPU-1": "lost"}
    hosts.receive("a", 0.0, published(gpu("a")), 100.0 + FORGET_S + 1)
    assert health(hosts, 100.0 + FORGET_S + 1) == {"a/GPU-0": "ok"}


def test_remote_rows_are_left_out_during_store_outage() -> None:
    hosts = two_hosts()
    hosts.record_failure()
    assert len(hosts.rows(102.0)) == 2, "believed as long as ever"
    assert hosts.rows(110.0) == []
    hosts.record_answer(120.0)
    assert hosts.rows(120.1) == [], "they had no way to tell us; give them their four seconds"
    hosts.receive("b", 0.0, published(gpu("b")), 121.0)
    hosts.record_answer(124.1)
    assert health(hosts, 124.1) == {"a/GPU-0": "lost", "b/GPU-0": "ok"}


def test_foreign_rows_in_store_do_not_fill_memory() -> None:
    hosts = HostTable()
    for number in range(MOST_HOSTS + 5):
        hosts.receive(str(number), 0.0, published(gpu(str(number))), 100.0)
    assert len(hosts.rows(100.0)) == MOST_HOSTS
    hosts.receive("0", 0.0, published(gpu("0", pct=7.0)), 101.0)
    assert hosts.rows(101.0)[0].utilization_pct == 7.0


def test_lost_host_lowers_capacity_but_not_without_store() -> None:
    local = GpuSample(
        device="GPU-l",
        index=0,
        taken_at_s=103.0,
        source="test",
        utilization_pct=60.0,
        memory_total_bytes=40 * GIB,
    )
    hosts = two_hosts()
    view = Aggregator(GpuSettings())
    assert view.update([local, *hosts.rows(100.0)], 100.0).utilization_pct == 84.0
    hosts.receive("b", 0.0, published(gpu("b", pct=50.0)), 104.0)
    seen = view.update([local, *hosts.rows(104.0)], 104.0)
    assert (seen.capacity, seen.utilization_pct) == (0.6, 60 * 40 / 120 + 50 * 80 / 120)
    hosts.record_failure()
    seen = view.update([replace(local, taken_at_s=110.0), *hosts.rows(110.0)], 110.0)
    assert (seen.capacity, seen.utilization_pct, len(seen.devices)) == (1.0, 60.0, 1)


heights = st.lists(st.tuples(st.floats(0.0, 100.0), st.integers(1, 2**40)), min_size=2, max_size=6)


@given(heights, st.sampled_from(AggregateMode), st.data())
def test_vanished_host_lowers_capacity_and_is_never_idle(
    fleet: list[tuple[float, int]], how: AggregateMode, data: st.DataObject
) -> None:
    hosts, view = HostTable(), Aggregator(GpuSettings(gpu_aggregate=how))
    hosts.record_answer(0.0)
    everybody = {f"h{n}": gpu(f"h{n}", pct=pct, memory=memory) for n, (pct, memory) in enumerate(fleet)}
    silent = data.draw(st.sets(st.sampled_from(sorted(everybody)), min_size=1, max_size=len(everybody) - 1))
    capacity = 1.0
    for tick in range(12):
        now = 100.0 + tick
        for name, row in everybody.items():
            if tick == 0 or name not in silent:
                hosts.receive(name, 0.0, published(row), now)
        seen = view.update(hosts.rows(now), now)
        assert seen.capacity <= capacity
        capacity = seen.capacity
        alive = [row.utilization_pct for name, row in everybody.items() if tick <= 4 or name not in silent]
        assert seen.utilization_pct is not None
        assert min(x for x in alive if x is not None) - 1e-9 <= seen.utilization_pct
    assert capacity < 1.0


def test_a_lost_row_stays_the_same_row() -> None:
    hosts = HostTable()
    hosts.record_answer(0.0)
    dead = replace(gpu("a"), health="lost", notes=("fell off the bus",))
    hosts.receive("a", 0.0, published(dead), 100.0)
    assert hosts.rows(110.0)[0].notes == ("fell off the bus",)
