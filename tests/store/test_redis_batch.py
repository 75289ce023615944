"""The batch on a server that answers on command, in a loop with manual time."""

from __future__ import annotations

import asyncio
import contextvars
import math
from types import SimpleNamespace
from typing import Any

import pytest

from autoglm_throttle.settings.groups.store import StoreSettings
from autoglm_throttle.store.protocol import StoreErrorKind
from tests.store.batches import Number, Plant, Server

DEADLINE_S = StoreSettings().redis_deadline_s


def numbers(count: int, start: int = 0, keys: int = 1) -> list[Number]:
    return [Number(start + name, keys) for name in range(count)]


def test_all_of_one_pass_travel_together_and_each_hears_its_own() -> None:
    with Plant() as plant:
        futures = plant.together(*numbers(10))
        assert [call.names for call in plant.server.open] == [[list(range(10))]]
        plant.answer_all()
        assert [future.result() for future in futures] == [[name] for name in range(10)]
        assert plant.reports == [None]


def test_an_idle_service_sends_at_once() -> None:
    with Plant() as plant:
        plant.together(Number(1))
        assert plant.server.seen == [1]
        assert plant.loop.now == 100.0


def test_at_most_two_calls_are_in_flight() -> None:
    with Plant() as plant:
        for name in range(5):
            plant.together(Number(name))
        assert [call.names for call in plant.server.open] == [[[0]], [[1]]]
        plant.server.open[0].answer()
        plant.loop.settle()
        assert [call.names for call in plant.server.open] == [[[1]], [[2, 3, 4]]]


def test_a_call_has_at_most_so_many_keys() -> None:
    with Plant(redis_batch_keys=8) as plant:
        plant.together(*numbers(7, keys=3))
        assert [call.names for call in plant.server.open] == [[[0, 1]], [[2, 3]]]


def test_more_checks_than_a_call_holds_wait_for_the_next_ones() -> None:
    with Plant(redis_batch_keys=2, redis_in_flight=1) as plant:
        plant.together(*numbers(5))[1].cancel()
        assert [call.names for call in plant.server.open] == [[[0, 1]]]
        plant.answer_all()
        assert plant.server.seen == [0, 1, 2, 3, 4]


def test_an_entry_of_too_many_keys_travels_alone() -> None:
    with Plant(redis_batch_keys=2) as plant:
        plant.together(Number(0, 4), Number(1))
        assert [call.names for call in plant.server.open] == [[[0]], [[1]]]


def test_a_check_after_the_call_of_its_iteration_has_its_own_call() -> None:
    with Plant() as plant:

        def begin() -> None:
            plant.loop.call_soon(plant.batch.request, Number(0))
            plant.batch.send_oneway(Number(8))
            plant.loop.call_soon(plant.batch.request, Number(1))

        plant.loop.act(begin)
        plant.loop.settle()
        assert [call.names for call in plant.server.open] == [[[8, 0]], [[1]]]


def test_full_queue_answers_at_once_and_drops_oneway() -> None:
    with Plant(redis_queue=2, redis_in_flight=1) as plant:
        plant.together(Number(0))
        futures = plant.together(*numbers(3, 1))
        assert [future.done() for future in futures] == [False, False, True]
        assert futures[2].result() is StoreErrorKind.QUEUE_FULL
        plant.loop.act(lambda: plant.batch.send_oneway(Number(9)))
        plant.answer_all()
        assert plant.server.seen == [0, 1, 2]
        assert plant.reports == [None, None]


def test_a_caller_that_leaves_before_it_was_sent_is_not_sent() -> None:
    with Plant(redis_in_flight=1) as plant:
        plant.together(Number(0))
        first, second = plant.together(Number(1), Number(2))
        first.cancel()
        plant.answer_all()
        assert plant.server.seen == [0, 2]
        assert second.result() == [2]


def test_abandoned_call_is_not_sent() -> None:
    with Plant(redis_in_flight=1) as plant:
        plant.together(Number(0))
        plant.together(Number(1))[0].cancel()
        plant.answer_all()
        assert plant.batch.stats().calls == 1


