"""What may happen to a throttle at a bad moment, and must not make a request fail or wait."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

from autoglm_throttle import Demand, Outcome, Priority, Settings, Throttle

DEADLINE_S = 10.0
"""For what a thread does at once; only a fault waits so long."""


class Collecting(Demand):
    """A demand at which the garbage collector runs while the throttle holds its lock."""

    __slots__ = ()

    @property
    def cost(self) -> float:
        gc.collect()
        return 1.0

    @cost.setter
    def cost(self, cost: float) -> None:
        pass


def test_an_abandoned_stream_is_settled_while_another_request_is_decided() -> None:
    throttle = Throttle(Settings(gpu="none"))

    def stream() -> Iterator[None]:
        permit = throttle.try_admit(Demand())
        assert permit.admitted
        with permit:
            yield

    gc.disable()
    try:
        abandoned: list[object] = [stream()]
        next(abandoned[0])  # type: ignore[call-overload]
        abandoned.append(abandoned)
        del abandoned
        decided = threading.Event()

        def decide() -> None:
            throttle.try_admit(Collecting())
            decided.set()

        threading.Thread(target=decide, daemon=True).start()
        assert decided.wait(DEADLINE_S)
    finally:
        gc.enable()
    snapshot = throttle.snapshot()
    assert snapshot.outcomes[Priority.MID, Outcome.NEUTRAL] == 1
    assert snapshot.active[Priority.MID] == 1
