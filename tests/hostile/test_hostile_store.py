"""User limits, leases, breakers and GPU rows on a Redis that lies, breaks off, or floods."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Final

import pytest
from pydantic import SecretStr
from redis.exceptions import ConnectionError as RedisConnectionError

from autoglm_throttle import Decision
from autoglm_throttle._runtime.serial_lock import SerialLock
from autoglm_throttle.settings.groups.breaker import SharedBreakerSettings
from autoglm_throttle.settings.groups.control import RateSettings
from autoglm_throttle.settings.groups.gpu import GpuSettings
from autoglm_throttle.settings.groups.store import FleetSettings, StoreSettings
from autoglm_throttle.store import fleet
from autoglm_throttle.store.breakers import state, sync
from autoglm_throttle.store.breakers.sync import RedisBreakerStore
from autoglm_throttle.store.client import RedisClients
from autoglm_throttle.store.fleet import FleetSync, LeasedBuckets
from autoglm_throttle.store.gpu import RemoteGpuProvider
from autoglm_throttle.store.health import HealthState
from autoglm_throttle.testing import FakeGpu, ManualClock
from autoglm_throttle.types import BreakerCause, GpuSample, ProbeLease, RemoteBreakerState
from tests.hostile.attacks import Attack
from tests.hostile.redis_proxy import HANG_S, Closed, Connection, HostileProxy, Spoiler
from tests.resilience.shared.fleets import ONE
from tests.store.fleets import admit
from tests.store.polling import eventually
from tests.store.real_server import Site, connected
from tests.store.server import RedisServer, newest

pytestmark = pytest.mark.server

SPENT: Final = 7
"""A user whose limit is used up before the attack."""

TIMEOUT_S: Final = 0.1
"""Of the synchronous clients, which wait for each silence."""

FLOOD_BYTES: Final = 2**26
"""Four times of what a client may read."""


def silent(connection: Connection, reply: bytes) -> None:
    """Answer nothing."""


def closes(connection: Connection, reply: bytes) -> None:
    raise Closed


def closes_after(connection: Connection, reply: bytes) -> None:
    connection.send(reply)
    raise Closed


def cuts(connection: Connection, reply: bytes) -> None:
    connection.send(reply[: len(reply) // 2])
    raise Closed


def stops(connection: Connection, reply: bytes) -> None:
    connection.send(reply[: len(reply) // 2])


def resets(connection: Connection, reply: bytes) -> None:
    connection.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raise Closed


def trickles(connection: Connection, reply: bytes) -> None:
    """Send one byte at a time, slower than any deadline."""
    for byte in reply:
        connection.send(bytes([byte]))
        if connection.over.wait(0.02):
            return


def corrupts(connection: Connection, reply: bytes) -> None:
    """Replace a quarter of the bytes."""
    spoiled = bytearray(reply)
    for _ in range(1 + len(spoiled) // 4):
        spoiled[connection.chance.randrange(len(spoiled))] = connection.chance.randrange(256)
    connection.send(bytes(spoiled))


def noise(connection: Connection, reply: bytes) -> None:
    connection.send(connection.chance.randbytes(300))


def late(connection: Connection, reply: bytes) -> None:
    """Answer after every deadline, but before the connection is given up."""
    connection.over.wait(0.12)
    connection.send(reply)


def doubles(connection: Connection, reply: bytes) -> None:
    connection.send(reply + reply)


def shifts(connection: Connection, reply: bytes) -> None:
    """Answer each command by the reply to the one before."""
    connection.kept.append(reply)
    if len(connection.kept) > 1:
        connection.send(connection.kept.pop(0))


def floods(connection: Connection, start: bytes) -> None:
    """Send an endless value."""
    connection.send(start)
    block = b"x" * 2**20
    for _ in range(FLOOD_BYTES // len(block)):
        if connection.over.is_set():
            return
        connection.send(block)


def says(data: bytes) -> Spoiler:
    return lambda connection, reply: connection.send(data)


def integers(change: Callable[[int, int], int | None]) -> Spoiler:
    """Change each integer of a reply by its place; None leaves it out."""

    def spoil(connection: Connection, reply: bytes) -> None:
        lines = reply.split(b"\r\n")
        numbers = [change(at, int(line[1:])) for at, line in enumerate(lines[1:-1]) if line[:1] == b":"]
        left = [b":%d" % number for number in numbers if number is not None]
        connection.send(b"\r\n".join([b"*%d" % len(left), *left, b""]) if numbers else reply)

    return spoil


ERRORS: Final = {
    "MOVED": "MOVED 3999 127.0.0.1:6381",
    "ASK": "ASK 3999 127.0.0.1:6381",
    "LOADING": "LOADING Redis is loading the dataset in memory",
    "BUSY": "BUSY Redis is busy running a script",
    "OOM": "OOM command not allowed when used memory > 'maxmemory'",
    "READONLY": "READONLY You can't write against a read only replica.",
    "NOSCRIPT": "NOSCRIPT No matching script. Please use EVAL.",
    "NOAUTH": "NOAUTH Authentication required.",
    "NOPERM": "NOPERM this user has no permissions to run the 'evalsha' command",
    "CLUSTERDOWN": "CLUSTERDOWN Hash slot not served",
    "MISCONF": "MISCONF Redis is configured to save RDB snapshots",
    "WRONGTYPE": "WRONGTYPE Operation against a key holding the wrong kind of value",
    "max number of clients": "ERR max number of clients reached",
    "a megabyte of text": "ERR " + "x" * 2**20,
    "unprintable text": "ERR \x1b[2J\x07\xff\x00{}%s",
}

BREAKS: Final = {
    "silence": silent,
    "closed instead of an answer": closes,
    "closed after each answer": closes_after,
    "cut in the middle": cuts,
    "half an answer": stops,
    "reset": resets,
    "one byte at a time": trickles,
    "a quarter of the bytes replaced": corrupts,
    "noise": noise,
    "late": late,
}

SHAPES: Final = {
    "OK": b"+OK\r\n",
    "nil": b"$-1\r\n",
    "nil array": b"*-1\r\n",
    "no element": b"*0\r\n",
    "one number": b":1\r\n",
    "a text": b"$5\r\nhello\r\n",
    "numbers as texts": b"*6\r\n" + b"$1\r\n1\r\n" * 6,
    "too many numbers": b"*60\r\n" + b":1\r\n" * 60,
    "nested lists": b"*2\r\n" * 6 + b":1\r\n" * 7,
    "very deep lists": b"*1\r\n" * 5000 + b":1\r\n",
    "HTTP": b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
    "RESP3 types": b"%1\r\n+a\r\n#t\r\n,1.5\r\n_\r\n",
    "a number of 100 digits": b"*6\r\n" + b":" + b"9" * 100 + b"\r\n",
    "a length of 2 GiB": b"$2147483647\r\nx",
    "a negative length": b"$-7\r\n\r\n",
    "a list of 4 billion": b"*4294967290\r\n:1\r\n",
    "a list of 2^63": b"*9223372036854775807\r\n:1\r\n",
}

VALUES: Final = {
    "negative counts": lambda at, number: -5 if at % 5 else number,
    "only minus one": lambda at, number: -1,
    "one number fewer": lambda at, number: number if at else None,
}

LIES: Final = {
    "a clock that jumps by a year": integers(
        lambda at, number: number if at else number - 365 * 86400 * 10**6
    ),
    "a clock at zero": integers(lambda at, number: number if at else 0),
    "the largest integers": integers(lambda at, number: 2**63 - 1),
    "all zero": integers(lambda at, number: 0),
    "two answers for one": doubles,
    "the answer to the question before": shifts,
}


@dataclass
class Plant:
    """All users of one store."""

    site: Site
    breakers: RedisBreakerStore
    gpu: RemoteGpuProvider
    leases: FleetSync
    clock: ManualClock
    leased: list[bool] = field(default_factory=list)
    """Whether requests under the leases were admitted."""

    async def use(self) -> list[Decision]:
        """Use everything for a while; return the decisions on users with units left."""
        decisions = [(await self.site.ask(20 + number)).decision for number in range(5)]
        for number in range(4):
            self.leased.append((await admit(self.leases))[0])
            self.breakers.report_open("dependency", 60.0, number, BreakerCause.FAILURES)
            asked = await asyncio.to_thread(self.breakers.acquire, "dependency", ONE)
            assert asked is None or isinstance(asked, ProbeLease | RemoteBreakerState)
            assert (await self.read()).health == "ok"
        await self.breakers.acquire_async("dependency", ONE)
        decisions += await self.site.crowd(*range(40, 60))
        return decisions

    async def spent(self) -> list[bool]:
        """Whether requests of the user without units were admitted."""
        return [one.allowed for one in await self.site.crowd(*[SPENT] * 10)]

    async def recover(self) -> None:
        """Return when all use the store again."""
        await self.site.comes(HealthState.UP)
        await eventually(lambda: self.leases.leases.is_up, "leases")
        await eventually(lambda: self.breakers.is_up and self.breakers.subscriber.is_listening, "breakers")
        for _ in range(3):
            await self.read()
        assert self.gpu._health.state is HealthState.UP

    async def read(self) -> GpuSample:
        """Read the GPUs of all hosts two seconds later; return this host's own."""
        self.clock.advance(2.0)
        return (await asyncio.to_thread(self.gpu.read))[0]


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(newest()) as server:
        yield server


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[HostileProxy]:
    with HostileProxy(server.port) as proxy:
        yield proxy


