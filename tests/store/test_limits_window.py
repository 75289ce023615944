"""User limits in storages of the `limits` package: in memory, and one that a test commands."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoglm_throttle.store.limits_window import LimitsWindow
from autoglm_throttle.store.user_limit_store import StoreStats
from autoglm_throttle.types import UserLimit
from tests.limiting.reference_log import ReferenceLog
from tests.store.storages import (
    ANN,
    BEN,
    BOTH,
    MINUTE,
    PATIENT_S,
    Hands,
    OwnStorage,
    allowed,
    ask,
    charge,
)


class Calendar:
    """The clock by which the storage in memory counts."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


steps = st.tuples(
    st.sampled_from([0.0, 0.25, 1.0, 2.0, 5.0]) | st.integers(1, 2000).map(lambda n: n / 512.0),
    st.sampled_from([ANN, BEN]),
    st.integers(0, 4),
)


@settings(max_examples=25)
@given(
    limits=st.sampled_from([MINUTE, BOTH, (UserLimit("user-2s", 2, 2), UserLimit("user-5s", 3, 5))]),
    trace=st.lists(steps, max_size=25),
)
def test_the_storage_in_memory_decides_like_the_reference(
    limits: tuple[UserLimit, ...], trace: list[tuple[float, str, int]]
) -> None:
    calendar, reference = Calendar(), ReferenceLog(limits)

    async def run() -> None:
        window = LimitsWindow("async+memory://", PATIENT_S)
        for gap, user, units in trace:
            calendar.now += (
                gap + 2.0**-20
            )  # at the very instant at which a unit leaves `limits` still counts it
            rows = await ask(window, charge(user, units, limits))
            expected = reference.hit(user, units, calendar.now)
            assert all(row[0] for row in rows) is expected.allowed
            for limit, (ok, left, retry_us, reset_us) in zip(limits, rows, strict=True):
                assert left == expected.remaining[limit.name]
                assert retry_us == -1 if units > limit.limit else (retry_us > 0) is not ok
                now_first = expected.allowed and left == limit.limit - units
                reset_s = limit.window_s if now_first and units else expected.reset_s.get(limit.name, 0.0)
                assert reset_us / 1e6 == pytest.approx(reset_s, abs=1e-5)
            if not expected.allowed and units == 1:
                wait_s = max(row[2] for row in rows) / 1e6
                assert wait_s == pytest.approx(expected.retry_after_s, abs=1e-5)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", calendar)
        asyncio.run(run())


async def test_all_limits_or_none(window: LimitsWindow) -> None:
    hour = (UserLimit("user-3600s", 2, 3600),)
    for _ in range(2):
        assert await allowed(window, charge(), charge(limits=hour, kind="address"))
    refused = await ask(window, charge(), charge(limits=hour, kind="address"))
    assert [(row[0], row[1]) for row in refused] == [(1, 1), (0, 0)]
    assert refused[0][2] == 0
    assert refused[1][2] > 0
    assert await allowed(window, charge())


async def test_too_large_cost_is_never_sent(window: LimitsWindow, hands: Hands) -> None:
    for limits in (MINUTE, BOTH):
        rows = await ask(window, charge(units=4, limits=limits))
        assert rows[0] == (0, 3, -1, 0)
        assert len(rows) == 1 or rows[1] == (1, 5, 0, 0)
    assert not any(what == "hit" for _, what, _ in hands.asked)


async def test_no_units_spend_nothing(window: LimitsWindow, hands: Hands) -> None:
    assert (await ask(window, charge(units=0)))[0][:2] == (1, 3)
    assert hands.units == {}
    for _ in range(3):
        await ask(window)
    assert (await ask(window, charge(units=0)))[0][:2] == (1, 0)


async def test_faster_concurrent_caller_causes_rejection(window: LimitsWindow, hands: Hands) -> None:
    hands.sell_out = True
    first, second = await ask(window, charge(limits=BOTH))
    assert first[:3] == (0, 3, 1)  # worth another question at once, since there was room a moment ago
    assert second[:3] == (1, 5, 0)
    assert [what for _, what, _ in hands.asked] == ["look", "look", "hit", "look"]


async def test_spending_before_concurrent_rejection_is_reported(hands: Hands) -> None:
    window = LimitsWindow("async+own://", PATIENT_S)
    real = OwnStorage.acquire_entry

    async def second_sells_out(self: OwnStorage, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        hands.sell_out = expiry == 3600
        return await real(self, key, limit, expiry, amount)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OwnStorage, "acquire_entry", second_sells_out)
        first, second = await ask(window, charge(limits=BOTH))
    assert first[:3] == (1, 2, 0)
    assert second[:3] == (0, 5, 1)


