"""Defers Ctrl-C, so that it cannot lose the report of a finished run."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

from autoglm_throttle.traffic.generator.launch import on_stop_signal


class SignalGuard:
    """Records a stop request that cannot be executed at once."""

    def __init__(self) -> None:
        self.stop_requested: bool = False
        """Whether a stop was requested while nothing was being sent."""

    def request_stop(self) -> None:
        """Record the request."""
        self.stop_requested = True

    def deliver(self) -> None:
        """Deliver a deferred signal to the sender that runs by now."""
        if self.stop_requested:
            self.stop_requested = False
            signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def defer_signals() -> Iterator[SignalGuard]:
    """Defer Ctrl-C and SIGTERM. A run, which handles them itself, may begin and end meanwhile.

    Without this, a signal between the run's last response and the end of its report would lose the report.
    """
    signal_guard = SignalGuard()
    with on_stop_signal(signal_guard.request_stop):
        yield signal_guard
