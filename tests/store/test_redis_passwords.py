"""No text that is made on the way to a store shows its password."""

from __future__ import annotations

import traceback

import pytest
from pydantic import SecretStr

from autoglm_throttle.settings.groups.store import StoreSettings
from autoglm_throttle.store.protocol import StoreCharge, StoreErrorKind
from autoglm_throttle.store.redis_user_limits import RedisUserLimitStore
from autoglm_throttle.types import UserLimit
from tests.store.store_checks import charged

WHO = "ann:hush"
URLS = [
    f"redis://{WHO}@127.0.0.1:1/1",
    f"unix://{WHO}@/nowhere.sock",
    f"redis+sentinel://{WHO}@127.0.0.1:1/primary?sentinel_username=s&sentinel_password=hush",
    f"redis+cluster://{WHO}@127.0.0.1:1",
]
CHARGES = [StoreCharge("user", (UserLimit("user-60s", 10, 60),), "a" * 16, 1)]


@pytest.mark.parametrize("url", URLS)
async def test_of_a_redis(url: str, caplog: pytest.LogCaptureFixture) -> None:
    settings = StoreSettings(redis_url=SecretStr(url))
    window = RedisUserLimitStore(settings)
    clients = window.clients
    assert await charged(window, *CHARGES) is StoreErrorKind.UNREACHABLE
    assert await window.probe() is StoreErrorKind.UNREACHABLE
    assert window.last_error
    texts = [window.last_error, caplog.text]
    for known in (
        settings,
        clients,
        clients.url,
        clients.current(),
        window,
        window.batch(),
    ):
        texts += [repr(known), str(known)]
    if not clients.cluster:  # that one connects at once
        texts.append(repr(clients.sync(0.1)))
    assert "127.0.0.1" in "".join(texts) or "nowhere" in "".join(texts)
    assert [text for text in texts if "hush" in text] == []


@pytest.mark.parametrize(
    "url",
    [
        f"http://{WHO}@cache",
        f"redis://{WHO}@",
        f"redis://{WHO}@cache:port",
        f"redis://{WHO}@cache/x",
        f"redis://{WHO}@cache?password=hush",
        "redis://ann:hu/sh@cache",
        f"redis://{WHO}@[cache",
        f"redis://{WHO}@one,two",
        f"redis+sentinel://{WHO}@one",
    ],
)
def test_of_a_url_that_is_none(url: str) -> None:
    with pytest.raises(ValueError, match="redis_url: must be redis:") as refused:
        StoreSettings(redis_url=SecretStr(url))
    assert "hu" not in str(refused.value).replace("%23", "")
    assert "hush" not in "".join(traceback.format_exception_only(refused.value))


async def test_of_a_server_that_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    window = RedisUserLimitStore(StoreSettings(redis_url=SecretStr(URLS[0])))

    async def refuse(*_: object) -> None:
        raise ConnectionError(f"cannot reach {URLS[0]}")

    client = window.clients.current()
    monkeypatch.setattr(client.connection_pool, "get_connection", refuse)
    assert await charged(window, *CHARGES) is StoreErrorKind.UNREACHABLE
    assert window.last_error == "ConnectionError: cannot reach redis://ann:***@127.0.0.1:1/1"