@asynccontextmanager
async def plant(url: str, prefix: str) -> AsyncIterator[Plant]:
    store = StoreSettings(redis_url=SecretStr(url), redis_prefix=prefix)
    clients = RedisClients(store)
    clock = ManualClock()
    breakers = RedisBreakerStore(
        lambda: clients.sync(TIMEOUT_S),
        store,
        SharedBreakerSettings.model_construct(store_deadline_s=TIMEOUT_S / 2),
    )
    gpu = RemoteGpuProvider(
        FakeGpu(clock=clock),
        lambda: clients.sync(TIMEOUT_S),
        "here",
        store,
        GpuSettings(),
        clock,
    )
    members = FleetSettings().model_copy(update={"fleet_heartbeat_s": 0.1})
    leased = LeasedBuckets(RateSettings(), members, time.monotonic())
    leases = FleetSync(leased, SerialLock(), store, members, lambda: clients.sync(TIMEOUT_S))
    site = await connected(url, prefix, redis_probe_s=0.1, refused_cache=0)
    breakers.subscribe("dependency", lambda remote: None)
    breakers.start()
    leases.start()
    built = Plant(site, breakers, gpu, leases, clock)
    try:
        await built.recover()
        while (await site.ask(SPENT)).decision.allowed:
            pass
        yield built
    finally:
        site.throttle.stop()
        breakers.stop()
        leases.stop()
        gpu.close()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probe a lost store soon."""
    monkeypatch.setattr(fleet, "PROBE_S", 0.1)
    monkeypatch.setattr(state, "PROBE_PAUSES_S", (0.1,))
    monkeypatch.setattr(sync, "PROBE_PAUSES_S", (0.1,))


@contextmanager
def one_line_each(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Check that each user of the store logs its loss once at most, in printable text."""
    caplog.clear()
    caplog.set_level(logging.WARNING, "autoglm_throttle")
    yield
    lines = [record.getMessage() for record in caplog.records]
    for beginning in ("redis is unavailable", "the fleet's store is", "the breaker store is", "GPU fleet"):
        lost = [line for line in lines if line.startswith(beginning) and "again" not in line]
        assert len(lost) <= 1, lines
    assert all(line.isprintable() and len(line) < 1000 for line in lines), lines
    assert not [record for record in caplog.records if record.exc_info], "no traceback"


