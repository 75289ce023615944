"""The guards of two throttles on one real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autoglm_throttle import BreakerState, GuardRejected, Settings, Throttle
from tests.resilience.test_guard_registry import fail, seen
from tests.store.polling import until
from tests.store.server import RedisServer


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

    def test_opening_reaches_others_also_after_a_restart(self, two: tuple[Throttle, Throttle]) -> None:
        here, there = two
        there.guard("db").allow()
        there.stop()
        there.start()
        fail(here, "db")
        until(lambda: there.guard("db").state() is BreakerState.OPEN, 60.0, "the opening is heard")
        assert seen(there).store_up
        with pytest.raises(GuardRejected) as rejected, there.guard("db"):
            pytest.fail("let through")
        assert 0.0 < rejected.value.retry_after_s <= 10.0
        here.guard("db").reset()
        until(lambda: there.guard("db").state() is BreakerState.CLOSED, 60.0, "the operator's word is heard")

    def test_a_killed_server_leaves_each_with_its_own_breaker(
        self, two: tuple[Throttle, Throttle], own_server: RedisServer
    ) -> None:
        here, there = two
        for throttle in two:
            throttle.guard("db").allow()
        own_server.kill()
        until(lambda: seen(here).store_up is False, 60.0, "the loss is seen")
        fail(here, "db")
        with pytest.raises(GuardRejected), here.guard("db"):
            pytest.fail("let through")
        with there.guard("db"):
            pass