@pytest.mark.parametrize(("name", "undone"), [(4, [4, -5]), (5, [5])])
def test_grant_of_cancelled_caller_is_refunded(name: int, undone: list[int]) -> None:
    with Plant() as plant:
        left, stayed = plant.together(Number(name), Number(7))
        left.cancel()
        plant.answer_all()
        assert stayed.result() == [7]
        assert plant.server.seen == [name, 7, *undone[1:]]
        assert plant.batch.stats().late == 1


def test_a_caller_cancelled_after_its_answer_came_gives_it_back() -> None:
    with Plant() as plant:
        entry = Number(4)
        (future,) = plant.together(entry)
        plant.server.open[0].answer()
        plant.loop.settle()
        plant.loop.act(lambda: plant.batch.caller_cancelled(entry, future))
        plant.answer_all()
        assert plant.server.seen == [4, -5]


def test_cancelled_caller_without_grant_refunds_nothing() -> None:
    with Plant() as plant:
        waits, cancelled = plant.together(Number(2), Number(4))
        cancelled.cancel()
        plant.loop.act(lambda: plant.batch.caller_cancelled(Number(2), waits))
        plant.loop.act(lambda: plant.batch.caller_cancelled(Number(4), cancelled))
        plant.server.open[0].refuse()
        plant.loop.settle()
        plant.loop.act(lambda: plant.batch.caller_cancelled(Number(2), waits))
        plant.loop.settle()
        assert plant.server.seen == [2, 4]


def test_deadline_answers_in_flight_and_queued_checks() -> None:
    with Plant(redis_in_flight=1) as plant:
        futures = plant.together(Number(0)) + plant.together(Number(1))
        plant.loop.move(DEADLINE_S - 0.001)
        assert not any(future.done() for future in futures)
        plant.loop.move(0.001)
        assert [future.result() for future in futures] == [StoreErrorKind.TIMEOUT] * 2
        assert plant.reports == [StoreErrorKind.TIMEOUT]
        plant.answer_all()
        assert plant.server.seen == [0], "a decision that was made without the store is not sent"
        assert plant.reports == [StoreErrorKind.TIMEOUT], (
            "an answer that nobody waits for is no sign of health"
        )
        plant.together(Number(2))
        plant.answer_all()
        assert plant.reports == [StoreErrorKind.TIMEOUT, None]


def test_an_answer_that_is_late_for_some_is_an_answer() -> None:
    with Plant(redis_in_flight=1) as plant:
        for name in range(3):
            plant.together(Number(name))
            plant.loop.move(0.015)
        plant.server.open[0].answer()
        plant.loop.settle()
        assert plant.server.seen == [0, 1, 2]
        for _ in range(22):
            plant.loop.move(0.001)
        assert plant.reports == [None, StoreErrorKind.TIMEOUT]
        plant.answer_all()
        assert plant.reports == [None, StoreErrorKind.TIMEOUT, None]


def test_answer_for_cancelled_callers_counts() -> None:
    with Plant() as plant:
        for future in plant.together(Number(1), Number(3)):
            future.cancel()
        plant.answer_all()
        assert plant.reports == [None]


def test_each_has_a_deadline_of_its_own() -> None:
    with Plant(redis_in_flight=1) as plant:
        (first,) = plant.together(Number(0))
        plant.loop.move(DEADLINE_S / 2)
        (second,) = plant.together(Number(1))
        plant.loop.move(DEADLINE_S / 2)
        assert first.result() is StoreErrorKind.TIMEOUT
        assert not second.done()
        plant.loop.move(DEADLINE_S / 2)
        assert second.result() is StoreErrorKind.TIMEOUT
        assert plant.reports == [StoreErrorKind.TIMEOUT] * 2


def test_blocked_slots_do_not_delay_deadlines() -> None:
    with Plant(redis_in_flight=1) as plant:
        plant.together(Number(0))
        plant.loop.move(DEADLINE_S)
        (second,) = plant.together(Number(1))
        plant.loop.move(DEADLINE_S)
        assert second.result() is StoreErrorKind.TIMEOUT


