"""The tables of the page about more than one Redis, made from the record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.harness import line


def server_part(kept: Mapping[str, Any]) -> str:
    """Render the time of a server's thread, and the memory of users."""
    server, memory, idle_us = kept["server"], kept["memory"], kept["alike"]["real_server_us"]
    each = {size: server[f"us_per_check_{size}"] for size in (1, 4, 16, 64)}
    rows = "".join(
        f"| {size} | {took_us:.1f} µs | {1e6 / took_us:,.0f} |\n" for size, took_us in each.items()
    )
    one, three = (kept["cluster"][name]["server_us"] for name in ("one", "three"))
    return (
        "| checks in a call | time of a check | checks/s of one thread |\n|---|---|---|\n"
        f"{rows}\n"
        f"A call takes {server['call_us']:.0f} µs and {server['check_us']:.1f} µs for each check in it. That "
        f"is under load: a server with little to do takes {idle_us:.0f} µs for a call of one check, most "
        "of it to wake up.\n\n"
        f"A user with one request takes {memory['bytes_per_user']:.0f} bytes, measured with 100,000 users. "
        f"{kept['users']:,} users take {memory['all_users_gb']:.1f} GB at that rate. Only users with a "
        "request within the window have a key. With a window of a minute and 20,000 requests/s these are "
        f"{memory['active_users_even']:,} if all users send as much ({memory['active_gb_even']:.2f} GB), and "
        f"{memory['active_users_skewed']:,} if the n-th sends 1/n of the first.\n\n"
        "A call with users of several partitions is divided among the nodes of a cluster. With 64 requests "
        f"of one process at a time a check takes {three:.1f} µs of all three nodes, {three / one:.1f} times "
        f"that of one server ({one:.1f} µs). The busiest node has "
        f"{kept['cluster']['three']['busiest_share']:.0%} of the load.\n"
        f"{_source(kept)}"
    )


def load_part(kept: Mapping[str, Any]) -> str:
    """Render the loads in virtual time."""
    return (
        "| processes | nodes | requests | calls/s | checks in a call | busiest node | p99 | without Redis |\n"
        f"|---|---|---|---|---|---|---|---|\n{''.join(map(_load_row, kept['loads']))}{_source(kept)}"
    )


def _load_row(row: Mapping[str, Any]) -> str:
    processes, nodes, rate_rps, users, _ = row["case"]
    return (
        f"| {processes:,} | {nodes} | {rate_rps:,.0f}/s{' of skewed users' if users == 'skewed' else ''} | "
        f"{row['calls_per_s']:,.0f} | {row['checks_per_call']:.1f} | {row['busiest_node']:.0%} | "
        f"{row['wait_p99_ms']:.2f} ms | {row['decided_locally']:.1%} |\n"
    )


def lease_part(kept: Mapping[str, Any]) -> str:
    """Render the leases of fleets."""
    rows = "".join(
        f"| {row['processes']:,} | {row['load']:g} times the rate{_skew(row)} | {row['calls_per_s']:,.0f} | "
        f"{row['calls_per_request']:.2f} | {row['admitted_over_exact']:.3f} |\n"
        for row in kept["leases"]
    )
    return (
        "| processes | load | calls/s | calls for a request | admitted, of one exact bucket |\n"
        f"|---|---|---|---|---|\n{rows}{_source(kept)}"
    )


def _skew(row: Mapping[str, Any]) -> str:
    return "" if row["share_of_first"] is None else f", {row['share_of_first']:.0%} of it in one process"


def partition_part(kept: Mapping[str, Any], shared: Mapping[str, Any]) -> str:
    """Render the partition, and the failover in the record of shared limits."""
    cut, failover = kept["partition"], shared["failure"]["failover"]
    return (
        "300 of 1,000 processes lose the network to Redis for three seconds, at 10,000 requests/s, a fifth "
        "of them of one user. All 300 then decide without Redis. A request waits "
        f"{cut['wait_p99_ms']:.0f} ms at most. The user that sends most gets {cut['hot_admitted']:.2f} times "
        f"its limit in that minute, and the user that gains most {cut['most_admitted']:.2f} times. "
        f"{cut['recovery_s']:.2f} s after the network is back all processes check with Redis again.\n"
        f"{_source(kept)}\n"
        "When a Sentinel promotes a replica, the slowest decision takes "
        f"{failover['slowest_ms']:.1f} ms, and checks are shared again after {failover['recovery_s']:.2f} s. "
        "Units that were not replicated yet are lost, which admits a few requests more.\n\n"
        f"`benchmarks/redis.py`, {shared['server']}: {line(shared)}.\n"
    )


def _source(kept: Mapping[str, Any]) -> str:
    return f"\n`benchmarks/redis_scale.py`, {kept['server']['version']}: {line(kept)}.\n"