async def survives(
    proxy: HostileProxy,
    prefix: str,
    caplog: pytest.LogCaptureFixture,
    spoiler: Spoiler,
    *,
    everything: bool = False,
    lies: bool = False,
) -> None:
    async with plant(proxy.url, prefix) as built:
        with one_line_each(caplog):
            proxy.attack(spoiler, everything=everything)
            before = built.site.fallbacks
            decisions = await built.use()
            assert lies or spoiler is closes_after or built.site.fallbacks > before
            if not lies:
                assert [decision.allowed for decision in decisions] == [True] * 25
                assert built.leased == [True] * 4
                assert await built.spent() == [False] * 10
            proxy.behave()
            await built.recover()
        assert await built.spent() == [False] * 10


@pytest.mark.slow
@pytest.mark.parametrize("name", BREAKS)
async def test_broken_conversation_is_an_outage(
    name: str, proxy: HostileProxy, redis_prefix: str, caplog: pytest.LogCaptureFixture, attack: Attack
) -> None:
    with attack(f"Redis: {name}"):
        await survives(proxy, redis_prefix, caplog, BREAKS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["silence", "closed instead of an answer", "noise", "late"])
async def test_broken_handshake_is_an_outage(
    name: str, proxy: HostileProxy, redis_prefix: str, caplog: pytest.LogCaptureFixture, attack: Attack
) -> None:
    with attack(f"Redis: {name}, from the handshake on"):
        await survives(proxy, redis_prefix, caplog, BREAKS[name], everything=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ERRORS)
