"""The second tier in nginx beside a plain proxy: CPU time of a request, and the rate of each tier.

Run: ``python -m benchmarks.nginx``. It needs nginx and Linux. One nginx proxies to another one that answers
at once. This process sends requests on 64 connections, and reads the CPU time of the first nginx: of the
fastest round, since others on the machine only add to it. The rates are those of two addresses
that send 1.5 times as much.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from autoglm_throttle import Priority, Settings
from autoglm_throttle.cli.nginx import EdgeConfiguration, edge_tiers, find_nginx
from benchmarks import harness
from benchmarks.shared.bars import Bar
from tests.store.server import free_port

CONNECTIONS = 64
REQUESTS = 50
"""Requests of each connection for a row in each round."""

WARM_UP = 2
SECONDS = 4.0
RATE_RPS = 100.0
ADDRESSES = ("127.0.0.2", "127.0.0.3")
LEAST = 0.85
"""Bar of the throughput of a core over that of the plain proxy."""

REJECTED = 2.0
"""Bar of rejections over proxied responses, for the same CPU time."""

RATE_ERROR = 0.05
ROWS = ("plain", "tier", "limited", "closed")
TITLES = {"plain": "plain proxy", "tier": "with tiers, admitted", "limited": "429", "closed": "503 at tier 0"}
FLAGS = {"tier": "", "limited": "tier0_0001", "closed": "tier0"}
"""Row -> flag in force; that of a limited one has the rate of 1 request/s."""

MAIN = """\
daemon off; master_process off; pid pid; error_log error.log;
events {{ }}
http {{
access_log off;
keepalive_requests 10000000;
client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi;
scgi_temp_path scgi;
{text}
}}
"""
APP = 'server {{ listen 127.0.0.1:{port}; location / {{ return 200 "ok"; }} }}'
# The same without tiers.
PLAIN = """
server {{
    listen 127.0.0.1:{port};
    proxy_http_version 1.1;
    proxy_buffering off;
    proxy_set_header Host $host;
    proxy_set_header X-Forwarded-For $remote_addr;
    proxy_set_header X-Forwarded-Proto $scheme;
    proxy_set_header Upgrade $http_upgrade;
    proxy_set_header Connection $throttle_connection;
    location / {{ proxy_pass http://throttle_service; }}
}}
"""


@dataclass(frozen=True)
class Edge:
    """An nginx with tiers; ports by name."""

    process: int
    flags: Path
    ports: dict[str, int]


@contextlib.contextmanager
def nginx(folder: Path, text: str) -> Iterator[int]:
    """Run one process of nginx; yields its number."""
    folder.mkdir()
    (folder / "nginx.conf").write_text(MAIN.format(text=text))
    command = [
        str(find_nginx()),
        "-p",
        f"{folder}/",
        "-c",
        f"{folder}/nginx.conf",
        "-g",
        "worker_processes 1;",
    ]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30.0
        while not (folder / "pid").exists() or not (folder / "pid").read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"nginx did not start: {(folder / 'error.log').read_text()}")
            time.sleep(0.02)
        yield process.pid
    finally:
        process.terminate()
        process.wait(30)


@contextlib.contextmanager
def edge(**settings: Any) -> Iterator[Edge]:
    """Run an nginx with tiers in front of another one."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        (folder / "flags").mkdir()
        app, tier, plain = free_port(), free_port(), free_port()
        stack.enter_context(nginx(folder / "app", APP.format(port=app)))
        chosen = Settings(policy="tiers", **settings)
        tiers = edge_tiers(chosen, Priority.HIGH)
        made = EdgeConfiguration(chosen, tiers, f"{folder}/flags", [f"127.0.0.1:{app}"], "throttle")
        text = made.text("all", f"127.0.0.1:{tier}") + PLAIN.format(port=plain)
        process = stack.enter_context(nginx(folder / "edge", text))
        yield Edge(process, folder / "flags", {"tier": tier, "plain": plain})


def put(flags: Path, flag: str) -> None:
    """Put a tier in force."""
    for path in flags.iterdir():
        path.unlink()
    if flag:
        (flags / flag).touch()


def cpu_us(process: int) -> float:
    """Read the CPU time of a process, exactly: clock ticks of 10 ms miss what wakes for some microseconds."""
    return int(Path(f"/proc/{process}/schedstat").read_text().split()[0]) / 1e3


def send(port: int, rounds: int) -> None:
    """Send one request on each of many connections, and again after all responses: nginx is never idle.

    Each response is shorter than one segment.
    """
    request = b"GET / HTTP/1.1\r\nhost: edge\r\n\r\n"
    with contextlib.ExitStack() as opened:
        address = ("127.0.0.1", port)
        connections = [opened.enter_context(socket.create_connection(address)) for _ in range(CONNECTIONS)]
        for each in connections:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(rounds):
            for each in connections:
                each.sendall(request)
            for each in connections:
                _receive(each)


def _receive(connection: socket.socket) -> None:
    response, left = b"", -1
    while left:
        response += connection.recv(65_536)
        head, _, body = response.partition(b"\r\n\r\n")
        left = int(head.partition(b"Content-Length: ")[2].partition(b"\r")[0]) - len(body)


def measure_cost(rounds: int) -> dict[str, list[float]]:
    """Return the CPU time of a request in microseconds, of each row in each round."""
    settings: dict[str, Any] = {"rate_high_rps": 1_000_000, "tiers": "85:0.7,90:0.000001,95:0"}
    with edge(**settings) as one:

        def row(name: str) -> float:
            put(one.flags, FLAGS.get(name, ""))
            port = one.ports["plain" if name == "plain" else "tier"]
            send(port, WARM_UP)
            before_us = cpu_us(one.process)
            send(port, REQUESTS)
            return (cpu_us(one.process) - before_us) / (REQUESTS * CONNECTIONS)

        return harness.interleave({name: partial(row, name) for name in ROWS}, rounds)


def _paced(port: int, source: str, rate_rps: float, found: dict[str, float]) -> None:
    admitted, count, pause = 0, int(1.5 * rate_rps * SECONDS), threading.Event()
    connection = http.client.HTTPConnection("127.0.0.1", port, source_address=(source, 0))
    started = time.monotonic()
    for number in range(count):
        pause.wait(max(0.0, started + number / (1.5 * rate_rps) - time.monotonic()))
        connection.request("GET", "/")
        response = connection.getresponse()
        response.read()
        admitted += response.status == 200
    found[source] = admitted / (time.monotonic() - started)
    connection.close()


def measure_rates() -> list[dict[str, float]]:
    """Return the rate that each of two addresses gets at each tier."""
    rows = []
    with edge(rate_high_rps=RATE_RPS) as one:
        for factor, flag in ((1.0, ""), (0.7, "tier70"), (0.4, "tier40")):
            put(one.flags, flag)
            found: dict[str, float] = {}
            clients = [
                threading.Thread(target=_paced, args=(one.ports["tier"], source, factor * RATE_RPS, found))
                for source in ADDRESSES
            ]
            for client in clients:
                client.start()
            for client in clients:
                client.join()
            rows.append(
                {
                    "rate_rps": factor * RATE_RPS,
                    "least_rps": min(found.values()),
                    "most_rps": max(found.values()),
                }
            )
    return rows


def bars(found: Mapping[str, Any]) -> Iterator[Bar]:
    """Compute the bars of a run."""
    us = found["least_us"]
    yield Bar("requests of a core over a plain proxy", us["plain"] / us["tier"], LEAST, at_most=False)
    for name in ("limited", "closed"):
        text = f"rejections ({TITLES[name]}) over proxied responses"
        yield Bar(text, us["tier"] / us[name], REJECTED, at_most=False)
    errors = [abs(row[key] / row["rate_rps"] - 1.0) for row in found["rates"] for key in row]
    yield Bar("error of the rate of an address", max(errors), RATE_ERROR)


def version() -> str:
    """Return the version of nginx."""
    done = subprocess.run([str(find_nginx()), "-v"], capture_output=True, text=True, check=True)
    return done.stderr.strip().rpartition("/")[2]


def main() -> None:
    """Measure, print and write the record."""
    options = harness.arguments(__doc__ or "", rounds=25)
    seen = measure_cost(options.rounds)
    result: dict[str, Any] = {
        **harness.machine(),
        "nginx": version(),
        "rounds": options.rounds,
        "least_us": {name: min(values) for name, values in seen.items()},
        "rates": measure_rates(),
        "all": seen,
    }
    for name, least_us in result["least_us"].items():
        print(f"{TITLES[name]:68}{least_us:10.1f} us")
    for row in result["rates"]:
        print(f"tier of {row['rate_rps']:g}/s: {row['least_rps']:.1f} and {row['most_rps']:.1f} requests/s")
    compared = list(bars(result))
    result["bars"] = [bar.record() for bar in compared]
    print("\n".join(map(str, compared)))
    print(f"{harness.line(result)}, nginx {result['nginx']}")
    if options.write:
        harness.keep("nginx", result)


if __name__ == "__main__":
    main()
