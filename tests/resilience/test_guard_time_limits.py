"""Time limits inside the guard are failures, those outside are no evidence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from autoglm_throttle.resilience.calls import attempt_async
from autoglm_throttle.resilience.guard import Guard
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import BreakerState, Outcome
from tests.loops import run
from tests.resilience.doubling import count, count_later, double, double_later
from tests.resilience.tripping import Clocked, half_open


def limited(timeout_s: float) -> Clocked:
    return Clocked(BreakerSettings(failures=1, timeout_s=timeout_s))


def test_our_own_time_limit_is_a_failure(backend: str) -> None:
    circuit = limited(0.001)

    async def main() -> None:
        with pytest.raises(TimeoutError, match=r"db has not answered within 0\.001 s"):
            await Guard(circuit)(anyio.sleep_forever)()
        made = await attempt_async(Clocked(BreakerSettings(timeout_s=0.001)), anyio.sleep_forever, (), {})
        assert isinstance(made.error, TimeoutError)
        assert made.outcome is Outcome.FAILURE

    run(backend, main)
    assert circuit.state() is BreakerState.OPEN


def test_probe_has_the_same_time_limit(backend: str) -> None:
    circuit = half_open(BreakerSettings(failures=1, timeout_s=0.001))

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await Guard(circuit)(anyio.sleep_forever)()

    run(backend, main)
    assert circuit.state() is BreakerState.OPEN


def test_call_in_time_is_unaffected(backend: str) -> None:
    circuit = limited(60.0)

    async def main() -> None:
        assert await Guard(circuit)(double_later)(3) == 6

    run(backend, main)
    assert circuit.state() is BreakerState.CLOSED


def test_a_time_limit_from_outside_is_no_evidence(backend: str) -> None:
    circuit = limited(60.0)

    async def main() -> None:
        with anyio.move_on_after(0.001) as scope:
            await Guard(circuit)(anyio.sleep_forever)()
        assert scope.cancelled_caught

    run(backend, main)
    assert circuit.state() is BreakerState.CLOSED
    assert circuit.view().streak == 0


def test_only_a_time_limit_inside_a_block_is_a_failure(backend: str) -> None:
    inside, outside = Clocked(), Clocked()

    async def limit_within() -> None:
        async with Guard(inside):
            with anyio.fail_after(0.001):
                await anyio.sleep_forever()

    async def limit_around() -> None:
        with anyio.fail_after(0.001):
            async with Guard(outside):
                await anyio.sleep_forever()

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await limit_within()
        with pytest.raises(TimeoutError):
            await limit_around()

    run(backend, main)
    assert (inside.state(), outside.state()) == (BreakerState.OPEN, BreakerState.CLOSED)


@pytest.mark.parametrize("function", [double, count, abs])
def test_time_limit_on_uninterruptible_function_is_invalid(function: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="make it a coroutine function, or give the client in it a limit"):
        Guard(limited(1.0))(function)


def test_a_stream_that_nothing_can_interrupt_has_no_idle_limit() -> None:
    guard = Guard(Clocked(BreakerSettings(stream_idle_s=1.0)))
    with pytest.raises(TypeError, match="stream_idle_s"):
        guard(count)
    assert guard(double)(3) == 6
    guard(count_later)
