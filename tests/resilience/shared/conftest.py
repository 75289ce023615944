"""Fleets of stores that end with their test, and their pauses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from autoglm_throttle.settings.groups.breaker import SharedBreakerSettings
from autoglm_throttle.settings.groups.store import StoreSettings
from autoglm_throttle.store.breakers import state, sync
from autoglm_throttle.store.breakers.sync import RedisBreakerStore
from autoglm_throttle.store.client import RedisClients
from tests.resilience.shared.fleets import PATIENCE_S
from tests.store.polling import until

Made = Callable[..., RedisBreakerStore]


@pytest.fixture
def made(redis_prefix: str) -> Iterator[Made]:
    """Make stores, each as another process would, that listen; they are stopped after the test.

    Their deadlines are long ones, or on a busy machine half of the answers would come too late.
    """
    stores: list[RedisBreakerStore] = []

    def make(
        url: str,
        *,
        listens: bool = True,
        connect: Any = None,
        timeout_s: float = PATIENCE_S,
        deadline_s: float = PATIENCE_S / 4,
    ) -> RedisBreakerStore:
        settings = StoreSettings(redis_url=url, redis_prefix=redis_prefix)  # type: ignore[arg-type]  # a text is parsed
        clients = RedisClients(settings)
        store = RedisBreakerStore(
            connect or (lambda: clients.sync(timeout_s)),
            settings,
            # Longer than any deadline that users may set.
            SharedBreakerSettings.model_construct(store_deadline_s=deadline_s),
            cluster=clients.cluster,
        )
        stores.append(store)
        if listens:
            store.start()
            until(lambda: store.subscriber.is_listening, PATIENCE_S, "it listens")
        return store

    yield make
    for store in stores:
        store.stop()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask again after a tenth of the time."""
    for module in (state, sync):
        monkeypatch.setattr(module, "PROBE_PAUSES_S", (0.1, 0.2))
