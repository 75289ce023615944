"""Where one Redis is not enough: its cost per decision, clusters, leases, a thousand processes.

Run: ``python -m benchmarks.redis_scale`` (four minutes). First real servers: the time that a
server's thread takes for calls of 1 to 64 checks, the memory of a user, and a cluster of three. Then virtual
time: the store's client, the limits and the fallback of the package in up to 2,000 processes on a simulated
server, which takes as long for each call as the real one did. All but the server and the network is the
package itself.

A run of 50 processes with the same load on a real server and on the simulated one tells how far the
simulation can be believed. The lease rows use the package's leases with the reference of their script.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import hiredis

from autoglm_throttle import Demand, Priority, Throttle
from autoglm_throttle.store.protocol import script
from benchmarks import harness
from benchmarks.scaled import crowds
from benchmarks.scaled.crowds import LIMIT, USERS, Users
from benchmarks.scaled.simulated_redis import Cost, user_text
from benchmarks.shared import bench as real
from benchmarks.shared import calls, drive
from benchmarks.shared.bars import Bar
from benchmarks.shared.gauge import Gauge
from tests.store import fleet_processes
from tests.store.cluster import Cluster3
from tests.store.server import RedisServer

SIZES: Final = (1, 4, 16, 64)
CONNECTIONS: Final = 64
ROW_S: Final = 1.0
MEMORY_USERS: Final = 100_000
ALIKE: Final = {"processes": 50, "rate_rps": 1500.0, "seconds": 4.0}
FLEET_RPS: Final = 1000.0
CUT: Final = 300  # processes of 1,000 that a partition cuts off

# Processes, nodes, requests a second of all together, who sends them, and for how many seconds.
LOADS: Final[tuple[tuple[int, int, float, Users, float], ...]] = (
    (1, 1, 20_000, "even", 1.0),
    (10, 1, 20_000, "even", 1.0),
    (1000, 1, 20_000, "even", 1.0),
    (1000, 1, 20_000, "skewed", 1.0),
    (1000, 1, 40_000, "even", 0.5),
    (1000, 1, 80_000, "even", 1.0),
    (2000, 1, 80_000, "even", 1.0),
    (10, 1, 80_000, "even", 1.0),
    (1000, 3, 80_000, "even", 0.5),
    (1000, 3, 160_000, "even", 0.25),
    (1000, 6, 160_000, "even", 0.25),
)
CALM: Final = LOADS[2]
CLUSTERED: Final = LOADS[8]
# Processes, load over the rate, and the share of the first process; None: spread evenly.
LEASES: Final[tuple[tuple[int, float, float | None], ...]] = (
    (10, 0.5, None),
    (10, 2.0, None),
    (10, 0.9, 0.9),
    (10, 2.0, 0.9),
    (100, 0.5, None),
    (100, 2.0, None),
    (100, 0.9, 0.9),
    (1000, 0.5, None),
    (1000, 2.0, None),
    (1000, 0.9, 0.9),
)


def server_time(rounds: int) -> dict[str, Any]:
    """Measure the processor time of a server's thread for a call of some checks; the least of all rounds."""
    users = [user_text(number) for number in range(20_000)]
    found: dict[str, Any] = {"connections": CONNECTIONS}
    with RedisServer() as server:
        gauge = Gauge(server)
        for size in SIZES:
            starts = range(0, len(users) - size, size)
            packed = [calls.packed(users[start : start + size], real.LIMIT) for start in starts]
            taken_s = []
            for _ in range(rounds):
                gauge.empty()
                server.command("SCRIPT", "LOAD", script())
                before = gauge.read()
                checks = size * _answered(server.port, itertools.cycle(packed))
                taken_s.append((gauge.read().cpu_s - before.cpu_s) / checks)
            found[f"us_per_check_{size}"] = min(taken_s) * 1e6
        found["version"] = server.binary.name
    one, many = found["us_per_check_1"], found[f"us_per_check_{SIZES[-1]}"]
    found["check_us"] = (many * SIZES[-1] - one) / (SIZES[-1] - 1)
    found["call_us"] = one - found["check_us"]
    return found


