"""The sampler thread survives hangs and can be restarted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from autoglm_throttle.gpu.sampler import Sampler
from autoglm_throttle.types import ProviderMisconfigured
from tests.gpu.sampler_doubles import (
    PATIENCE_S,
    ROW,
    Hang,
    SampleRecorder,
    Source,
    raising,
    sampler_threads,
)


@pytest.fixture
def hang() -> Iterator[Hang]:
    hang = Hang()
    yield hang
    hang.over.set()


@pytest.fixture
def made() -> Iterator[Callable[..., Sampler]]:
    """Make samplers that are stopped after the test."""
    samplers: list[Sampler] = []

    def make(source: Source, listener: SampleRecorder, *, interval_s: float = 0.01, **more: Any) -> Sampler:
        samplers.append(Sampler(source, listener.samples, listener.failure, interval_s=interval_s, **more))
        return samplers[-1]

    yield make
    for sampler in samplers:
        sampler.stop()


def runs(sampler: Sampler) -> bool:
    """Return whether it runs now; a function, because the value changes."""
    return sampler.is_running


def error(sampler: Sampler) -> str | None:
    """Return the cause of its end; a function, because the value changes."""
    return sampler.status.misconfigured


def join(thread: threading.Thread) -> None:
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_only_the_thread_calls_the_provider(listener: SampleRecorder, made: Callable[..., Sampler]) -> None:
    source = Source()
    sampler = made(source, listener)
    sampler.start()
    assert runs(sampler)
    listener.wait()
    listener.wait()
    (thread,) = sampler_threads()
    assert thread.daemon
    with pytest.raises(RuntimeError, match="thread reads"):
        sampler.tick()
    sampler.stop(PATIENCE_S)
    assert not runs(sampler)
    assert not thread.is_alive()
    assert source.threads == {"autoglm-throttle-gpu-source"}
    assert source.calls[-1] == "close"
    assert source.calls.count("close") == 1


def test_start_twice_is_one_thread_and_after_stop_a_new_one(
    listener: SampleRecorder, made: Callable[..., Sampler]
) -> None:
    sampler = made(Source(), listener)
    sampler.start()
    sampler.start()
    (first,) = sampler_threads()
    sampler.stop(PATIENCE_S)
    sampler.start()
    (second,) = sampler_threads()
    assert second is not first
    listener.wait()


def test_wake_ends_a_long_wait(listener: SampleRecorder, made: Callable[..., Sampler]) -> None:
    sampler = made(Source(), listener, interval_s=3600.0)
    sampler.start()
    listener.wait()
    sampler.wake()
    listener.wait()


def test_stop_ends_a_long_wait(listener: SampleRecorder, made: Callable[..., Sampler]) -> None:
    sampler = made(Source(), listener, interval_s=3600.0)
    sampler.start()
    listener.wait()
    (thread,) = sampler_threads()
    sampler.stop(PATIENCE_S)
    assert not thread.is_alive()


def test_a_listener_may_stop_the_sampler() -> None:
    sampler = Sampler(Source(), lambda rows: sampler.stop(), interval_s=0.01)
    sampler.start()
    for thread in sampler_threads():
        join(thread)
    assert not runs(sampler)
    assert sampler.status.callback_errors == 0


def test_a_misconfiguration_ends_the_thread_until_a_new_start(
    listener: SampleRecorder, made: Callable[..., Sampler]
) -> None:
    source = Source(raising(ProviderMisconfigured("install it")))
    sampler = made(source, listener)
    sampler.start()
    listener.wait()
    for thread in sampler_threads():
        join(thread)
    assert error(sampler) == "install it"
    assert runs(sampler), "else every request would start the thread again"
    assert source.calls == ["read", "close"]
    sampler.stop()
    source.reading = lambda: [ROW]
    sampler.start()
    assert error(sampler) is None
    listener.wait()
    assert listener.rows


# A driver call that hangs.


def test_a_hang_leaves_the_caller_free(
    listener: SampleRecorder, made: Callable[..., Sampler], hang: Hang
) -> None:
    source = Source(hang)
    sampler = made(source, listener)
    sampler.start()
    assert source.entered.acquire(timeout=PATIENCE_S)
    for _ in range(1000):
        assert runs(sampler)
        sampler.start()
        sampler.wake()
    sampler.stop(join_s=0.05)
    assert source.calls == ["read"]
    assert listener.rows == []


def test_after_a_hang_the_same_thread_goes_on(
    listener: SampleRecorder, made: Callable[..., Sampler], hang: Hang
) -> None:
    source = Source(hang)
    sampler = made(source, listener)
    sampler.start()
    assert source.entered.acquire(timeout=PATIENCE_S)
    (thread,) = sampler_threads()
    sampler.stop(join_s=0.0)
    assert not runs(sampler)
    sampler.start()
    assert sampler_threads() == [thread]
    hang.over.set()
    listener.wait()
    listener.wait()
    assert sampler_threads() == [thread]


def test_a_hang_that_ends_after_stop_is_not_handed_on(
    listener: SampleRecorder, made: Callable[..., Sampler], hang: Hang
) -> None:
    source = Source(hang)
    sampler = made(source, listener)
    sampler.start()
    assert source.entered.acquire(timeout=PATIENCE_S)
    (thread,) = sampler_threads()
    sampler.stop(join_s=0.0)
    hang.over.set()
    join(thread)
    assert listener.rows == []
    assert source.calls == ["read", "close"]


def test_a_start_while_the_thread_is_closing_keeps_it(
    listener: SampleRecorder, made: Callable[..., Sampler]
) -> None:
    source = Source()
    sampler = made(source, listener)
    closing, go = threading.Event(), threading.Event()

    def close() -> None:
        closing.set()
        go.wait(PATIENCE_S)

    source.close = close  # type: ignore[method-assign]
    sampler.start()
    listener.wait()
    sampler.stop(join_s=0.0)
    assert closing.wait(PATIENCE_S)
    sampler.start()
    listener.rows.clear()
    while listener.arrived.acquire(blocking=False):
        pass
    go.set()
    listener.wait()
    assert len(sampler_threads()) == 1
