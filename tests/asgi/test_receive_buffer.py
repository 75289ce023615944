"""A body received while its request is queued reaches the app complete, in order, and once."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.asgi.receive import BUFFER_BYTES, PART_OVERHEAD_BYTES, BufferedReceive
from tests.asgi.queued_clients import part, settled

pytestmark = pytest.mark.usefixtures("quiet_loop")

Message = dict[str, Any]
GONE: Message = {"type": "http.disconnect"}


class Wire:
    """A server's ``receive``. It gives what was put on the wire, each one step after it was taken off.

    Args:
        loses: whether a message is lost when ``receive`` is cancelled in that step, as under Granian.
    """

    def __init__(self, *messages: Message, loses: bool = False) -> None:
        self.messages = list(messages)
        self.loses = loses
        self.taken = 0
        self._more = anyio.Event()

    def put(self, message: Message) -> None:
        self.messages.append(message)
        self._more.set()

    async def receive(self) -> Message:
        while not self.messages:
            self._more = anyio.Event()
            await self._more.wait()
        message = self.messages.pop(0)
        try:
            await anyio.lowlevel.checkpoint()
        except anyio.get_cancelled_exc_class():
            if not self.loses:
                self.messages.insert(0, message)
            raise
        self.taken += 1
        return message


async def stand(inbox: BufferedReceive, until: Callable[[], Awaitable[None]]) -> bool:
    """Listen for the client until something else has happened; whether it left before."""
    left = False
    async with anyio.create_task_group() as group:

        async def listen() -> None:
            nonlocal left
            await inbox()
            left = True
            group.cancel_scope.cancel()

        group.start_soon(listen)
        await until()
        group.cancel_scope.cancel()
    return left


async def read(inbox: BufferedReceive) -> bytes:
    bodies = []
    while True:
        message = await inbox.receive()
        assert message["type"] == "http.request", message
        bodies.append(message["body"])
        if not message["more_body"]:
            return b"".join(bodies)


def test_body_received_in_queue_reaches_app_in_order(backend: str) -> None:
    async def scenario() -> None:
        wire = Wire(part(b"a"), part(b"b"), part(b""), part(b"c", more=False))
        inbox = BufferedReceive(wire.receive)
        assert not await stand(inbox, settled)
        assert await read(inbox) == b"abc"
        inbox.close()

    anyio.run(scenario, backend=backend)


def test_rest_of_body_follows_buffered_part(backend: str) -> None:
    async def scenario() -> None:
        wire = Wire(part(b"a"))
        inbox = BufferedReceive(wire.receive)
        await stand(inbox, settled)
        wire.put(part(b"b"))
        wire.put(part(b"c", more=False))
        assert await read(inbox) == b"abc"
        wire.put(GONE)
        assert await inbox.receive() == GONE
        inbox.close()

    anyio.run(scenario, backend=backend)


@pytest.mark.parametrize("steps", range(8))
def test_admission_during_a_receive_loses_no_part(steps: int) -> None:
    async def scenario() -> None:
        wire = Wire(part(b"a"), loses=True)
        inbox = BufferedReceive(wire.receive)

        async def turn() -> None:
            await settled()
            wire.put(part(b"b"))
            for _ in range(steps):
                await asyncio.sleep(0)

        await stand(inbox, turn)
        wire.put(part(b"c", more=False))
        assert await read(inbox) == b"abc"
        inbox.close()

    asyncio.run(scenario())


@given(
    sizes=st.lists(st.sampled_from([0, 1, 7, 40_000, 70_000]), max_size=8),
    pauses=st.lists(st.integers(0, 4), min_size=8, max_size=8),
    turn_after=st.integers(0, 30),
    loses=st.booleans(),
)
def test_whenever_the_turn_comes_the_body_is_whole(
    sizes: list[int], pauses: list[int], turn_after: int, loses: bool
) -> None:
    async def scenario() -> None:
        wire = Wire(loses=loses)
        inbox = BufferedReceive(wire.receive)
        bodies = [bytes([number]) * size for number, size in enumerate(sizes)]

        async def client() -> None:
            for body, pause in zip(bodies, pauses, strict=False):
                for _ in range(pause):
                    await asyncio.sleep(0)
                wire.put(part(body))
            wire.put(part(b"end", more=False))

        async def turn() -> None:
            for _ in range(turn_after):
                await asyncio.sleep(0)

        sending = asyncio.ensure_future(client())
        assert not await stand(inbox, turn)
        assert await read(inbox) == b"".join(bodies) + b"end"
        await sending
        wire.put(GONE)
        assert await inbox.receive() == GONE
        inbox.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["http.disconnect", "websocket.disconnect"])
def test_a_client_that_leaves_is_noticed(backend: str, kind: str) -> None:
    async def scenario() -> None:
        wire = Wire({"type": "websocket.connect"} if "web" in kind else part(b"", more=False))
        inbox = BufferedReceive(wire.receive)

        async def leave() -> None:
            await settled()
            wire.put({"type": kind})
            await settled()

        assert await stand(inbox, leave)
        assert (await inbox.receive())["type"] != kind
        assert (await inbox.receive())["type"] == kind
        inbox.close()

    anyio.run(scenario, backend=backend)


def test_disconnect_in_mid_body_is_detected(backend: str) -> None:
    async def scenario() -> None:
        inbox = BufferedReceive(Wire(part(b"a"), GONE).receive)
        assert await stand(inbox, settled)
        inbox.close()

    anyio.run(scenario, backend=backend)


@pytest.mark.parametrize("size", [0, 1, 1000, 100_000])
def test_buffered_body_is_bounded(backend: str, size: int) -> None:
    async def scenario() -> None:
        wire = Wire(*[part(b"x" * size)] * 300, part(b"", more=False))
        inbox = BufferedReceive(wire.receive)
        await stand(inbox, partial(settled, 2000))
        assert wire.taken == math.ceil(BUFFER_BYTES / (PART_OVERHEAD_BYTES + size))
        assert len(await read(inbox)) == 300 * size
        inbox.close()

    anyio.run(scenario, backend=backend)


def test_endless_receive_is_bounded(backend: str) -> None:
    async def scenario() -> None:
        asked = 0

        async def receive() -> Message:
            nonlocal asked
            asked += 1
            return part(b"", more=False)

        inbox = BufferedReceive(receive)
        assert not await stand(inbox, settled)
        assert asked == 2
        inbox.close()

    anyio.run(scenario, backend=backend)


def test_two_receivers_of_a_pending_part_get_one_each() -> None:
    async def scenario() -> None:
        wire = Wire(part(b"a"))
        inbox = BufferedReceive(wire.receive)
        await stand(inbox, settled)
        wanted = [asyncio.ensure_future(inbox.receive()) for _ in range(3)]
        assert await wanted.pop(0) == part(b"a")
        await settled()
        wire.put(part(b"b"))
        await settled()
        wire.put(part(b"c", more=False))
        found = await asyncio.gather(*wanted)
        assert [message["body"] for message in found] == [b"b", b"c"]
        inbox.close()

    asyncio.run(scenario())


def test_an_app_may_cancel_its_receive_too() -> None:
    """As Starlette's ``request.is_disconnected`` does."""

    async def scenario() -> None:
        wire = Wire(part(b"a"), loses=True)
        inbox = BufferedReceive(wire.receive)
        await stand(inbox, settled)
        assert await inbox.receive() == part(b"a")
        for _ in range(2):
            with anyio.CancelScope() as scope:
                scope.cancel()
                await inbox.receive()
        wire.put(part(b"b", more=False))
        assert await inbox.receive() == part(b"b", more=False)
        inbox.close()

    asyncio.run(scenario())


