"""Latency of requests while eight devices are read, over real HTTP: normally, and while the driver hangs.

Each row is a uvicorn process of its own, and all of them run all the time. One client sends requests to
them in turn over persistent connections, one after another: the difference between two rows of a round is the
effect of sampling. One row is measured twice, as a control of the noise.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.sampled import SNAPSHOT_PATH, ServiceOptions
from benchmarks.shared.bars import Bar
from examples.demo.process import DemoProcess

SERVER = "benchmarks.sampled"
CARDS = 8
REQUEST = b"GET /predict HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: */*\r\nuser-agent: benchmark\r\n\r\n"
ANSWER_S = 5.0
START_S = 10.0
HANG_US = 3_600_000_000
"""Longer than any run."""

NOTCH = 1.57
"""Factor of the interquartile range over the root of n: the error of a median at 95 % (McGill, Tukey and
Larsen, The American Statistician 32, 1978)."""

LEAST_ROUNDS = 5
"""Least number of rounds for quartiles."""

HANG_P99_MS = 5.0
"""Bound of the latency added by a hang."""


@dataclass(frozen=True)
class Row:
    """One service.

    Args:
        title: its name in tables.
        interval_s: from one reading to the next; None: no sampling.
        beside: the row of the comparison in every round.
        hangs: whether the driver hangs.
    """

    title: str
    interval_s: float | None = None
    beside: str = "none"
    hangs: bool = False


ROWS = {
    "none": Row("no sampler", beside=""),
    "again": Row("no sampler, again"),
    "calm": Row("8 devices every 1 s", 1.0),
    "often": Row("8 devices every 0.2 s", 0.2),
    "hang": Row("8 devices, read hangs", 1.0, beside="calm", hangs=True),
}


@dataclass(frozen=True)
class Scale:
    """Sizes and durations of a run.

    Args:
        rounds: of all rows.
        turn_s: seconds of each row in a round; 1 s holds one reading at every interval.
        warm_s: seconds of each row before the first round; they are not counted.
    """

    rounds: int = 20
    turn_s: float = 1.0
    warm_s: float = 1.0


class Client:
    """One persistent connection."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def request(self) -> float:
        """Measure the milliseconds from a request to the end of its response."""
        begun = time.perf_counter()
        self._socket.sendall(REQUEST)
        answer = b""
        while not answer.endswith(b"\r\n\r\nok"):
            part = self._socket.recv(4096)
            answer += part
            if not part or (b"\r\n\r\n" in answer and not answer.startswith(b"HTTP/1.1 200 ")):
                raise RuntimeError(f"a request was not admitted: {answer!r}")
        return (time.perf_counter() - begun) * 1e3

    def measure_for(self, seconds: float) -> dict[str, float]:
        """Send requests one after another for some seconds."""
        last_s = time.perf_counter() + seconds
        taken = [self.request()]
        while time.perf_counter() < last_s:
            taken.append(self.request())
        taken.sort()
        return {
            "requests": len(taken),
            "p50_ms": percentile(taken, 0.5),
            "p99_ms": percentile(taken, 0.99),
            "p999_ms": percentile(taken, 0.999),
        }


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return a percentile by nearest rank."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@dataclass
class Service:
    """The running service of a row."""

    row: Row
    child: DemoProcess
    state: Path
    client: Client

    def figures(self) -> dict[str, Any]:
        """Return the view of its throttle."""
        return asyncio.run(self.child.request(SNAPSHOT_PATH)) or {}

    def until(self, wanted: Mapping[str, Any]) -> None:
        """Wait until the view has these values.

        Raises:
            RuntimeError: it does not in time.
        """
        last_s = time.monotonic() + START_S
        while (seen := self.figures()) != seen | dict(wanted):
            if time.monotonic() > last_s:
                raise RuntimeError(f"{self.row.title}: {seen} instead of {wanted}")
            self.client.request()
            time.sleep(0.05)


@contextlib.contextmanager
def running(rows: Mapping[str, Row], folder: Path) -> Iterator[dict[str, Service]]:
    """Start all services; the loader must find the simulated library."""
    with contextlib.ExitStack() as stack:
        services = {}
        for name, row in rows.items():
            state = folder / f"{name}.state"
            state.write_text(f"-1.count={CARDS}\n")
            child = stack.enter_context(
                DemoProcess(SERVER, asdict(ServiceOptions(row.interval_s, str(state))))
            )
            client = stack.enter_context(contextlib.closing(Client(child.port)))
            services[name] = Service(row, child, state, client)
        for service in services.values():
            ready(service)
        yield services
        for service in services.values():
            service.state.unlink(missing_ok=True)  # the hang ends, so that its process can


