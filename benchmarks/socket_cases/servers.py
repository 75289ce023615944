"""Servers of the cases: one process of uvicorn or granian with the wrapped service, or several workers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from unittest import mock

from examples.demo.process import DemoProcess
from tests.servers import server as servers
from tests.servers.server import Server

APP = "benchmarks.socket_cases.service:app"
UVICORN = ("-m", "uvicorn", "--port", "{port}", "--log-level", "info", "--no-access-log", "--backlog", "4096")
FRONT = "tests.servers.front_service:app"
GRANIAN = ("-m", "granian", "--port", "{port}", "--interface", "asgi", "--no-access-log")
COMMANDS: Mapping[str, tuple[str, ...]] = {"uvicorn": (*UVICORN, APP), "granian": (*GRANIAN, APP)}
PREFIX = "AUTOGLM_THROTTLE_"

Settings = Mapping[str, object]


@contextlib.contextmanager
def environment(settings: Settings, **more: str) -> Iterator[None]:
    """Add settings of the throttle, and variables of the service, to the environment of the servers."""
    ours = {PREFIX + name.upper(): str(value) for name, value in settings.items()}
    with mock.patch.dict(servers.ENVIRONMENT, ours | more):
        yield


@contextlib.contextmanager
def served(kind: str, *, file: str = "", call_s: float = 1.0, **settings: object) -> Iterator[Server]:
    """Run one process of the service.

    Args:
        kind: ``uvicorn`` or ``granian``.
        file: settings that only a file may set; empty: none.
        call_s: seconds of a call of the client packages.
        settings: settings of the throttle in the environment; ``/state`` is exempt always.
    """
    ours = {"gpu": "none", "exempt_paths": "/state", **settings}
    if file:
        ours["config_file"] = file
    with environment(ours, FIELD_CALL_S=str(call_s)):
        server = Server(*COMMANDS[kind])
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def fleet(workers: int, capacity_rps: float, **settings: object) -> Iterator[Server]:
    """Run workers of uvicorn in front of one simulated GPU in a process of its own; one has a supervisor."""
    ours = {
        "gpu": "none",
        "exempt_paths": "/state",
        "priority_header_trust": "any",
        "workers": workers,
        "slo_s": 2.0,
        **{f"rate_{name}_rps": 5_000 for name in ("high", "mid", "low")},
        **settings,
    }
    many = (*UVICORN, "--workers", str(workers), FRONT)
    command = many if workers > 1 else ("-m", "benchmarks.socket_cases.supervised", "{port}", FRONT)
    with DemoProcess("tests.servers.modelled_gpu", {"capacity_rps": capacity_rps}) as gpu:
        with environment(ours, SHARED_PORT=str(gpu.port)):
            server = Server(*command)
        try:
            yield server
        finally:
            server.stop()
