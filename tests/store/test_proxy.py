"""Guarantees of the proxy between a client and a server."""

from __future__ import annotations

import contextlib
import gc
import socket
import threading

import pytest

from tests.store.proxy import SlowProxy
from tests.store.server import RedisServer

pytestmark = pytest.mark.server


@pytest.mark.slow
def test_it_loses_no_connection_that_came_while_it_closed(redis_server: RedisServer) -> None:
    """A lost one is found as an unclosed socket by whichever test runs when the garbage is collected."""
    with SlowProxy(redis_server.port) as proxy:
        ended = threading.Event()

        def knock() -> None:
            while not ended.is_set():
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", proxy.port), 1.0):
                    pass

        callers = [threading.Thread(target=knock) for _ in range(3)]
        for caller in callers:
            caller.start()
        for _ in range(20):
            proxy.reject()
            proxy.accept()
            proxy.cut()
        ended.set()
        for caller in callers:
            caller.join()
    assert proxy.opened > 0
    gc.collect()