async def test_error_reply_is_an_outage(
    name: str, proxy: HostileProxy, redis_prefix: str, caplog: pytest.LogCaptureFixture, attack: Attack
) -> None:
    with attack(f"Redis: error {name}"):
        text = ERRORS[name].encode("latin-1")
        await survives(proxy, redis_prefix, caplog, says(b"-" + text + b"\r\n"))


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
async def test_wrong_shape_is_an_outage(
    name: str, proxy: HostileProxy, redis_prefix: str, caplog: pytest.LogCaptureFixture, attack: Attack
) -> None:
    with attack(f"Redis: {name} instead of an answer"):
        await survives(proxy, redis_prefix, caplog, says(SHAPES[name]))


@pytest.mark.parametrize("name", VALUES)
async def test_impossible_value_is_an_outage(
    name: str, proxy: HostileProxy, redis_prefix: str, caplog: pytest.LogCaptureFixture, attack: Attack
) -> None:
    with attack(f"Redis: {name}"):
        await survives(proxy, redis_prefix, caplog, integers(VALUES[name]))


@pytest.mark.parametrize("name", LIES)
async def test_plausible_lie_ends_with_the_liar(
    name: str, proxy: HostileProxy, redis_prefix: str, caplog: pytest.LogCaptureFixture, attack: Attack
) -> None:
    with attack(f"Redis: {name}", degraded="a reply of the right shape is believed"):
        await survives(proxy, redis_prefix, caplog, LIES[name], lies=True)


async def test_refused_connections_are_an_outage(
    proxy: HostileProxy, redis_prefix: str, caplog: pytest.LogCaptureFixture, attack: Attack
) -> None:
    with attack("Redis: connections refused"):
        async with plant(proxy.url, redis_prefix) as built:
            with one_line_each(caplog):
                proxy.refuse()
                assert [decision.allowed for decision in await built.use()] == [True] * 25
                assert await built.spent() == [False] * 10
                proxy.behave()
                await built.recover()


@pytest.mark.parametrize("start", [b"$2147483647\r\n", b"*100\r\n$2147483647\r\n"])
async def test_endless_reply_takes_bounded_memory(
    start: bytes, proxy: HostileProxy, redis_prefix: str, caplog: pytest.LogCaptureFixture, attack: Attack
) -> None:
    floods_left = iter(range(4))  # each takes a second of one core, shared with the proxy

    def flood(connection: Connection, reply: bytes) -> None:
        if next(floods_left, None) is None:
            raise Closed
        floods(connection, start)

    with attack("Redis: an endless reply"):
        await survives(proxy, redis_prefix, caplog, flood)
        clients = RedisClients(StoreSettings(redis_url=SecretStr(proxy.url)))
        proxy.attack(lambda connection, reply: floods(connection, start))
        with clients.sync(HANG_S) as client, pytest.raises(RedisConnectionError, match="too long"):
            client.ping()
        async with asyncio.timeout(HANG_S):
            with pytest.raises(RedisConnectionError, match="too long"):
                await clients.current().ping()
        proxy.behave()
        await clients.current().aclose()