def _answered(port: int, packed: Iterator[bytes]) -> int:
    """Count the replies to calls, each of them on a connection of its own, as those of many processes."""
    count, until_s = 0, time.perf_counter() + ROW_S
    with contextlib.ExitStack() as opened:
        address = ("127.0.0.1", port)
        sockets = [opened.enter_context(socket.create_connection(address)) for _ in range(CONNECTIONS)]
        readers = [hiredis.Reader() for _ in sockets]
        while time.perf_counter() < until_s:
            for each in sockets:
                each.sendall(next(packed))
            for each, reader in zip(sockets, readers, strict=True):
                while (reply := reader.gets()) is False:
                    reader.feed(each.recv(65_536))
                if isinstance(reply, hiredis.ReplyError):
                    raise reply
                count += 1
    return count


def memory() -> dict[str, float]:
    """Measure the bytes of a user of one request on a server, and what millions of users would take."""
    with RedisServer() as server:
        server.command("SCRIPT", "LOAD", script())
        gauge = Gauge(server)
        before, batch = gauge.used(), 500
        users = [user_text(number) for number in range(MEMORY_USERS)]
        for start in range(0, MEMORY_USERS, batch):
            server.command(*calls.arguments(users[start : start + batch], real.LIMIT))
        each = (gauge.used() - before) / MEMORY_USERS
    found = {"bytes_per_user": each, "all_users_gb": each * USERS / 1e9}
    kinds: tuple[Users, ...] = ("even", "skewed")
    for users_kind in kinds:
        active = crowds.active_users(20_000.0, 60.0, users_kind)
        found |= {f"active_users_{users_kind}": active, f"active_gb_{users_kind}": active * each / 1e9}
    return found


def on_cluster() -> dict[str, Any]:
    """Measure decisions of one process at a cluster of three and at one server: the time of the servers."""
    found: dict[str, Any] = {}
    with RedisServer() as one, Cluster3() as three:
        for name, url, nodes in (("one", one.url, [one]), ("three", three.url, three.nodes)):
            gauges = [Gauge(node) for node in nodes]
            for node in nodes:
                node.command("SCRIPT", "LOAD", script())
            before = [gauge.read().cpu_s for gauge in gauges]
            tally = asyncio.run(_closed(url))
            spent = [gauge.read().cpu_s - was for gauge, was in zip(gauges, before, strict=True)]
            found[name] = {
                "per_s": tally.per_s,
                "server_us": sum(spent) / tally.decisions * 1e6,
                "busiest_share": max(spent) / sum(spent),
                "rejected": tally.rejected,
            }
    return found


async def _closed(url: str, tasks: int = 64) -> drive.Tally:
    throttle = Throttle(crowds.settings(url, 1), sampling="manual")
    users = iter(range(10**9))

    async def hit(user: str, units: int = 1) -> bool:  # noqa: ARG001
        return bool(await throttle.admit(Demand(Priority.MID, user_text(next(users)))))

    try:
        crowd = crowds.Crowd([throttle])
        await crowd.connected()
        return await drive.closed(hit, itertools.repeat(""), tasks, 3 * ROW_S)
    finally:
        throttle.stop()


def alike(cost: Cost) -> dict[str, float]:
    """Measure the checks per call of the same load on a real server and on the simulated one."""
    processes, rate_rps, seconds = int(ALIKE["processes"]), ALIKE["rate_rps"], ALIKE["seconds"]
    simulated = crowds.load(cost, processes, 1, rate_rps, "even", seconds)
    with RedisServer() as server:
        server.command("SCRIPT", "LOAD", script())
        gauge = Gauge(server)

        async def run() -> tuple[float, float]:
            made = crowds.settings(server.url, processes)
            throttles = [Throttle(made, sampling="manual") for _ in range(processes)]
            crowd = crowds.Crowd(throttles)
            rng = random.Random(1)
            await crowd.connected()
            before, had = gauge.read(), len(crowd.seen.waits_s)
            await crowd.send(rng, rate_rps, seconds, "even")
            after = gauge.read()
            for throttle in throttles:
                throttle.stop()
            requests = len(crowd.seen.waits_s) - had
            return after.sent(before, ("evalsha",)) / requests, (after.cpu_s - before.cpu_s) / requests

        calls_each, cpu_s = asyncio.run(run())
    return {
        "real_calls_per_request": calls_each,
        "simulated_calls_per_request": simulated["calls_per_s"] / rate_rps,
        "real_server_us": cpu_s * 1e6,
        "simulated_server_us": simulated["busiest_node"] / rate_rps * 1e6,
    }


