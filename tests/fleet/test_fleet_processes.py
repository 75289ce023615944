"""Four processes as four hosts on a real server: one rate, one view of the GPUs, and one that is killed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from autoglm_throttle.gpu.aggregate import Aggregator
from autoglm_throttle.gpu.fleet import TIMEOUT_S, FleetProvider
from autoglm_throttle.limiting.shared.redis_fleet import LIVES_BEATS, FleetRules
from autoglm_throttle.model import Aggregate, GpuView
from autoglm_throttle.redis_client import RedisClients, RedisOptions
from tests.fleet import member
from tests.stores.polling import until
from tests.stores.server import RedisServer, newest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PREFIX = "fleet"
HOSTS = {"127.0.0.2": (90.0, 80), "127.0.0.3": (60.0, 80), "127.0.0.4": (30.0, 40), "127.0.0.5": (50.0, 40)}
"""Utilization and GiB of each; the first is killed."""
BEFORE_S, AFTER_S = 2.5, 3.5
LEASE_S = 1.0
PATIENCE_S = 10.0


@dataclass
class Story:
    """What was seen of four processes, of which one was killed."""

    killed_s: float = 0.0
    members: list[tuple[float, int]] = field(default_factory=list)
    views: dict[Aggregate, list[tuple[float, GpuView]]] = field(default_factory=dict)
    admitted: list[float] = field(default_factory=list)
    start_s: float = 0.0

    def between(self, begin_s: float, end_s: float) -> float:
        """Admitted per second."""
        return sum(begin_s <= when < end_s for when in self.admitted) / (end_s - begin_s)


@pytest.fixture(scope="module")
def story() -> Iterator[Story]:
    with RedisServer(newest()) as server:
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.fleet.member", server.url, PREFIX, host, str(pct), str(gib)],
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


def told(server: RedisServer, processes: list[subprocess.Popen[str]]) -> Story:
    story = Story(views={how: [] for how in Aggregate})
    clients = RedisClients(RedisOptions(server.url))
    reader = FleetProvider(None, lambda: clients.sync(TIMEOUT_S), member.rules(PREFIX, "gateway"))
    aggregators = {how: Aggregator(how) for how in Aggregate}
    key = FleetRules(PREFIX, member.SERVICE).keys[0]

    def look() -> None:
        now = time.monotonic()
        story.members.append((now, server.command("ZCARD", key)))
        rows = reader.read()
        for how, aggregator in aggregators.items():
            story.views[how].append((now, aggregator.update(rows, now)))
        time.sleep(0.05)

    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    until(lambda: server.command("ZCARD", key) == 4 and len(reader.read()) == 4, PATIENCE_S, "all four")
    story.start_s = time.monotonic() + 0.1
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(f"{story.start_s}\n")
        process.stdin.flush()
    while time.monotonic() < story.start_s + BEFORE_S:
        look()
    processes[0].kill()
    story.killed_s = time.monotonic()
    while time.monotonic() < story.killed_s + AFTER_S:
        look()
    for process in processes:
        process.kill()
        lines, _ = process.communicate()
        story.admitted += [float(line) for line in lines.splitlines()]
    reader.close()
    return story


def test_together_they_keep_the_rate(story: Story) -> None:
    settled = story.start_s + 0.5  # the burst is over
    assert story.between(settled, story.killed_s) == pytest.approx(member.RATE, rel=0.05)
    first = sum(when < settled for when in story.admitted)
    assert first <= (member.RATE * (member.BURST_S + 0.5)) * 1.05


def test_one_that_is_killed_takes_no_more_with_it_than_its_lease(story: Story) -> None:
    after = story.killed_s + LEASE_S
    assert story.between(after, story.killed_s + AFTER_S - 0.1) == pytest.approx(member.RATE, rel=0.05)


def test_it_is_counted_for_no_longer_than_a_member_lives(story: Story) -> None:
    gone_s = story.killed_s + LIVES_BEATS * member.HEARTBEAT_S + member.HEARTBEAT_S
    assert {count for when, count in story.members if when < story.killed_s} == {4}
    assert {count for when, count in story.members if when > gone_s} == {3}


@pytest.mark.parametrize(
    ("how", "all_four", "three"),
    [(Aggregate.WEIGHTED, 63.333, 50.0), (Aggregate.MEAN, 57.5, 46.667), (Aggregate.MAX, 90.0, 60.0)],
)
def test_the_view_of_all_hosts(story: Story, how: Aggregate, all_four: float, three: float) -> None:
    views = story.views[how]
    lost_s = story.killed_s + member.STALE_S + 3 * member.INTERVAL_S
    told = [(when, round(view.utilization_pct or 0.0, 3)) for when, view in views]
    assert {pct for when, pct in told if when < story.killed_s} == {all_four}
    assert {pct for when, pct in told if when > lost_s} == {three}
    assert {pct for _, pct in told} == {all_four, three}, "never anything between, as 0 % would give"


def test_the_weight_of_a_killed_host_leaves_the_capacity(story: Story) -> None:
    views = [view for _, view in story.views[Aggregate.WEIGHTED]]
    capacities = [view.capacity for view in views]
    assert capacities == sorted(capacities, reverse=True)
    assert capacities[0] == 1.0
    assert capacities[-1] == pytest.approx(160 / 240)
    lost = views[-1].devices[0]
    assert (lost.host, lost.health, lost.utilization_pct) == ("127.0.0.2", "lost", None)
    assert all(view.memory_ratio == 0.5 for view in views)
