"""Guarded generators: admission, settlement and closing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from autoglm_throttle.resilience.guard import Guard
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import BreakerState, GuardRejected, GuardRejection, StreamSettleMode
from tests.resilience.faces import drive
from tests.resilience.streaming import Opens, Source, block, later, plain, read_on
from tests.resilience.tripping import Clocked, Shedding, fail, half_open, opened

BROKEN = ConnectionError("broken off")

ALL = [plain, later, block]
DECORATED = [plain, later]


@pytest.mark.parametrize("opens", ALL)
def test_stream_is_admitted_at_its_first_item_settled_at_end(opens: Opens) -> None:
    circuit, source = half_open(), Source(1, 2)
    reader = opens(circuit, source)
    assert circuit.view().probes == 0
    assert reader.take() == 1
    assert circuit.view().probes == 1
    assert list(reader) == [2]
    assert circuit.state() is BreakerState.CLOSED
    assert source.closed == 1


@pytest.mark.parametrize("opens", ALL)
def test_stream_is_rejected_at_its_first_item(opens: Opens) -> None:
    circuit, source = opened(), Source(1)
    for _ in range(2):
        reader = opens(circuit, source)
        with pytest.raises(GuardRejected) as caught:
            reader.take()
        assert caught.value.retry_after_s == 10.0
    assert source.closed == 0


@pytest.mark.parametrize("opens", ALL)
def test_shed_stream_is_rejected(opens: Opens) -> None:
    circuit = Clocked()
    rejection = opened().rejection()
    assert isinstance(rejection, GuardRejection)
    circuit.attach(Shedding(rejection))
    with pytest.raises(GuardRejected):
        opens(circuit, Source(1)).take()


@pytest.mark.parametrize("opens", ALL)
def test_streams_that_break_off_count_twenty_of_twenty(opens: Opens) -> None:
    circuit = Clocked(BreakerSettings(failures=21))
    for number in range(20):
        source = Source(1, 2, BROKEN, 3)
        reader = opens(circuit, source)
        assert (reader.take(), reader.take()) == (1, 2)
        with pytest.raises(ConnectionError) as caught:
            reader.take()
        assert caught.value is BROKEN
        assert circuit.view().streak == number + 1
        assert source.closed == 1
    assert circuit.view().last_failure == "ConnectionError: broken off"


@pytest.mark.parametrize("opens", ALL)
@pytest.mark.parametrize("way", ["close", "drop"])
def test_early_leaving_readers_never_count(opens: Opens, way: str) -> None:
    circuit = Clocked(BreakerSettings(failures=2))
    fail(circuit)
    for _ in range(20):
        source = Source(1, 2, BROKEN)
        reader = opens(circuit, source)
        assert reader.take() == 1
        if way == "close":
            reader.close()
        del reader
        assert source.closed == 1
    assert circuit.view().streak == 1


@pytest.mark.parametrize("opens", ALL)
@pytest.mark.parametrize("way", ["close", "drop"])
def test_probe_with_a_leaving_reader_frees_its_slot(opens: Opens, way: str) -> None:
    circuit = half_open()
    for _ in range(3):
        reader = opens(circuit, Source(1, 2))
        assert reader.take() == 1
        assert circuit.view().probes == 1
        if way == "close":
            reader.close()
        del reader
        assert circuit.view().probes == 0
    assert circuit.state() is BreakerState.HALF_OPEN


@pytest.mark.parametrize("opens", ALL)
def test_unstarted_stream_takes_nothing(opens: Opens) -> None:
    circuit, source = half_open(), Source(1)
    reader = opens(circuit, source)
    reader.close()
    del reader
    assert circuit.view().calls == 1
    assert source.closed == 0


@pytest.mark.parametrize("opens", ALL)
def test_a_stream_holds_its_place_until_its_end(opens: Opens) -> None:
    circuit = Clocked(BreakerSettings(max_in_flight=1))
    first, second = opens(circuit, Source(1, 2)), opens(circuit, Source(1))
    assert first.take() == 1
    with pytest.raises(GuardRejected):
        second.take()
    read_on(first)
    assert list(opens(circuit, Source(1))) == [1]


@pytest.mark.parametrize("opens", ALL)
def test_an_empty_stream_is_a_success(opens: Opens) -> None:
    circuit = half_open(BreakerSettings(failures=1, stream_settle=StreamSettleMode.FIRST_ITEM))
    assert list(opens(circuit, Source())) == []
    assert circuit.state() is BreakerState.CLOSED


@pytest.mark.parametrize("opens", DECORATED)
def test_arguments_that_do_not_fit_are_the_callers_own(opens: Opens) -> None:
    circuit = Clocked()
    guarded: Any = Guard(circuit)(Source().stream if opens is plain else Source().stream_async)
    with pytest.raises(TypeError, match="positional argument"):
        next(guarded(1)) if opens is plain else drive(guarded(1).__anext__())
    assert circuit.view().calls == 0


# What the first item says


def first_item(**rules: Any) -> BreakerSettings:
    return BreakerSettings(failures=1, stream_settle=StreamSettleMode.FIRST_ITEM, **rules)


@pytest.mark.parametrize("opens", DECORATED)
@pytest.mark.parametrize("ending", ["end", "break", "leave"])
def test_probe_succeeds_at_its_first_item(opens: Opens, ending: str) -> None:
    circuit = half_open(first_item())
    reader = opens(circuit, Source(1, 2, BROKEN) if ending == "break" else Source(1, 2))
    assert reader.take() == 1
    assert circuit.state() is BreakerState.CLOSED
    if ending == "leave":
        reader.close()
    else:
        read_on(reader)
    assert circuit.state() is BreakerState.CLOSED
    assert circuit.view().stale_results == 0


@pytest.mark.parametrize("opens", DECORATED)
def test_probe_breaking_before_its_first_item_has_failed(opens: Opens) -> None:
    circuit = half_open(first_item())
    read_on(opens(circuit, Source(BROKEN)))
    assert circuit.state() is BreakerState.OPEN


@pytest.mark.parametrize("opens", DECORATED)
@pytest.mark.parametrize("max_in_flight", [0, 5])
def test_ordinary_stream_is_settled_at_its_end(opens: Opens, max_in_flight: int) -> None:
    circuit = Clocked(first_item(max_in_flight=max_in_flight))
    reader = opens(circuit, Source(1, BROKEN))
    assert reader.take() == 1
    assert circuit.view().in_flight == (1 if max_in_flight else 0)
    read_on(reader)
    assert circuit.state() is BreakerState.OPEN


@pytest.mark.parametrize("opens", DECORATED)
def test_stream_from_before_the_opening_is_no_probe(opens: Opens) -> None:
    circuit = Clocked(first_item())

    def trip() -> None:
        fail(circuit)
        circuit.clock.advance(10.0)
        circuit.allow()

    reader = opens(circuit, Source(trip, 1))
    assert reader.take() == 1
    assert circuit.state() is BreakerState.HALF_OPEN
    read_on(reader)
    assert circuit.view().stale_results == 1
    assert circuit.view().probes == 1


@pytest.mark.parametrize("opens", DECORATED)
@pytest.mark.parametrize("settle", StreamSettleMode)
@pytest.mark.parametrize(("first_s", "state"), [(0.5, BreakerState.CLOSED), (0.6, BreakerState.OPEN)])
def test_a_slow_first_item_is_a_slow_stream(
    opens: Opens, settle: StreamSettleMode, first_s: float, state: BreakerState
) -> None:
    circuit = half_open(BreakerSettings(failures=1, first_item_s=0.5, stream_settle=settle))
    source = Source(lambda: circuit.clock.advance(first_s), 1, lambda: circuit.clock.advance(9.0), 2)
    read_on(opens(circuit, source))
    assert circuit.view().machine is state


@pytest.mark.parametrize("opens", DECORATED)
def test_a_whole_stream_is_never_slow_since_its_reader_may_be(opens: Opens) -> None:
    circuit = half_open(BreakerSettings(failures=1, slow_call_s=0.5))
    reader = opens(circuit, Source(1, 2))
    reader.take()
    circuit.clock.advance(9.0)
    read_on(reader)
    assert circuit.state() is BreakerState.CLOSED


# What the reader sends and throws


def echo() -> Generator[Any, Any, str]:
    received: list[Any] = []
    while len(received) < 3:
        try:
            received.append((yield len(received)))
        except KeyError as error:
            received.append(repr(error))
    return repr(received)


async def echo_later() -> Any:
    received: list[Any] = []
    while len(received) < 3:
        try:
            received.append((yield len(received)))
        except KeyError as error:
            received.append(repr(error))
    yield repr(received)


@pytest.mark.parametrize("waits", [True, False])
def test_plain_stream_receives_sent_values(waits: bool) -> None:
    circuit = half_open(BreakerSettings(failures=1, first_item_s=9.0 if waits else None))
    stream = Guard(circuit)(echo)()
    assert next(stream) == 0
    assert stream.send("a") == 1
    assert stream.throw(KeyError("b")) == 2
    with pytest.raises(StopIteration) as end:
        next(stream)
    assert end.value.value == """['a', "KeyError('b')", None]"""
    assert circuit.state() is BreakerState.CLOSED


@pytest.mark.parametrize("waits", [True, False])
def test_async_stream_receives_sent_values(waits: bool) -> None:
    circuit = half_open(BreakerSettings(failures=1, first_item_s=9.0 if waits else None))
    stream = Guard(circuit)(echo_later)()
    assert drive(stream.__anext__()) == 0
    assert drive(stream.asend("a")) == 1
    assert drive(stream.athrow(KeyError("b"))) == 2
    assert drive(stream.__anext__()) == """['a', "KeyError('b')", None]"""
    with pytest.raises(StopAsyncIteration):
        drive(stream.__anext__())
    assert circuit.state() is BreakerState.CLOSED


@pytest.mark.parametrize("opens", DECORATED)
def test_error_thrown_by_the_reader_keeps_its_outcome(opens: Opens) -> None:
    for error, state in ((BROKEN, BreakerState.OPEN), (KeyboardInterrupt(), BreakerState.HALF_OPEN)):
        circuit, source = half_open(), Source(1, 2)
        reader = opens(circuit, source)
        reader.take()
        with pytest.raises(type(error)) as caught:
            reader.throw(error)
        assert caught.value is error
        assert circuit.state() is state
        assert source.closed == 1


def test_a_context_manager_of_a_guarded_generator_is_a_block() -> None:
    undone: list[BaseException] = []

    def session() -> Generator[int]:
        try:
            yield 7
        except ConnectionError as error:
            undone.append(error)
            raise

    async def session_later() -> AsyncIterator[int]:
        try:
            yield 7
        except ConnectionError as error:
            undone.append(error)
            raise

    circuit = Clocked(BreakerSettings(failures=3))

    async def use() -> None:
        async with asynccontextmanager(Guard(circuit)(session_later))() as seven:
            assert seven == 7
            raise BROKEN

    with pytest.raises(ConnectionError):
        drive(use())
    with pytest.raises(ConnectionError), contextmanager(Guard(circuit)(session))():
        raise BROKEN
    assert undone == [BROKEN, BROKEN]
    assert circuit.view().streak == 2


# Closing


@pytest.mark.parametrize("opens", DECORATED)
def test_failing_cleanup_after_the_reader_left_is_neutral(opens: Opens) -> None:
    circuit = half_open()

    def stream() -> Generator[int]:
        try:
            yield 1
        finally:
            raise BROKEN

    async def stream_later() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            raise BROKEN

    reader = opens(circuit, Source())
    reader.stream = Guard(circuit)(stream)() if opens is plain else Guard(circuit)(stream_later)()
    reader.take()
    with pytest.raises(ConnectionError):
        reader.close()
    assert circuit.state() is BreakerState.HALF_OPEN
    assert circuit.view().probes == 0
