"""Serves like a server that loads the app before it forks: threads and locks stay behind in the parent.

Usage: ``python -m tests.servers.prefork PORT``
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import warnings

import uvicorn

from tests.servers import service


def main(port: int) -> None:
    """Sample in the parent, fork while a lock is held, serve in the child."""
    service.throttle.start()
    deadline = time.monotonic() + 5.0
    while service.throttle.snapshot().regime.telemetry != "fresh":
        if time.monotonic() > deadline:
            sys.exit("the parent has no sample")
        time.sleep(0.01)
    listener = socket.create_server(("127.0.0.1", port))
    warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on: a fork beside threads
    with service.throttle._rows.lock:
        child = os.fork()
    if child == 0:
        uvicorn.Server(uvicorn.Config(service.app, log_level="warning")).run(sockets=[listener])
        os._exit(0)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    os.waitpid(child, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
