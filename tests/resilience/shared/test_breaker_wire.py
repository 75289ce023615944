"""Keys, arguments, replies and messages."""

from __future__ import annotations

from importlib import resources
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from autoglm_throttle.settings.groups.store import StoreSettings
from autoglm_throttle.store.breakers.protocol import (
    MAX_PERIOD_S,
    BreakerProtocol,
    ProbeResult,
    StateWrite,
    escape_name,
    parse_message,
    parse_reply,
    parse_states,
)
from autoglm_throttle.types import (
    BreakerCause,
    BreakerState,
    Outcome,
    ProbeLease,
    ProbeRequest,
    RemoteBreakerState,
)

WIRE = BreakerProtocol(StoreSettings(service="search"), "me")
NAMES = st.text(st.characters(), max_size=20)
"""Surrogates included, which no encoding knows."""


@given(NAMES, NAMES)
def test_names_have_distinct_keys_in_one_cluster_slot(one: str, other: str) -> None:
    state, trials = WIRE.keys(one)
    assert state != trials
    assert key_slot(state.encode()) == key_slot(trials.encode())
    assert state.startswith("athr:search:{brk:")
    assert state.count("{") == state.count("}") == 1
    assert " " not in state
    assert (WIRE.keys(other)[0] == state) == (one == other)


@given(
    NAMES,
    st.integers(1, 2**53),
    st.sampled_from(BreakerState),
    st.integers(0, 2**50),
    st.sampled_from(BreakerCause),
)
def test_message_equals_the_write(
    name: str, version: int, state: BreakerState, left: int, cause: BreakerCause
) -> None:
    reports = parse_message(f"{escape_name(name)} {version} {state} {left} 3 {cause} somebody".encode())
    if state is BreakerState.RAMPING:
        assert reports is None, "ramping is local to a process"
    else:
        assert reports == (name, RemoteBreakerState(version, state, left / 1e6, 3, cause), "somebody")


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"hello", b"a 1 open 0 0", b"a x open 0 0 trial me", b"a 1 ajar 0 0 trial me", b"\xff" * 9),
        *(b"a 0 open 0 0 trial me", b"a 1 open 0 0 trial me more", b"a 1 open y 0 trial me", None, 7),
        *(b"\xff\xfe 1 open 0 0 trial me", [b"a"]),
    ],
)
def test_foreign_messages_are_invalid(data: Any) -> None:
    assert parse_message(data) is None


def test_a_cause_of_a_later_version_does_not_hide_the_state() -> None:
    assert parse_message("a 1 open 0 0 moonlight me") == (
        "a",
        RemoteBreakerState(1, BreakerState.OPEN, cause=BreakerCause.REMOTE),
        "me",
    )


def opening(name: str, until_s: float, rounds: int = 0) -> StateWrite:
    return StateWrite(name, BreakerState.OPEN, 7, until_s, rounds, BreakerCause.FAILURES)


def test_every_number_is_a_whole_one() -> None:
    keys, words = WIRE.write(opening("a b", 3.25, 2), 6, 2.0)
    assert keys == ("athr:search:{brk:a%20b}:h", "athr:search:{brk:a%20b}:t")
    assert words == ("open", "a%20b", "athr:search:brk:ev", "me", 7, 1_250_000, 2, "failures")
    _, words = WIRE.acquire("a", 7, ProbeRequest(3, 2, True, 0.5), "me:1")
    assert words[5:] == (3, 2, 1, 500_000, "me:1")
    _, words = WIRE.write(ProbeResult("a", "me:1", 0.0, 7, Outcome.SLOW, 2, 9.0), 0, 0.0)
    assert words[4:] == (7, "slow", 2, 9_000_000, "me:1")
    _, words = WIRE.write(StateWrite("a", BreakerState.DISABLED, 7, is_restore=True), 0, 0.0)
    assert words[5:] == ("disabled", 0)
    assert WIRE.read(["a", "b"]) == (("athr:search:{brk:a}:h", "athr:search:{brk:b}:h"), ("read",))


def test_opening_is_based_on_the_newest_own_state() -> None:
    assert [WIRE.write(opening("a", 1.0), own, 0.0)[1][4] for own in (0, 8)] == [7, 8]


@pytest.mark.parametrize(("seconds", "notified"), [(-1.0, 0), (float("inf"), MAX_PERIOD_S * 1e6), (1e-9, 0)])
def test_no_time_is_too_long_or_too_short(seconds: float, notified: float) -> None:
    assert WIRE.write(opening("a", seconds), 0, 0.0)[1][5] == notified
    assert WIRE.acquire("a", 0, ProbeRequest(1, 1, False, seconds), "")[1][8] == max(notified, 1)


def test_a_reply_is_a_lease_only_if_one_was_given() -> None:
    half_open = RemoteBreakerState(9, BreakerState.HALF_OPEN, 0.0, 2, BreakerCause.TRIAL)
    given = parse_reply([1, 9, b"half_open", 0, 2, b"trial", 77])
    assert given == (True, half_open, ProbeLease(77, 9, 2))
    assert parse_reply([0, 9, b"half_open", 0, 2, b"trial", 77]) == (False, half_open, None)
    assert parse_reply([1, 9, b"closed", 0, 0, b"trial", 77])[2] is None
    assert parse_reply([0, 0, b"", 0, 0, b"", 0]) == (False, None, None)


@pytest.mark.parametrize(
    "reports",
    [None, 1, b"OK", [], [1, 2, 3], [1, 9, b"ajar", 0, 2, b"trial", 77], [1, None, b"open", 0, 2, b"", 0]],
)
def test_invalid_script_reply_is_an_error(reports: Any) -> None:
    with pytest.raises(ValueError, match="unexpected reply of the script"):
        parse_reply(reports)


def test_states_are_read_one_by_one() -> None:
    reports = [9, b"open", 1_500_000, 2, b"failures", 0, b"", 0, 0, b"", 8, b"ajar", 0, 0, b""]
    assert parse_states(reports, ["a", "b", "c"]) == {
        "a": RemoteBreakerState(9, BreakerState.OPEN, 1.5, 2, BreakerCause.FAILURES),
        "b": None,
        "c": None,
    }
    with pytest.raises(ValueError, match="unexpected reply"):
        parse_states(reports, ["a"])
    with pytest.raises(ValueError, match="unexpected reply"):
        parse_states(b"OK", [])


def test_script_runs_on_redis_6() -> None:
    text = resources.files("autoglm_throttle.store").joinpath("breakers/breaker.lua").read_text("utf-8")
    assert text.count("'TIME'") == 1
    assert not text.startswith("#!")
    assert "struct" not in text
    assert "tostring" not in text
