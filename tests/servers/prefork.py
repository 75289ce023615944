"""Serves like a server that loads the app before it forks: threads and locks stay behind in the parent.

Usage: ``python -m tests.servers.prefork PORT``
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
import warnings

import uvicorn

from tests.servers import service


def hold(held: threading.Event, forked: threading.Event) -> None:
    """Hold the throttle's lock over the fork, as any thread of the parent might."""
    with service.throttle.admission.parts.settlement.lock:
        held.set()
        forked.wait()


def main(port: int) -> None:
    """Sample in the parent, fork while a lock is held, serve in the child."""
    service.throttle.start()
    deadline = time.monotonic() + 60.0
    while service.throttle.snapshot().control.telemetry != "fresh":
        if time.monotonic() > deadline:
            sys.exit("the parent has no sample")
        time.sleep(0.01)
    listener = socket.create_server(("127.0.0.1", port))
    warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on: a fork beside threads
    held, forked = threading.Event(), threading.Event()
    threading.Thread(target=hold, args=(held, forked), daemon=True).start()
    held.wait()
    child = os.fork()
    forked.set()
    if child == 0:
        uvicorn.Server(uvicorn.Config(service.app, log_level="warning")).run(sockets=[listener])
        os._exit(0)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    os.waitpid(child, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
