"""Users of the server's access control list: rights that a window needs, and errors without them."""

from __future__ import annotations

import pytest

from autoglm_throttle.store.protocol import StoreErrorKind
from autoglm_throttle.store.script import RIGHTS
from tests.store.server import RedisServer, newest
from tests.store.store_checks import LIMIT, ask, charge, left, window_at

pytestmark = pytest.mark.server


class TestRights:
    """A user of the server's access control list."""

    async def test_named_are_enough(self, restricted: str, redis_prefix: str) -> None:
        window = window_at(restricted, redis_prefix)
        assert await window.probe() is None
        for limit in (LIMIT, 5000):
            assert await left(window, 1, limit=limit) == limit - 1
            answer = await ask(window, 1, limit=limit)
            assert not isinstance(answer, StoreErrorKind)
            window.give_back(window.protocol.build_check([charge(1, limit=limit)]), answer)
            assert await left(window, 1, limit=limit) == limit - 2
            refused = await ask(window, 1, limit=limit, units=limit)
            assert not isinstance(refused, StoreErrorKind)
            assert refused[0] > 0

    @pytest.mark.parametrize("missing", ["time", "evalsha", "lpush"])
    async def test_one_that_is_missing_is_forbidden_and_all_are_named(
        self,
        redis_server: RedisServer,
        restricted: str,
        redis_prefix: str,
        missing: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        redis_server.command("ACL", "SETUSER", redis_prefix, f"-{missing}")
        window = window_at(restricted, redis_prefix)
        assert [await ask(window, 1) for _ in range(3)] == [StoreErrorKind.FORBIDDEN] * 3
        named = [record for record in caplog.records if RIGHTS in record.getMessage()]
        assert len(named) == 1, "once, not for each request"

    async def test_another_prefix_is_forbidden(self, restricted: str, redis_prefix: str) -> None:
        window = window_at(restricted, f"x{redis_prefix}")
        assert await ask(window, 1) is StoreErrorKind.FORBIDDEN

    async def test_a_wrong_password_is_forbidden(
        self, redis_server: RedisServer, restricted: str, redis_prefix: str
    ) -> None:
        window = window_at(redis_server.url_as(redis_prefix, "wrong"), redis_prefix)
        assert await ask(window, 1) is StoreErrorKind.FORBIDDEN
        assert await left(window_at(restricted, redis_prefix), 1) == LIMIT - 1

    async def test_a_missing_password_is_forbidden(self, redis_prefix: str) -> None:
        with RedisServer(newest(), password="hush") as server:
            stranger = window_at(f"redis://127.0.0.1:{server.port}", redis_prefix)
            assert await ask(stranger, 1) is StoreErrorKind.FORBIDDEN
            assert await left(window_at(server.url, redis_prefix), 1) == LIMIT - 1
