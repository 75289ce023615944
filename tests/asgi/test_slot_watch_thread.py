"""The thread that watches slots begins and ends with its requests, survives a fork and loses no resume."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import queue
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from autoglm_throttle import Permit, Throttle
from autoglm_throttle.asgi import slot_watch
from autoglm_throttle.asgi.receive import RequestBody
from autoglm_throttle.asgi.response_tracker import WatchedStream
from autoglm_throttle.asgi.slot_watch import SlotWatch, WatchedSlot, begin
from autoglm_throttle.settings import Settings
from autoglm_throttle.types import Demand
from tests.asgi.queued_clients import settled, taken, with_places
from tests.runtime.test_after_fork import from_child

HANG_S = 30.0
"""Longest wait for another thread; only a failing test waits as long."""


def admitted(throttle: Throttle) -> Permit:
    permit = throttle.try_admit(Demand())
    assert isinstance(permit, Permit)
    return permit


def threaded() -> Throttle:
    return Throttle(Settings(gpu="none", policy="concurrency", slot_idle_s=0.05))


def reporting(watch: SlotWatch, monkeypatch: pytest.MonkeyPatch) -> queue.SimpleQueue[int]:
    """Report after each scan how many requests are watched."""
    scans: queue.SimpleQueue[int] = queue.SimpleQueue()
    scan: Callable[[SlotWatch, float], None] = SlotWatch.scan

    def scan_and_report(self: SlotWatch, now: float) -> None:
        scan(self, now)
        if self is watch:
            scans.put(self.watched)

    monkeypatch.setattr(SlotWatch, "scan", scan_and_report)
    return scans


def test_thread_pauses_a_waiting_request(monkeypatch: pytest.MonkeyPatch) -> None:
    throttle = threaded()
    watch = SlotWatch(throttle)
    scans = reporting(watch, monkeypatch)
    permit = admitted(throttle)
    waiting = WatchedSlot(watch, permit)
    waiting.wait(watch.clock())
    assert scans.get(timeout=HANG_S) == 1
    assert permit.is_paused
    waiting.work()
    view = throttle.snapshot().concurrency
    assert view is not None
    assert (view.in_flight, view.paused) == (1, 0)
    permit.settle()


def test_thread_ends_with_its_last_request_and_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_watch, "EMPTY_SCANS", 1)
    throttle = threaded()
    watch = SlotWatch(throttle)
    assert not watch._worker.is_alive
    scans = reporting(watch, monkeypatch)
    for _ in range(2):
        permit = admitted(throttle)
        waiting = WatchedSlot(watch, permit)
        waiting.wait(watch.clock())
        assert scans.get(timeout=HANG_S) == 1
        assert permit.is_paused
        thread = watch._worker._thread
        assert thread is not None
        permit.settle()
        thread.join(HANG_S)
        assert not thread.is_alive()
        assert watch.watched == 0
        while not scans.empty():
            scans.get()


def test_watch_keeps_no_request_alive() -> None:
    throttle = with_places(2)
    watch = SlotWatch(throttle)
    waiting = WatchedSlot(watch, admitted(throttle))
    waiting.wait(throttle.clock())
    assert watch.watched == 1
    del waiting
    gc.collect()
    throttle.clock.advance(2.0)
    watch.scan(throttle.clock())
    assert watch.watched == 0
    assert taken(throttle)[0] == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_child_watches_its_own_requests_alone() -> None:
    throttle = threaded()
    watch = SlotWatch(throttle)
    inherited = WatchedSlot(watch, admitted(throttle))
    inherited.wait(watch.clock() + 3600.0)

    def report() -> list[Any]:
        before = watch.watched
        with pytest.MonkeyPatch.context() as patch:
            scans = reporting(watch, patch)
            permit = admitted(throttle)
            waiting = WatchedSlot(watch, permit)
            waiting.wait(watch.clock())
            return [before, scans.get(timeout=HANG_S), permit.is_paused]

    assert from_child(report) == [0, 1, True]
    assert watch.watched == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_body_of_the_parent_that_ends_in_a_child_is_not_counted_there() -> None:
    watch = SlotWatch(with_places(1))
    body = RequestBody(anyio.sleep_forever, watch)
    waiting = body.wait(begin(anyio.sleep_forever()))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(waiting)
        await settled()

        def report() -> list[int]:
            before = watch.bodies
            waiting.close()
            return [before, watch.bodies]

        assert from_child(report) == [0, 0]
        assert watch.bodies == 1
        task.cancel()
    assert watch.bodies == 0


@pytest.mark.parametrize("amid", ["before the pause", "after the pause"])
def test_request_that_works_again_amid_a_scan_has_its_slot(
    amid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    throttle = with_places(1)
    watch = SlotWatch(throttle)
    permit = admitted(throttle)
    waiting = WatchedSlot(watch, permit)
    waiting.wait(throttle.clock())
    pause = Permit.pause

    def pause_amid(self: Permit) -> None:
        if amid == "before the pause":
            waiting.work()
        pause(self)
        if amid == "after the pause":
            waiting.work()

    monkeypatch.setattr(Permit, "pause", pause_amid)
    watch.scan(throttle.clock())
    assert not permit.is_paused
    assert taken(throttle)[0] == 1


def test_request_that_waits_again_amid_its_removal_stays_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    throttle = with_places(1)
    watch = SlotWatch(throttle)
    permit = admitted(throttle)
    waiting = WatchedSlot(watch, permit)
    waiting.wait(throttle.clock())
    waiting.work()
    forget = SlotWatch._forget

    def wait_and_forget(self: SlotWatch, key: int, watched: WatchedSlot) -> None:
        watched.wait(throttle.clock())
        forget(self, key, watched)

    monkeypatch.setattr(SlotWatch, "_forget", wait_and_forget)
    watch.scan(throttle.clock())
    watch.scan(throttle.clock())
    assert permit.is_paused


def test_pause_of_a_settled_stream_changes_nothing() -> None:
    throttle = with_places(1)
    watch = SlotWatch(throttle)
    permit = admitted(throttle)
    stream = WatchedStream(watch, permit, may_be_idle=True)
    permit.settle()
    throttle.clock.advance(100.0)
    watch.scan(throttle.clock())
    assert not permit.is_paused
    assert taken(throttle) == (0, 0, 0)
    assert stream.has_ended
    assert watch.watched == 0


async def test_feed_that_is_paused_takes_no_slot_for_a_part_that_is_taken_at_once() -> None:
    throttle = with_places(1)
    watch = SlotWatch(throttle)
    permit = admitted(throttle)
    watch.learn_idle(permit.work_class.name, idle=True)
    feed = WatchedStream(watch, permit, may_be_idle=True)
    paused: list[bool] = []

    async def send() -> None:
        paused.append(permit.is_paused)

    for _ in range(3):
        assert feed.send(send(), bytes(10)) is None
        assert permit.is_paused
        throttle.clock.advance(5.0)
    assert paused == [False, True, True]
    throttle.clock.advance(5.0)
    for _ in range(2):
        assert feed.send(send(), bytes(10)) is None
    assert not permit.is_paused, "its parts come one after another"


def waits_for(
    watch: SlotWatch, pause_s: float, due_s: float = math.inf, *, body: bool = False
) -> WatchedSlot:
    """A wait whose slot is to be given back, and whose transfer is to end, after some seconds."""
    now = watch.clock()
    slot = WatchedSlot(watch, None if body else admitted(watch._throttle))
    slot.wait(now + pause_s, now + due_s)
    return slot


def test_next_scan_is_when_the_next_request_is_due() -> None:
    watch = SlotWatch(with_places(4))
    assert watch._step() == 0.4, "nothing is watched"
    slots = [waits_for(watch, pause_s, 0.4) for pause_s in (0.8, 0.3, -1.0)]
    assert watch._step() == pytest.approx(0.3)
    slots[1].work()
    assert watch._step() == pytest.approx(0.4), "a transfer ends"
    for slot in slots:
        slot.wait(watch.clock() + 0.8)
    assert watch._step() == 0.4, "one may begin to wait meanwhile"
    slots[0].wait(watch.clock() + 0.001)
    assert watch._step() == slot_watch.SCAN_MIN_S


def test_next_scan_is_not_earlier_for_a_request_without_slot() -> None:
    watch = SlotWatch(with_places(1))
    body, slot = waits_for(watch, 0.3, body=True), waits_for(watch, 0.3)
    without = watch._throttle.try_admit(Demand(holds_slot=False))
    assert isinstance(without, Permit)
    free = WatchedSlot(watch, without)
    free.wait(watch.clock())
    assert slot.permit is not None
    slot.permit.pause()
    assert watch._step() == 0.4
    body.wait(watch.clock() + 0.3, watch.clock() + 0.4)
    assert watch._step() == pytest.approx(0.4)
    body.wait(watch.clock(), watch.clock())
    assert watch._step() == 0.4, "its transfer has been told to end"


def test_many_requests_are_scanned_less_often() -> None:
    watch = SlotWatch(with_places(1))
    watched = [waits_for(watch, 0.001), *(waits_for(watch, 100.0, body=True) for _ in range(4_999))]
    assert watch._step() == pytest.approx(0.1)
    assert watch.watched == len(watched)


def test_transfers_end_in_time_though_slots_are_given_back_after_an_hour() -> None:
    watch = SlotWatch(with_places(1, slot_idle_s=3600.0))
    assert watch._step() == slot_watch.SCAN_MAX_S