def test_local_decision_is_not_refunded() -> None:
    with Plant() as plant:
        plant.together(Number(4))
        plant.loop.move(DEADLINE_S)
        plant.answer_all()
        assert plant.server.seen == [4]
        assert plant.batch.stats().late == 1


def test_blocked_loop_does_not_time_out_the_store() -> None:
    with Plant() as plant:
        (future,) = plant.together(Number(0))
        plant.loop.stall(0.3)
        assert not future.done()
        plant.answer_all()
        assert future.result() == [0]
        assert plant.reports == [None]


def test_connection_that_never_opens_is_given_up() -> None:
    with Plant(redis_in_flight=1) as plant:
        plant.server.is_connected = False
        plant.together(Number(0))
        for _ in range(9):
            plant.loop.stall(0.3)
        assert plant.reports == []
        plant.loop.move(DEADLINE_S)
        assert plant.reports == [StoreErrorKind.TIMEOUT]
        plant.loop.move(StoreSettings().redis_connect_s - DEADLINE_S)
        assert plant.server.open == []
        assert plant.reports == [StoreErrorKind.TIMEOUT, StoreErrorKind.UNREACHABLE]


def test_each_stall_extends_the_deadline() -> None:
    with Plant() as plant:
        for name in (0, 2, 4):
            (future,) = plant.together(Number(name))
            plant.loop.stall(0.3)
            assert not future.done()
            plant.answer_all()
            plant.loop.move(0.02)
            assert future.result() == [name]


def test_endless_call_loses_slot_after_backstop() -> None:
    with Plant(redis_in_flight=1, redis_read_s=1.0) as plant:
        plant.together(Number(0))
        plant.loop.move(DEADLINE_S)
        plant.loop.move(1.0 - DEADLINE_S)
        assert plant.server.open == []
        assert plant.reports == [StoreErrorKind.TIMEOUT] * 2
        plant.together(Number(1))
        assert plant.server.seen == [0, 1]


def test_oneway_call_has_backstop_too() -> None:
    with Plant() as plant:
        plant.loop.act(lambda: plant.batch.send_oneway(Number(0)))
        plant.loop.settle()
        plant.loop.move(1.0)
        assert plant.server.open == []
        assert plant.reports == [StoreErrorKind.TIMEOUT]


def test_an_idle_batch_has_no_timer() -> None:
    with Plant() as plant:
        plant.together(Number(0))
        plant.answer_all()
        plant.loop.move(DEADLINE_S)
        assert plant.batch._running.tick_ends_s == math.inf


def test_a_trouble_goes_to_all_of_the_call_and_is_reported_once() -> None:
    with Plant() as plant:
        futures = plant.together(*numbers(3))
        plant.server.open[0].refuse(StoreErrorKind.READONLY)
        plant.loop.settle()
        assert [future.result() for future in futures] == [StoreErrorKind.READONLY] * 3
        assert plant.reports == [StoreErrorKind.READONLY]


@pytest.mark.parametrize("reply", [[], None, "OK", [1, 2, 3]])
def test_mismatched_reply_answers_no_caller(reply: object) -> None:
    with Plant() as plant:
        futures = plant.together(*numbers(2))
        plant.server.open[0].refuse(reply)
        plant.loop.settle()
        assert [future.result() for future in futures] == [StoreErrorKind.CONFUSED] * 2
        assert plant.reports == [StoreErrorKind.CONFUSED]


def test_tags_have_calls_of_their_own_in_one_round_trip() -> None:
    with Plant(split=True) as plant:
        futures = plant.together(Number(0, tag=1), Number(1, tag=2), Number(2, tag=1))
        assert [call.names for call in plant.server.open] == [[[0, 2], [1]]]
        plant.server.open[0].refuse([[0], [2]], StoreErrorKind.BUSY)
        plant.loop.settle()
        assert [future.result() for future in futures] == [[0], StoreErrorKind.BUSY, [2]]
        assert plant.reports == [StoreErrorKind.BUSY]


