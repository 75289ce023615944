"""Results and errors of a storage, and the closing of its client."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from limits.errors import ConfigurationError

from autoglm_throttle.settings.storage_uri import parse_storage_uri
from autoglm_throttle.store.limits_storage import (
    EDGE_US,
    US,
    CounterView,
    LogView,
    MovingLog,
    TwoCounters,
    client_of,
    close,
    counting,
    error_kind,
    open_storage,
    sample,
)
from autoglm_throttle.store.user_limit_store import StoreErrorKind
from autoglm_throttle.types import UserLimit


def counted(before: int, present: int, window_s: int, after_s: float, rest_s: float) -> float:
    """The weighted count of `limits`, so much later, if nothing is spent."""
    if after_s < rest_s:
        return before * (rest_s - after_s) / window_s + present
    return present * max(0.0, window_s - (after_s - rest_s)) / window_s


@given(
    before=st.integers(0, 50),
    present=st.integers(0, 50),
    window_s=st.sampled_from([1, 60, 3600]),
    rest=st.floats(0.01, 0.99),
    units=st.integers(1, 100),
)
def test_wait_for_two_counters_ends_at_their_fall(
    before: int, present: int, window_s: int, rest: float, units: int
) -> None:
    rest_s = rest * window_s
    view = CounterView(window_s, rest_s, before, present)
    assume(units <= view.used)
    wait_s = view.wait_us(units) / US
    goal = view.used - units

    def used(after_s: float) -> int:
        return int(counted(before, present, window_s, after_s, rest_s))

    assert used(wait_s) <= goal
    if wait_s > 0.001:
        assert used(wait_s - 3.0 / US) > goal


def test_zero_cost_has_no_wait() -> None:
    for view in (CounterView(60, 30.0, 5, 5), LogView(60, 100.0, 50.0, 5)):
        assert [view.wait_us(units) for units in (0, -3)] == [0, 0]
    assert CounterView(60, 30.0, 0, 0).wait_us(1) == 0
    assert LogView(60, 100.0, 0.0, 0).wait_us(1) == 0


def test_log_wait_follows_its_oldest_entry() -> None:
    view = LogView(60, 100.0, 50.0, 5)
    assert [view.wait_us(units) for units in (1, 4)] == [10 * US + EDGE_US] * 2
    assert LogView(60, 200.0, 50.0, 5).wait_us(1) == EDGE_US


def test_current_spending_is_counted() -> None:
    assert CounterView(60, 30.0, 4, 5).after(3) == CounterView(60, 30.0, 4, 8)
    assert LogView(60, 100.0, 50.0, 5).after(3) == LogView(60, 100.0, 50.0, 8)
    assert LogView(60, 100.0, 0.0, 0).after(3) == LogView(60, 100.0, 100.0, 3)


class Told:
    """A storage that returns its arguments."""

    def __init__(self, *told: float | None) -> None:
        self.told = told

    async def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float | None, ...]:
        return self.told

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[float | None, ...]:
        return self.told


async def test_storage_results_are_parsed() -> None:
    limit = UserLimit("user-60s", 9, 60)
    assert await TwoCounters(Told(5, 30.0, 2, 90.0)).inspect("key", limit) == CounterView(60, 30.0, 5, 2)
    log = await MovingLog(Told(1000.0, 5)).inspect("key", limit)
    assert (log.oldest_s, log.used) == (1000.0, 5)
    empty = await MovingLog(Told(None, 0)).inspect("key", limit)
    assert (empty.oldest_s, empty.used) == (0.0, 0)


def named(name: str, base: type[Exception] = Exception, text: str = "", **fields: object) -> Exception:
    """An error of a client that is not installed."""
    error: Exception = type(name, (base,), {})(text)
    vars(error).update(fields)
    return error


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


ERRORS = [
    (ConnectionRefusedError(), StoreErrorKind.UNREACHABLE),
    (socket.gaierror(-2, "Name or service not known"), StoreErrorKind.UNREACHABLE),
    (OSError(errno.EHOSTUNREACH, "no route"), StoreErrorKind.UNREACHABLE),
    (FileNotFoundError(errno.ENOENT, "no socket"), StoreErrorKind.UNREACHABLE),
    (named("ClusterNoAvailableNodes"), StoreErrorKind.UNREACHABLE),
    (named("ServerSelectionTimeoutError", named("AutoReconnect").__class__), StoreErrorKind.UNREACHABLE),
    (
        caused(named("MemcachioConnectionError", ConnectionError), ConnectionRefusedError()),
        StoreErrorKind.UNREACHABLE,
    ),
    (named("MemcachioConnectionError", ConnectionError), StoreErrorKind.LOST),
    (ConnectionResetError(), StoreErrorKind.LOST),
    (BrokenPipeError(), StoreErrorKind.LOST),
    (EOFError(), StoreErrorKind.LOST),
    (named("AutoReconnect"), StoreErrorKind.LOST),
    (TimeoutError(), StoreErrorKind.TIMEOUT),
    (named("NetworkTimeout", named("AutoReconnect").__class__), StoreErrorKind.TIMEOUT),
    (named("ConnectionNotAvailable", named("MemcachioConnectionError").__class__), StoreErrorKind.TIMEOUT),
    (named("NotPrimaryError"), StoreErrorKind.READONLY),
    (named("AuthenticationError"), StoreErrorKind.FORBIDDEN),
    (named("OperationFailure", code=13), StoreErrorKind.FORBIDDEN),
    (named("OperationFailure", code=18), StoreErrorKind.FORBIDDEN),
    (named("OperationFailure", code=2), StoreErrorKind.CONFUSED),
    (named("StorageCommandError", text="SERVER_ERROR out of memory storing object"), StoreErrorKind.FULL),
    (ValueError("a counter that is no number"), StoreErrorKind.CONFUSED),
]


@pytest.mark.parametrize(("error", "trouble"), ERRORS, ids=lambda each: repr(each)[:50])
def test_errors_map_to_kinds(error: Exception, trouble: StoreErrorKind) -> None:
    assert error_kind(error) is trouble


def test_errors_that_cause_each_other_are_read_once() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert error_kind(one) is StoreErrorKind.CONFUSED


class Log:
    async def acquire_entry(self) -> None: ...
    async def get_moving_window(self) -> None: ...


class Counters:
    async def acquire_sliding_window_entry(self) -> None: ...
    async def get_sliding_window(self) -> None: ...


class Both(Log, Counters): ...


def test_the_exact_way_is_taken_where_there_is_one() -> None:
    assert [counting(able()) for able in (Log, Both, Counters)] == [MovingLog, MovingLog, TwoCounters]
    with pytest.raises(ValueError, match="fixed windows only"):
        counting(object())


def test_unknown_storage_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"limits does not know: async\+nowhere") as refused:
        open_storage(parse_storage_uri("async+nowhere://user:hush@host:1"))
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("uri", "extra", "there"),
    [
        ("async+memcached://h:1", "async-memcached", False),
        ("async+memcached://h:1", "async-memcached", True),  # but it cannot be imported
        ("async+mongodb://h:1", "async-mongodb", False),
    ],
)
def test_missing_package_is_named(uri: str, extra: str, there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(uri: str, **options: str) -> None:
        raise ConfigurationError(uri)

    monkeypatch.setattr("limits.storage.storage_from_string", missing)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: there or None)
    with pytest.raises(ValueError, match=rf"pip install 'limits\[{extra}\]'"):
        sample(parse_storage_uri(uri))


def test_mongodb_capabilities_are_known_without_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert counting(sample(parse_storage_uri("async+mongodb://h:1"))) is MovingLog


class Client:
    """A client whose farewell may be a coroutine, and may fail."""

    def __init__(self, *, waits: bool, fails: bool = False) -> None:
        self.waits, self.fails, self.closed = waits, fails, 0

    def close(self) -> object:
        self.closed += 1
        if self.fails:
            raise RuntimeError("it is gone already")
        return self.later() if self.waits else None

    async def later(self) -> None:
        self.closed += 1


@pytest.mark.parametrize(
    ("waits", "fails", "closed"), [(False, False, 1), (True, False, 2), (False, True, 1)]
)
async def test_clients_are_closed_wherever_they_are_kept(waits: bool, fails: bool, closed: int) -> None:
    shapes: tuple[Callable[[Client], object], ...] = (
        lambda client: SimpleNamespace(bridge=SimpleNamespace(_storage=client)),  # emcache
        lambda client: SimpleNamespace(
            bridge=SimpleNamespace(_storage=SimpleNamespace(connection_pool=client))  # memcachio
        ),
        lambda client: SimpleNamespace(_storage=client),  # emcache before limits 5
        lambda client: SimpleNamespace(storage=client),  # motor
    )
    for shape in shapes:
        client = Client(waits=waits, fails=fails)
        await close(shape(client))
        assert client.closed == closed


def test_storage_without_connection_has_no_client() -> None:
    assert client_of(open_storage(parse_storage_uri("async+memory://"))) is None
    assert client_of(open_storage(parse_storage_uri("async+memcached://h:1"))) is None
    assert client_of(SimpleNamespace(bridge=SimpleNamespace(_storage=None))) is None
