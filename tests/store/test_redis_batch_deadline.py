"""Latest sending time of a call, and the end of a request that asks twice."""

from __future__ import annotations

from autoglm_throttle.settings.groups.store import StoreSettings
from autoglm_throttle.store.protocol import StoreErrorKind
from tests.store.batches import Number, Plant

DEADLINE_S = StoreSettings().redis_deadline_s


class TestWanted:
    """Whether a call that had to wait for a connection may still be sent."""

    def test_call_is_retried_until_a_caller_timed_out(self) -> None:
        with Plant() as plant:
            plant.loop.call_soon(plant.batch.send_oneway, Number(8))
            plant.together(Number(0))
            (call,) = plant.server.open
            assert call.names == [[8, 0]], "a word in front, that waits for nothing"
            plant.loop.move(DEADLINE_S - 0.001)
            assert call.wanted()
            plant.loop.move(0.001)
            assert not call.wanted()

    def test_first_expired_caller_decides(self) -> None:
        with Plant(redis_in_flight=1) as plant:
            plant.together(Number(0))
            plant.together(Number(1))
            plant.loop.move(DEADLINE_S / 2)
            (younger,) = plant.together(Number(2))
            plant.server.open[0].answer()
            plant.loop.settle()
            (call,) = plant.server.open
            assert call.names == [[1, 2]]
            plant.loop.move(DEADLINE_S / 2)
            assert not call.wanted()
            assert not younger.done()
            call.refuse(StoreErrorKind.TIMEOUT)
            plant.loop.settle()
            assert younger.result() is StoreErrorKind.TIMEOUT

    def test_cancelled_caller_decides_nothing(self) -> None:
        with Plant() as plant:
            plant.together(Number(0))[0].cancel()
            (call,) = plant.server.open
            plant.loop.move(DEADLINE_S)
            assert call.wanted()

    def test_a_loop_that_stood_still_has_decided_nothing_yet(self) -> None:
        with Plant() as plant:
            (future,) = plant.together(Number(0))
            (call,) = plant.server.open
            plant.loop.stall(0.3)
            assert call.wanted()
            call.answer()
            plant.loop.settle()
            assert future.result() == [0]

    def test_a_call_that_was_not_sent_any_more_is_no_second_silence(self) -> None:
        with Plant() as plant:
            plant.together(Number(0))
            plant.loop.move(DEADLINE_S)
            plant.server.open[0].refuse(StoreErrorKind.TIMEOUT)
            plant.loop.settle()
            assert plant.reports == [StoreErrorKind.TIMEOUT]


class TestDue:
    """A request that asks twice has one deadline."""

    def test_a_second_question_ends_with_the_first(self) -> None:
        with Plant(redis_in_flight=1) as plant:
            due = plant.loop.time() + plant.batch.deadline_s
            plant.loop.move(DEADLINE_S * 0.8)
            (other,) = plant.together(Number(0))
            second = plant.loop.act(lambda: plant.batch.request(Number(1), due))
            plant.loop.move(DEADLINE_S * 0.2)
            assert second.result() is StoreErrorKind.TIMEOUT
            assert not other.done()
            plant.loop.move(DEADLINE_S * 0.8)
            assert other.result() is StoreErrorKind.TIMEOUT

    def test_also_behind_others_that_have_longer(self) -> None:
        with Plant() as plant:
            (earlier,) = plant.together(Number(2))
            plant.loop.move(DEADLINE_S * 0.2)
            due = plant.loop.time() + plant.batch.deadline_s
            plant.loop.move(DEADLINE_S * 0.7)
            other, second = plant.loop.act(
                lambda: [plant.batch.request(Number(0)), plant.batch.request(Number(1), due)]
            )
            plant.loop.settle()
            plant.loop.move(DEADLINE_S * 0.1)
            assert earlier.result() is StoreErrorKind.TIMEOUT
            plant.loop.move(DEADLINE_S * 0.2)
            assert second.result() is StoreErrorKind.TIMEOUT
            assert not other.done()

    def test_expired_check_is_not_sent(self) -> None:
        with Plant() as plant:
            due = plant.loop.time() + plant.batch.deadline_s
            plant.loop.move(DEADLINE_S)
            future = plant.loop.act(lambda: plant.batch.request(Number(1), due))
            plant.loop.settle()
            assert future.result() is StoreErrorKind.TIMEOUT
            assert plant.server.seen == []