def leased(processes: int, load: float, first: float | None, seconds: float = 5.0) -> dict[str, Any]:
    """Return the calls and the error of a fleet's leases beside one exact bucket."""
    crowd = fleet_processes.Crowd(processes, FLEET_RPS, 1.0)
    crowd.traffic(FLEET_RPS * load, seconds, first)
    crowd.run(seconds)
    admitted = sum(cost for _, cost in crowd.admitted)
    requests = len(crowd.admitted) + crowd.refused
    called = sum(worker.calls for worker in crowd.workers)
    beats = processes * seconds / fleet_processes.HEARTBEAT_S
    return {
        "processes": processes,
        "load": load,
        "share_of_first": first,
        "calls_per_request": called / requests,
        "without_heartbeats": (called - beats) / requests,
        "calls_per_s": called / seconds,
        "admitted_over_exact": admitted / crowd.exact_admitted,
        "peak_over_burst": crowd.peak() / crowd.burst,
    }


def bars(found: Mapping[str, Any]) -> Iterator[Bar]:
    """Compute the bars."""
    same, cut = found["alike"], found["partition"]
    text = "calls per request, simulated over real, 50 processes"
    ratio = same["simulated_calls_per_request"] / same["real_calls_per_request"]
    yield Bar(f"{text}, at most", ratio, 1.1)
    yield Bar(f"{text}, at least", ratio, 0.9, at_most=False)
    server = found["server"]
    for size in SIZES[1:-1]:
        ratio = (server["call_us"] / size + server["check_us"]) / server[f"us_per_check_{size}"]
        yield Bar(f"time of a check in a call of {size}, simulated over real, at most", ratio, 1.2)
        yield Bar(
            f"time of a check in a call of {size}, simulated over real, at least", ratio, 0.8, at_most=False
        )
    rows = {tuple(row["case"]): row for row in found["loads"]}
    yield Bar("1,000 processes, 20,000/s: decided without the store", rows[CALM]["decided_locally"], 0.0)
    text = "1,000 processes on 3 nodes, 80,000/s: decided without the store"
    yield Bar(text, rows[CLUSTERED]["decided_locally"], 0.0)
    yield Bar("most units of a user before the partition, of the limit", cut["most_before"], 1.0)
    # Each process that is cut off has a share of at least one unit.
    most = 1.0 + max(1.0, CUT / LIMIT)
    yield Bar("most units of a user over the partition, of the limit", cut["most_admitted"], most)
    yield Bar("recovery after the partition, s", cut["recovery_s"], 1.5)
    yield Bar(
        "leases: least admitted over exact",
        min(each["admitted_over_exact"] for each in found["leases"]),
        0.99,
        at_most=False,
    )
    yield Bar(
        "leases: most admitted over exact", max(each["admitted_over_exact"] for each in found["leases"]), 1.01
    )
    yield Bar(
        "leases: highest peak over the burst", max(each["peak_over_burst"] for each in found["leases"]), 1.05
    )


def main() -> None:
    """Measure, print and keep the result."""
    options = harness.arguments(__doc__ or "", rounds=3)
    found: dict[str, Any] = {**harness.machine("redis", "hiredis"), "limit": LIMIT, "users": USERS}
    found["server"] = server_time(options.rounds)
    cost = Cost(found["server"]["call_us"] / 1e6, found["server"]["check_us"] / 1e6)
    _show("time of the server's thread", found["server"])
    for name, part in (("memory", memory), ("cluster", on_cluster), ("alike", lambda: alike(cost))):
        found[name] = part()
        _show(name, found[name])
    found["loads"] = []
    for case in LOADS:
        row = crowds.load(cost, *case)
        found["loads"].append({"case": case, **row})
        _show("load", found["loads"][-1])
    found["partition"] = crowds.partition(cost, 1000, CUT, 8000.0, 2000.0, 3.0)
    _show("partition", found["partition"])
    found["leases"] = [leased(*case) for case in LEASES]
    for row in found["leases"]:
        _show("leases", row)
    every = list(bars(found))
    print(*every, sep="\n")
    found["bars"] = [bar.record() for bar in every]
    print(harness.line(found))
    if options.write:
        harness.keep("redis_scale", found)


def _show(name: str, figures: Mapping[str, Any]) -> None:
    texts = (
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in figures.items()
    )
    print(f"{name}: {', '.join(texts)}", flush=True)


if __name__ == "__main__":
    main()
