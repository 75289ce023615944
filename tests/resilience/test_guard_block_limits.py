"""Time limits of blocks."""

from __future__ import annotations

import anyio
import pytest

from autoglm_throttle.resilience.guard import Guard
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import BreakerState
from tests.loops import run
from tests.resilience.tripping import Clocked, half_open


def limited(timeout_s: float) -> Clocked:
    return Clocked(BreakerSettings(failures=1, timeout_s=timeout_s))


def test_async_block_over_its_time_limit_is_a_failure(backend: str) -> None:
    circuit = limited(0.001)

    async def main() -> None:
        with pytest.raises(TimeoutError, match=r"db has not answered within 0\.001 s"):
            async with Guard(circuit):
                await anyio.sleep_forever()

    run(backend, main)
    assert circuit.state() is BreakerState.OPEN
    assert circuit.view().last_failure.startswith("TimeoutError")


def test_slow_probe_in_a_block_opens_again(backend: str) -> None:
    circuit = half_open(BreakerSettings(failures=1, timeout_s=0.001))

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with Guard(circuit):
                await anyio.sleep_forever()

    run(backend, main)
    assert circuit.state() is BreakerState.OPEN
    assert circuit.view().probes == 0


def test_a_block_in_time_ends_as_it_would_without_a_limit(backend: str) -> None:
    circuit = limited(60.0)

    async def main() -> None:
        async with Guard(circuit):
            await anyio.lowlevel.checkpoint()
        with pytest.raises(KeyError):
            async with Guard(circuit):
                raise KeyError

    run(backend, main)
    assert circuit.state() is BreakerState.OPEN
    assert circuit.view().last_failure == "KeyError"


def test_outer_cancellation_is_neutral_despite_a_timeout(backend: str) -> None:
    circuit = half_open(BreakerSettings(failures=1, timeout_s=60.0))

    async def main() -> None:
        with anyio.move_on_after(0.001) as scope:
            async with Guard(circuit):
                await anyio.sleep_forever()
        assert scope.cancelled_caught

    run(backend, main)
    assert circuit.state() is BreakerState.HALF_OPEN
    assert circuit.view().probes == 0


def test_limits_within_limits_end_the_inner_block_alone(backend: str) -> None:
    inner, outer = limited(0.001), limited(60.0)

    async def main() -> None:
        async with Guard(outer):
            with pytest.raises(TimeoutError):
                async with Guard(inner):
                    await anyio.sleep_forever()

    run(backend, main)
    assert (inner.state(), outer.state()) == (BreakerState.OPEN, BreakerState.CLOSED)


def test_a_block_left_in_another_task_gives_its_place_back(backend: str) -> None:
    circuit = half_open(BreakerSettings(failures=1, timeout_s=60.0))

    async def main() -> None:
        block = Guard(circuit)
        with anyio.CancelScope():
            await block.__aenter__()
            with pytest.raises(RuntimeError):
                async with anyio.create_task_group() as group:
                    group.start_soon(leave, block)
            raise KeyError

    async def leave(block: Guard) -> None:
        try:
            await block.__aexit__(None, None, None)
        except BaseException as error:
            raise RuntimeError from error

    with pytest.raises(BaseException):  # noqa: B017, PT011 - what the event loop makes of it is its own
        run(backend, main)
    assert circuit.view().probes == 0


def test_plain_block_is_not_interruptible_and_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    circuit = limited(0.001)
    for _ in range(3):
        with Guard(circuit):
            pass
    assert circuit.state() is BreakerState.CLOSED
    assert caplog.text.count("timeout_s cannot end a plain block") == 1
