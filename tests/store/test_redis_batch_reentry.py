"""Re-entry: another thread that reads, and the garbage collector that refunds.

A request that is forgotten while it holds units ends when the collector runs, which may be at any call.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from autoglm_throttle.store.batch_rules import BatchRules
from tests.store.batches import Number, Plant

DEADLINE_S = BatchRules().deadline_s


class Lengthy(list[Number]):
    """Entries whose counting takes so long that another call has come into flight before it ends."""

    plant: Plant

    def __len__(self) -> int:
        flights = cast("set[object]", self.plant.batch._batch_calls)
        flights.add(object())
        return super().__len__()


def test_calls_may_come_and_go_while_a_thread_looks() -> None:
    with Plant() as plant:
        plant.together(Number(0))
        (flight,) = plant.batch._batch_calls
        entries = Lengthy(flight.entries)
        entries.plant = plant
        flight.entries = entries
        assert plant.batch.stats().waiting == 1
        plant.batch._batch_calls.intersection_update({flight})
        plant.answer_all()


class Collector:
    """Runs once, at the so-many-eth look at anything that waits."""

    def __init__(self, plant: Plant, at_look: int) -> None:
        self.plant = plant
        self.looks_left = at_look
        self.armed = False

    def looked(self) -> None:
        self.looks_left -= self.armed
        if self.armed and not self.looks_left:
            self.plant.batch.send_oneway(Number(9))


class Watched(asyncio.Future[Any]):
    """One who waits."""

    collector: Collector

    def done(self) -> bool:
        self.collector.looked()
        return super().done()


class Due(float):
    """And until when."""

    collector: Collector

    def __le__(self, other: float) -> bool:
        self.collector.looked()
        return super().__le__(other)


@pytest.mark.parametrize(
    ("expired", "at_look"), [(0, look) for look in range(1, 7)] + [(2, look) for look in range(1, 10)]
)
def test_refund_during_queue_scan_is_sent(
    expired: int, at_look: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Plant(BatchRules(in_flight=1)) as plant:
        broke: list[object] = []
        plant.loop.set_exception_handler(lambda _, context: broke.append(context))
        plant.together(Number(0))
        collector = Watched.collector = Due.collector = Collector(plant, at_look)
        monkeypatch.setattr(plant.loop, "create_future", lambda: Watched(loop=plant.loop))
        ends = [plant.batch.due()] * expired + [plant.batch.due() + 0.01] * (3 - expired)
        queued = plant.loop.act(
            lambda: [plant.batch.request(Number(name), Due(due)) for name, due in enumerate(ends, 1)]
        )
        plant.loop.settle()
        plant.loop.now += DEADLINE_S
        collector.armed = True
        plant.batch._tick()
        collector.armed = False
        monkeypatch.undo()
        assert collector.looks_left <= 0, "the collector has run"
        assert [future.done() for future in queued] == [True] * expired + [False] * (3 - expired)
        plant.answer_all()
        assert sorted(plant.server.seen) == [0, *range(expired + 1, 4), 9]
        assert plant.batch.stats().waiting == 0
        assert broke == []


def test_queue_order_is_kept_when_checks_are_dropped() -> None:
    with Plant(BatchRules(in_flight=1)) as plant:
        plant.together(Number(0), Number(1))
        plant.together(Number(2))
        plant.loop.act(lambda: plant.batch.send_oneway(Number(3)))
        plant.loop.move(DEADLINE_S / 2)
        plant.together(Number(4))
        plant.loop.move(DEADLINE_S / 2)
        plant.together(Number(5))
        plant.answer_all()
        assert plant.server.seen == [0, 1, 3, 4, 5]
