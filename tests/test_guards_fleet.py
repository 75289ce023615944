"""The guards of two throttles on one real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autoglm_throttle import GuardRefused, Settings, State, Throttle
from tests.stores.polling import until
from tests.stores.server import RedisServer
from tests.test_guards import fail, seen


class TestFleet:
    @pytest.fixture
    def two(self, own_server: RedisServer) -> Iterator[tuple[Throttle, Throttle]]:
        """Two processes' throttles on one server."""
        made = [
            Throttle(
                Settings(
                    redis_url=own_server.url, breaker_shared=True, breaker_store_deadline_s=10.0, gpu="none"
                ),
                sampling="manual",
            )
            for _ in range(2)
        ]
        yield made[0], made[1]
        for throttle in made:
            throttle.stop()

    def test_an_opening_is_heard_by_the_others_also_after_a_restart(
        self, two: tuple[Throttle, Throttle]
    ) -> None:
        here, there = two
        there.guard("db").allow()
        there.stop()
        there.start()
        fail(here, "db")
        until(lambda: there.guard("db").state() is State.OPEN, 60.0, "the opening is heard")
        assert seen(there).store_up
        with pytest.raises(GuardRefused) as refused, there.guard("db"):
            pytest.fail("let through")
        assert 0.0 < refused.value.retry_after_s <= 10.0
        here.guard("db").reset()
        until(lambda: there.guard("db").state() is State.CLOSED, 60.0, "the operator's word is heard")

    def test_a_killed_server_leaves_each_with_its_own_breaker(
        self, two: tuple[Throttle, Throttle], own_server: RedisServer
    ) -> None:
        here, there = two
        for throttle in two:
            throttle.guard("db").allow()
        own_server.kill()
        until(lambda: seen(here).store_up is False, 60.0, "the loss is seen")
        fail(here, "db")
        with pytest.raises(GuardRefused), here.guard("db"):
            pytest.fail("let through")
        with there.guard("db"):
            pass