class PromptServer:
    """Gives the empty body of a request, then the disconnect of its client, each as soon as it is there."""

    def __init__(self) -> None:
        self.sends = anyio.Event()
        self.leaves = anyio.Event()
        self.tasks: set[object] = set()
        self._is_read = False

    async def receive(self) -> Message:
        self.tasks.add(asyncio.current_task())
        is_read, self._is_read = self._is_read, True  # also if it is cancelled
        if not is_read:
            if not self.sends.is_set():  # `wait` takes a step of the loop in any case
                await self.sends.wait()
                await settled(3)
            return part(b"", more=False)
        await self.leaves.wait()
        return GONE


def test_message_that_comes_at_once_is_received_without_a_task() -> None:
    async def scenario() -> None:
        used = []
        for _ in range(3):
            server = PromptServer()
            server.sends.set()
            inbox = BufferedReceive(server.receive)
            await stand(inbox, settled)
            used.append(len(server.tasks))
            assert await read(inbox) == b""
            server.leaves.set()
            assert await inbox.receive() == GONE
        assert used == [2, 1, 1], "until it is known that it comes at once"

    asyncio.run(scenario())


@pytest.mark.parametrize("steps", range(4))
def test_message_that_is_late_for_once_is_not_lost(steps: int) -> None:
    async def scenario() -> None:
        prompt, late = PromptServer(), PromptServer()
        prompt.sends.set()
        await stand(BufferedReceive(prompt.receive), settled)
        inbox = BufferedReceive(late.receive)

        async def turn() -> None:
            await settled()
            late.sends.set()
            for _ in range(steps):
                await asyncio.sleep(0)

        assert not await stand(inbox, turn)
        late.leaves.set()
        assert await read(inbox) == b""
        assert await inbox.receive() == GONE
        inbox.close()

    asyncio.run(scenario())


class Broken(Exception):
    """A server's own."""


@pytest.mark.parametrize("heard", [True, False])
def test_receive_error_is_raised_or_dropped_silently(heard: bool) -> None:
    async def scenario() -> None:
        breaks = anyio.Event()

        async def receive() -> Message:
            await breaks.wait()
            raise Broken

        inbox = BufferedReceive(receive)
        await stand(inbox, settled)
        breaks.set()
        await settled()
        if heard:
            with pytest.raises(Broken):
                await inbox.receive()
        inbox.close()
        await settled()

    asyncio.run(scenario())


def test_an_error_while_it_waits_ends_the_wait(backend: str) -> None:
    async def scenario() -> None:
        async def receive() -> Message:
            raise Broken

        inbox = BufferedReceive(receive)
        with pytest.raises(Broken):
            await inbox()
        inbox.close()

    anyio.run(scenario, backend=backend)


@pytest.mark.parametrize("stubborn", [True, False])
def test_unwanted_part_is_cancelled_silently(stubborn: bool) -> None:
    async def scenario() -> None:
        ended: list[str] = []

        async def receive() -> Message:
            try:
                await anyio.sleep_forever()
            except asyncio.CancelledError:
                ended.append("cancelled")
                if stubborn:
                    raise Broken from None
                raise
            raise AssertionError

        inbox = BufferedReceive(receive)
        await stand(inbox, settled)
        inbox.close()
        await settled()
        assert ended == ["cancelled"]

    asyncio.run(scenario())


def test_a_loop_that_ends_meanwhile_ends_the_part_too() -> None:
    async def scenario() -> None:
        inbox = BufferedReceive(Wire().receive)

        async def wait() -> None:
            try:
                await inbox()
            finally:
                inbox.close()

        waiting.append(asyncio.ensure_future(wait()))
        await settled()

    waiting: list[asyncio.Future[None]] = []
    asyncio.run(scenario())
    assert waiting[0].cancelled()