def ready(service: Service) -> None:
    """Bring a service into the state of its row: reading without a file, or in a read that hangs."""
    service.client.request()
    if service.row.interval_s is None:
        return
    service.until({"sources": ["reading"], "judged": CARDS, "notes": [], "telemetry": "fresh"})
    if service.row.hangs:
        service.state.write_text(f"-1.count={CARDS}\n0.delay_us={HANG_US}\n")
        service.until({"sources": ["hanging"]})
    else:
        service.state.unlink()


def measure(scale: Scale, folder: Path, rows: Mapping[str, Row] = ROWS) -> dict[str, Any]:
    """Measure every row once in each round, and its difference to its row of comparison."""
    with running(rows, folder) as services:
        for service in services.values():
            service.client.measure_for(scale.warm_s)
        seen = rounds(services, scale)
        ends = {name: service.figures() for name, service in services.items()}
    return {
        "scale": asdict(scale),
        "rows": {
            name: {**middle(measurements), "adds": adds(measurements, seen.get(rows[name].beside, ()))}
            for name, measurements in seen.items()
        },
        "ends": ends,
        "all": seen,
    }


def rounds(services: Mapping[str, Service], scale: Scale) -> dict[str, list[dict[str, float]]]:
    """Measure the rounds of each row; the order rotates, so that none always follows the same one."""
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in services}
    names = list(services)
    for number in range(scale.rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            seen[name].append(services[name].client.measure_for(scale.turn_s))
    return seen


def middle(measurements: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each figure over rounds."""
    return {
        name: statistics.median(measure_for[name] for measure_for in measurements) for name in measurements[0]
    }


def adds(
    measurements: Sequence[Mapping[str, float]], beside: Sequence[Mapping[str, float]]
) -> dict[str, dict[str, float | None]]:
    """Return the median differences to another row in the same round, with their errors."""
    if not beside:
        return {}
    added: dict[str, dict[str, float | None]] = {}
    for name in ("p50_ms", "p99_ms", "p999_ms"):
        more = [
            measure_for[name] - other[name] for measure_for, other in zip(measurements, beside, strict=True)
        ]
        added[name] = {"median": statistics.median(more), "give": median_error(more)}
    return added


def median_error(values: Sequence[float]) -> float | None:
    """Return the error of the median; None for too few values."""
    if len(values) < LEAST_ROUNDS:
        return None
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return NOTCH * (high - low) / math.sqrt(len(values))


def known(value: float | None) -> float:
    """Convert an unknown value to NaN, which meets no bar."""
    return math.nan if value is None else value


def bars(found: Mapping[str, Any]) -> list[Bar]:
    """Compute the bars. A difference within its error is not measurable."""
    rows = found["rows"]
    control = rows["again"]["adds"]["p99_ms"]
    calm = abs(control["median"]) <= known(control["give"])
    added = rows["calm"]["adds"]["p99_ms"]
    least = added["median"] - known(added["give"])
    hang = rows["hang"]["adds"]["p99_ms"]["median"]
    return [
        Bar("8 cards every 1 s: least that p99 may have grown, ms", least, 0.0, calm=calm),
        Bar("a driver that hangs: p99 has grown by, ms", hang, HANG_P99_MS),
    ]


def show(found: Mapping[str, Any], rows: Mapping[str, Row] = ROWS) -> None:
    """Print the rows."""
    print(f"{'requests over HTTP, ms':28}{'p50':>8}{'p99':>8}{'p99.9':>8}   added to p50, p99, p99.9")
    for name, figures in found["rows"].items():
        cells = "".join(f"{figures[one]:8.3f}" for one in ("p50_ms", "p99_ms", "p999_ms"))
        added = "  ".join(
            f"{one['median']:+.3f} ±{known(one['give']):.3f}" for one in figures["adds"].values()
        )
        beside = rows[name].beside
        against = f"   (to: {rows[beside].title})" if beside else ""
        print(f"{rows[name].title:28}{cells}   {added}{against}")