async def test_without_headers_one_question_is_enough(hands: Hands) -> None:
    window = LimitsWindow("async+own://", PATIENT_S, headers=False)
    assert await ask(window) == [(1, 2, 0, 0)]
    assert await ask(window, charge(units=2)) == [(1, 1, 0, 0)]
    assert (await ask(window))[0][:2] == (0, 0)
    assert await ask(window, charge(BEN, 4)) == [(0, 3, -1, 0)]
    assert [what for _, what, _ in hands.asked] == ["hit", "hit", "hit", "look", "look"]
    assert len(await ask(window, charge(BEN, limits=BOTH))) == 2


async def test_changed_limit_keeps_counted_units(window: LimitsWindow) -> None:
    for _ in range(3):
        await ask(window)
    assert (await ask(window, charge(limits=(UserLimit("user-60s", 2, 60),))))[0][:2] == (0, 0)
    assert (await ask(window, charge(limits=(UserLimit("user-60s", 9, 60),))))[0][:2] == (1, 5)


texts = st.text(st.sampled_from("ab:/~ \n\0é"), max_size=4) | st.text(max_size=70)


@given(one=st.tuples(texts, texts), other=st.tuples(texts, texts))
def test_no_two_callers_share_a_key(one: tuple[str, str], other: tuple[str, str]) -> None:
    window = LimitsWindow("async+memory://")
    keys = [
        {asked.key for asked in window.limit_checks([charge(user, limits=BOTH, kind=kind)])}
        for kind, user in (one, other)
    ]
    assert (keys[0] == keys[1]) is (one == other)
    assert keys[0].isdisjoint(keys[1]) is (one != other)
    for key in keys[0] | keys[1]:
        assert key.isascii()
        assert key.isprintable()
        assert " " not in key
        assert len(key) <= 200  # memcached: 250 bytes, and `limits` adds the number of a window
    assert not keys[0] & {f"{window.root}probe"}


def test_prefix_and_service_keep_services_apart() -> None:
    keys = {
        LimitsWindow("async+memory://", prefix=prefix, service=service).limit_checks([charge()])[0].key
        for prefix in ("athr", "other")
        for service in ("default", "chat")
    }
    assert len(keys) == 4


def test_each_loop_has_its_own_and_closes_it(window: LimitsWindow, hands: Hands) -> None:
    for n in range(3):
        asyncio.run(ask(window))
        assert [made.storage.closed for made in hands.made[-n - 1 :]] == [1] * (n + 1)
    assert len({name for name, _, _ in hands.asked}) == 3
    assert window.stats() == StoreStats(calls=6, sent=3)


def test_last_dropped_client_is_closed(window: LimitsWindow, hands: Hands) -> None:
    async def run() -> None:
        await ask(window)
        window.disconnect()

    asyncio.run(run())
    assert hands.made[-1].storage.closed == 1


def test_a_loop_closed_by_hand_is_forgotten_but_its_counts(window: LimitsWindow) -> None:
    for n in range(3):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(ask(window))
        loop.close()
        window.disconnect()
        assert len(window.loops) == 1
        assert window.stats() == StoreStats(calls=2 * n + 2, sent=n + 1)


def test_loops_beside_each_other_have_storages_of_their_own(window: LimitsWindow, hands: Hands) -> None:
    with asyncio.Runner() as one, asyncio.Runner() as other:
        for loop in (one, other, one):
            loop.run(ask(window))
        first, second, third = (name for name, what, _ in hands.asked if what == "hit")
        assert first == third != second
        assert window.stats() == StoreStats(calls=6, sent=3)


def test_repr_shows_the_state(window: LimitsWindow) -> None:
    asyncio.run(ask(window))
    assert repr(window) == "LimitsWindow(own, 1 sent, 0 waiting)"


def test_unusable_storage_is_reported_at_once() -> None:
    for uri, said in {
        "async+redis://user:hush@h:1": "REDIS_URL",
        "memcached://h:1": "write async[+]memcached://",
        "async+nowhere://user:hush@h:1": "USER_STORAGE names a storage that limits does not know",
    }.items():
        with pytest.raises(ValueError, match=said) as refused:
            LimitsWindow(uri)
        assert "hush" not in str(refused.value)