def test_abort_answers_all_and_frees_the_slots() -> None:
    with Plant(redis_in_flight=1) as plant:
        sent, waiting = plant.together(Number(0)) + plant.together(Number(1))
        plant.loop.act(lambda: plant.batch.send_oneway(Number(8)))
        plant.loop.act(plant.batch.abort)
        plant.loop.settle()
        assert sent.result() is StoreErrorKind.LOST
        assert waiting.result() is StoreErrorKind.UNREACHABLE
        assert plant.reports == [], "whoever aborts knows why"
        plant.together(Number(2))
        assert plant.server.seen == [0, 2]


def test_calls_run_in_no_callers_context() -> None:
    who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")
    seen: list[str] = []
    with Plant() as plant:

        class Looking(Server):
            async def __call__(self, calls: Any, wanted: Any) -> Any:
                seen.append(who.get())
                return await super().__call__(calls, wanted)

        plant.server = plant.batch.script = Looking(cluster=False)

        async def caller() -> None:
            who.set("a caller")
            await plant.batch.request(Number(0))

        task = plant.loop.create_task(caller())
        plant.loop.settle()
        plant.answer_all()
        assert task.done()
    assert seen == ["nobody"]


def test_an_eager_loop_batches_all_the_same() -> None:
    """A factory that starts tasks in ``create_task`` itself, as ``asyncio.eager_task_factory`` does."""
    with Plant() as plant:
        plant.loop.set_task_factory(lambda *_, **__: pytest.fail("not by the factory"))
        futures = [plant.batch.request(entry) for entry in numbers(3)]
        plant.loop.set_task_factory(None)
        plant.loop.settle()
        plant.answer_all()
        assert plant.server.seen == [0, 1, 2]
        assert all(future.done() for future in futures)


def test_task_cancelled_before_start_blocks_no_caller() -> None:
    with Plant() as plant:
        plant.batch.request(Number(0))
        for task in asyncio.all_tasks(plant.loop):
            task.cancel()
        plant.loop.settle()
        plant.together(Number(1))
        plant.loop.move(DEADLINE_S / 10)
        assert plant.server.seen == [0, 1]


def test_codec_error_leaves_no_caller_waiting() -> None:
    def broken(entries: object) -> object:
        raise ZeroDivisionError

    with Plant() as plant:
        plant.batch._protocol = SimpleNamespace(encode=broken)
        broke: list[object] = []
        plant.loop.set_exception_handler(lambda loop, context: broke.append(context["exception"]))
        (future,) = plant.together(Number(0))
        assert future.result() is StoreErrorKind.CONFUSED
        assert plant.batch.stats().waiting == 0


def test_refund_amid_an_expiry_is_sent_after_it() -> None:
    """An abandoned request may end at any point of the loop's own work."""
    with Plant(redis_in_flight=1) as plant:
        plant.together(Number(0))
        waiting = plant.together(Number(1))

        refunds = [Number(9)]

        class Due(float):
            def __le__(self, other: float) -> bool:
                if other > 100.0 and refunds:  # the deadline of the other
                    plant.batch.send_oneway(refunds.pop())
                return super().__le__(other)

        late = plant.loop.act(lambda: plant.batch.request(Number(2), Due(plant.loop.now + 2 * DEADLINE_S)))
        plant.loop.move(DEADLINE_S)
        assert [future.done() for future in (*waiting, late)] == [True, False]
        plant.answer_all()
        assert plant.server.seen == [0, 2, 9]
        assert plant.batch.stats().waiting == 0


def test_queue_order_is_kept_when_checks_are_dropped() -> None:
    with Plant(redis_in_flight=1) as plant:
        plant.together(Number(0), Number(1))
        plant.together(Number(2))
        plant.loop.act(lambda: plant.batch.send_oneway(Number(3)))
        plant.loop.move(DEADLINE_S / 2)
        plant.together(Number(4))
        plant.loop.move(DEADLINE_S / 2)
        plant.together(Number(5))
        plant.answer_all()
        assert plant.server.seen == [0, 1, 3, 4, 5]
