"""Four processes as four hosts on a real server: one rate, one view of the GPUs, and one that is killed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

from autoglm_throttle.gpu.aggregate import Aggregator
from autoglm_throttle.settings.groups.gpu import GpuSettings
from autoglm_throttle.store.client import TIMEOUT_S, RedisClients
from autoglm_throttle.store.fleet import fleet_keys
from autoglm_throttle.store.gpu import RemoteGpuProvider
from autoglm_throttle.types import AggregateMode, GpuView
from tests.store import member
from tests.store.polling import until
from tests.store.server import RedisServer, newest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PREFIX = "fleet"
HOSTS = {"127.0.0.2": (90.0, 80), "127.0.0.3": (60.0, 80), "127.0.0.4": (30.0, 40), "127.0.0.5": (50.0, 40)}
"""Utilization and GiB of each; the first is killed."""
BEFORE_S, AFTER_S = 2.5, 2.5
"""Seconds of watching, at least; after the death until it is known, too."""
LEASE_S = 1.0
PATIENCE_S = 60.0
BUSY = 0.5
"""The share of the rate that four processes ask for in time on a busy machine, at least."""


@dataclass
class Story:
    """The records of four processes, of which one was killed."""

    killed_s: float = 0.0
    members: list[tuple[float, int]] = field(default_factory=list)
    views: dict[AggregateMode, list[tuple[float, GpuView]]] = field(default_factory=dict)
    admitted: list[float] = field(default_factory=list)
    start_s: float = 0.0
    end_s: float = 0.0

    def between(self, begin_s: float, end_s: float) -> int:
        """Return how many were admitted."""
        return sum(begin_s <= when < end_s for when in self.admitted)

    def settled(self) -> bool:
        """Whether the death is known: three members are counted, and three devices are seen."""
        (_, members), views = self.members[-1], [seen[-1][1] for seen in self.views.values()]
        return members == 3 and all(view.devices[0].health == "lost" for view in views)


@pytest.fixture(scope="module")
def story() -> Iterator[Story]:
    with RedisServer(newest()) as server:
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.store.member", server.url, PREFIX, host, str(pct), str(gib)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            for host, (pct, gib) in HOSTS.items()
        ]
        try:
            yield told(server, processes)
        finally:
            for process in processes:
                process.kill()
                process.communicate()


def machine_s() -> float:
    """Return the time that all processes share; `time.monotonic` may be that of a young machine here."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def told(server: RedisServer, processes: list[subprocess.Popen[str]]) -> Story:
    story = Story(views={how: [] for how in AggregateMode})
    store = member.store_settings(server.url, PREFIX)
    clients = RedisClients(store)
    reader = RemoteGpuProvider(None, lambda: clients.sync(TIMEOUT_S), "gateway", store, member.GPU)
    aggregators = {how: Aggregator(GpuSettings(gpu_aggregate=how)) for how in AggregateMode}
    key = fleet_keys(store)[0]

    def look() -> None:
        now = machine_s()
        story.members.append((now, server.command("ZCARD", key)))
        rows = reader.read()
        for how, aggregator in aggregators.items():
            story.views[how].append((now, aggregator.update(rows, time.monotonic())))
        time.sleep(0.05)

    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    until(lambda: server.command("ZCARD", key) == 4 and len(reader.read()) == 4, PATIENCE_S, "all four")
    story.start_s = machine_s() + 0.1
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(f"{story.start_s}\n")
        process.stdin.flush()
    while machine_s() < story.start_s + BEFORE_S:
        look()
    processes[0].kill()
    story.killed_s = machine_s()
    while machine_s() < story.killed_s + (AFTER_S if story.settled() else PATIENCE_S):
        look()
    story.end_s = machine_s()
    for process in processes:
        process.kill()
        lines, _ = process.communicate()
        story.admitted += [float(line) for line in lines.splitlines()]
    reader.close()
    return story


def test_together_they_keep_the_rate(story: Story) -> None:
    for end_s in (story.start_s + 0.5, story.killed_s, story.end_s):
        passed_s = end_s - story.start_s
        assert story.between(story.start_s, end_s) <= 1.05 * member.RATE * (member.BURST_S + passed_s)
    seconds = story.killed_s - story.start_s
    assert story.between(story.start_s, story.killed_s) >= BUSY * member.RATE * seconds


def test_one_that_is_killed_takes_no_more_with_it_than_its_lease(story: Story) -> None:
    after_s = story.killed_s + LEASE_S
    assert story.between(after_s, story.end_s) >= BUSY * member.RATE * (story.end_s - after_s)


def test_it_is_counted_for_no_longer_than_a_member_lives(story: Story) -> None:
    assert {count for when, count in story.members if when < story.killed_s} == {4}
    counts = [count for when, count in story.members if when >= story.killed_s]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 3


@pytest.mark.parametrize(
    ("how", "all_four", "three"),
    [
        (AggregateMode.WEIGHTED, 63.333, 50.0),
        (AggregateMode.MEAN, 57.5, 46.667),
        (AggregateMode.MAX, 90.0, 60.0),
    ],
)
def test_the_view_of_all_hosts(story: Story, how: AggregateMode, all_four: float, three: float) -> None:
    told = [(when, round(view.utilization_pct or 0.0, 3)) for when, view in story.views[how]]
    assert {pct for when, pct in told if when < story.killed_s} == {all_four}
    changes = [pct for (_, before), (_, pct) in pairwise(told) if pct != before]
    assert changes == [three], "never anything between, as 0 % would give"


def test_the_weight_of_a_killed_host_leaves_the_capacity(story: Story) -> None:
    views = [view for _, view in story.views[AggregateMode.WEIGHTED]]
    capacities = [view.capacity for view in views]
    assert capacities == sorted(capacities, reverse=True)
    assert capacities[0] == 1.0
    assert capacities[-1] == pytest.approx(160 / 240)
    lost = views[-1].devices[0]
    assert (lost.host, lost.health, lost.utilization_pct) == ("127.0.0.2", "lost", None)
    assert all(view.memory_ratio == 0.5 for view in views)
