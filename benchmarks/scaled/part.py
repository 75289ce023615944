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
        f"A user with one request takes {memory['bytes_per_user']:.0f} bytes: all {kept['users']:,} users "
        f"{memory['all_users_gb']:.1f} GB. At 20,000 requests/s with a window of a minute "
        f"{memory['active_users_even']:,} users are counted at a time if all are alike "
        f"({memory['active_gb_even']:.2f} GB), and {memory['active_users_skewed']:,} if the n-th has a share "
        "of 1/n.\n\n"
        f"A cluster of three needs {three / one:.1f} times the processor time per check in all "
        f"({three:.1f} µs instead of {one:.1f} µs at 64 requests of one process at a time), since a call is "
        f"divided by partition. The busiest node has {kept['cluster']['three']['busiest_share']:.0%} of it.\n"
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


def partition_part(kept: Mapping[str, Any]) -> str:
    """Render the partition."""
    cut = kept["partition"]
    return (
        "300 of 1,000 processes lose the network to Redis for three seconds, at 10,000 requests/s, a fifth "
        f"of them of one user. All notice, and a request waits {cut['wait_p99_ms']:.0f} ms at most. The user "
        f"that sends most gets {cut['hot_admitted']:.2f} times its limit in that minute, and the user that "
        f"gains most {cut['most_admitted']:.2f} times. {cut['recovery_s']:.2f} s after the network is back "
        f"all processes check with Redis again.\n{_source(kept)}"
    )


def _source(kept: Mapping[str, Any]) -> str:
    return f"\n`benchmarks/redis_scale.py`, {kept['server']['version']}: {line(kept)}.\n"
