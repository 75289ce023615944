"""The simulation of many processes on one store: its server, and a small load and partition."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks import redis_scale
from benchmarks.scaled import crowds
from benchmarks.scaled.simulated_redis import Client, Cost, Node, user_text

COST = Cost(call_s=20e-6, check_s=5e-6)


def test_calls_of_one_instant_are_served_one_by_one() -> None:
    node = Node(COST)

    async def run() -> float:
        began_s = asyncio.get_running_loop().time()
        arguments = (b"1", b"l", b"2", b"60000000")
        calls = [node.call([b"a", b"b"], arguments) for _ in range(10)]
        await asyncio.gather(*calls)
        return asyncio.get_running_loop().time() - began_s

    assert crowds.in_virtual_time(run) == pytest.approx(10 * 30e-6 + 2 * 0.0001, rel=0.01)
    assert (node.calls, node.checks) == (10, 20)


def test_the_simulated_windows_admit_exactly_the_limit() -> None:
    async def run() -> list[int]:
        node = Node(COST)
        replies = [await node.call([b"a"], (b"1", b"l", b"3", b"60000000")) for _ in range(5)]
        await asyncio.sleep(60.0)
        replies.append(await node.call([b"a"], (b"1", b"l", b"3", b"60000000")))
        return [reply[1] == 0 for reply in replies]

    assert crowds.in_virtual_time(run) == [True, True, True, False, False, True]


def test_a_load_within_the_capacity_is_decided_by_the_store() -> None:
    for nodes in (1, 3):
        found = crowds.load(COST, 20, nodes, 2000.0, "even", 0.2)
        assert found["decided_locally"] == 0.0
        assert found["checked"] == 1.0
        assert found["wait_p99_ms"] < 1.0


def test_a_load_beyond_the_capacity_is_decided_locally_in_part() -> None:
    found = crowds.load(Cost(call_s=2e-3, check_s=0.0), 20, 1, 2000.0, "even", 0.5)
    assert found["decided_locally"] > 0.5
    assert found["processes_down"] > 0
    assert found["wait_p99_ms"] <= 50.1, "no request waits beyond the deadline"


def test_a_partition_ends_with_all_processes_on_the_store() -> None:
    found = crowds.partition(COST, 20, 6, 500.0, 200.0, 1.0)
    assert found["down_of_cut"] == 1.0
    assert found["decided_locally"] > 0
    assert found["most_before"] <= 1.0 <= found["most_admitted"] <= 1.0 + 6 / 20 + 6 / crowds.LIMIT
    assert 0.0 < found["recovery_s"] <= 1.5


def test_users_of_a_skewed_load_are_fewer() -> None:
    even, skewed = (crowds.active_users(5000.0, 1.0, users) for users in ("even", "skewed"))
    assert skewed < 0.9 * even <= 5000


def test_a_cluster_spreads_its_tags_over_all_nodes() -> None:
    nodes = [Node(COST) for _ in range(3)]
    client = Client(nodes)
    places = [nodes.index(client.node_of(b"athr:x:w2:{%d}:user:l60:" % tag)) for tag in range(16)]
    assert sorted(places.count(place) for place in range(3)) == [5, 5, 6]


def test_identities_are_hexadecimal_and_differ() -> None:
    texts = {user_text(number) for number in range(1000)}
    assert len(texts) == 1000
    assert {len(text) for text in texts} == {16}


def test_leases_save_calls_where_a_process_has_many_requests() -> None:
    busy, idle = redis_scale.leased(2, 0.5, None, 1.0), redis_scale.leased(200, 0.5, None, 1.0)
    assert busy["calls_per_request"] < 0.3 < idle["calls_per_request"]
    assert idle["admitted_over_exact"] == pytest.approx(1.0, abs=0.01)
