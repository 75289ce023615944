"""Bug 5: what may block - a store, a driver - is asked in the request path."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from autoglm_throttle import GpuSample, Settings, Throttle
from autoglm_throttle.asgi import ThrottleMiddleware
from tests.asgi.run_app import App, at_once, http_scope
from tests.peers_bugs.limiter import Plain, answer


class Driver:
    """Notes who calls it."""

    name = "driver"
    min_interval_s = 0.0

    def __init__(self) -> None:
        self.callers: set[int] = set()
        self.called = threading.Event()

    def read(self) -> Sequence[GpuSample]:
        self.callers.add(threading.get_ident())
        self.called.set()
        return []

    def close(self) -> None:
        self.callers.add(threading.get_ident())

    def reset_after_fork(self) -> None:
        self.callers.add(threading.get_ident())


def check(app: App, driver: Driver) -> None:
    for _ in range(20):
        at_once(app, http_scope("/x"))
    assert driver.called.wait(60)
    assert threading.get_ident() not in driver.callers, "the driver was called by a request"


def test_only_the_samplers_thread_calls_the_driver() -> None:
    driver = Driver()
    throttle = Throttle(Settings(sample_interval_s=0.2), gpu=driver)
    check(ThrottleMiddleware(answer, throttle=throttle), driver)
    throttle.snapshot()
    throttle.control_state()
    throttle.stop()
    assert threading.get_ident() not in driver.callers


def test_planted_call_is_found() -> None:
    driver = Driver()

    class Asks(Plain):
        def key(self, scope: Any) -> str:
            driver.read()
            return ""

    with pytest.raises(AssertionError, match="by a request"):
        check(Asks(answer), driver)
