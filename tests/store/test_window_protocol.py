"""Keys, arguments and replies of the script protocol."""

from __future__ import annotations

from zlib import crc32

import pytest

from autoglm_throttle.store.protocol import (
    SPLIT,
    VALUES,
    StoreCharge,
    StoreErrorKind,
    WindowEntry,
    WindowProtocol,
    key_safe,
    script,
)
from autoglm_throttle.types import UserLimit

MINUTE = (UserLimit("user-60s", 100, 60),)
SEVERAL = (UserLimit("user-1s", 10, 1), UserLimit("user-3600s", 5000, 3600))
USER, OTHER = "07f3a9b1c2d3e4f5", "1111111111111111"


@pytest.fixture
def wire() -> WindowProtocol:
    return WindowProtocol("athr", "default", 16)


def charge(
    limits: tuple[UserLimit, ...] = MINUTE, user: str = USER, units: int = 1, kind: str = "user"
) -> StoreCharge:
    return StoreCharge(kind, limits, user, units)


def tag(user: str) -> int:
    return crc32(user.encode()) % 16


def test_key_names_its_content(wire: WindowProtocol) -> None:
    ask = wire.build_check([charge()])
    assert ask.keys == (f"athr:default:w2:{{{tag(USER)}}}:user:l60:{USER}",)
    assert ask.tag == tag(USER)


def test_each_limit_has_a_key_and_large_ones_the_compact_form(wire: WindowProtocol) -> None:
    ask = wire.build_check([charge(SEVERAL)])
    root = f"athr:default:w2:{{{tag(USER)}}}:user"
    assert ask.keys == (f"{root}:l1:{USER}", f"{root}:b3600:{USER}")


def test_limits_that_change_keep_their_key(wire: WindowProtocol) -> None:
    before = wire.build_check([charge()])
    after = wire.build_check([charge((UserLimit("user-60s", 7, 60),))])
    assert before.keys == after.keys
    assert wire.encode([after])[1] == [1, "l", 7, 60_000_000]
    assert wire.encode([before, after])[1] == [2, "l", 100, 60_000_000, "l", 7, 60_000_000, 1, 1, 1, 1, 2, 1]


def test_a_caller_and_its_address_are_one_request(wire: WindowProtocol) -> None:
    wide = (UserLimit("address-60s", 200, 60),)
    ask = wire.build_check([charge(), charge(wide, OTHER, kind="address")])
    assert [key.split(":")[-3:] for key in ask.keys] == [["user", "l60", USER], ["address", "l60", OTHER]]
    assert tag(USER) != tag(OTHER)
    assert ask.tag == SPLIT
    assert wire.encode([ask])[1] == [2, "l", 100, 60_000_000, "l", 200, 60_000_000, 2, 1, 1, 2, 1]


def test_keys_of_one_partition_are_not_split(wire: WindowProtocol) -> None:
    assert wire.build_check([charge(), charge(MINUTE, USER, kind="address")]).tag == tag(USER)
    lone = WindowProtocol("athr", "default", 1)
    assert lone.build_check([charge(), charge(MINUTE, OTHER, kind="address")]).tag == 0


def test_requests_of_one_limit_and_one_unit_travel_as_keys_alone(wire: WindowProtocol) -> None:
    asks = [wire.build_check([charge(user=user)]) for user in (USER, OTHER)]
    keys, arguments = wire.encode(asks)
    assert keys == [*asks[0].keys, *asks[1].keys]
    assert arguments == [1, "l", 100, 60_000_000]


def test_full_requests_name_their_limits(wire: WindowProtocol) -> None:
    asks = [
        wire.build_check([charge()]),
        wire.build_check([charge(units=3)]),
        wire.build_check([charge(SEVERAL, units=2, kind="plan")]),
        wire.build_check([charge(units=3)]),
        wire.build_check([charge(units=0)]),
    ]
    keys, arguments = wire.encode(asks)
    assert keys == [key for ask in asks for key in ask.keys]
    policies = ["l", 100, 60_000_000, "l", 10, 1_000_000, "b", 5000, 3_600_000_000]
    assert arguments == [3, *policies, 1, 1, 1, 1, 1, 3, 2, 2, 2, 3, 2, 1, 1, 3, 1, 1, 0]


def test_nothing_asked_is_a_look_at_the_clock(wire: WindowProtocol) -> None:
    assert wire.encode([]) == ([], [0])
    assert wire.decode([1_763_747_000_000_000], []) == []


def test_refunds_name_stamps(wire: WindowProtocol) -> None:
    ask = wire.build_check([charge(SEVERAL, units=2)])
    answer = [0, 8, 60, 77, 0, 4998, 60, 88]
    back = wire.build_refund(ask, answer)
    assert (back.keys, back.tag) == (ask.keys, ask.tag)
    assert back.refunds == [2, 2]
    policies = [2, "l", 10, 1_000_000, "b", 5000, 3_600_000_000]
    assert wire.encode([back]) == ([*ask.keys], [*policies, -2, 1, 2, 77, 2, 2, 88])


def test_only_an_admission_without_a_receiver_is_undone(wire: WindowProtocol) -> None:
    ask, admitted = wire.build_check([charge(units=2)]), [0, 98, 60, 77]
    undone = wire.undo(ask, admitted)
    assert undone is not None
    assert wire.encode([undone]) == wire.encode([wire.build_refund(ask, admitted)])
    assert wire.undo(ask, [5, 0, 60, 77]) is None, "a rejection has spent nothing"
    assert wire.undo(undone, admitted) is None, "nor has a refund"
    assert wire.undo(wire.build_check([charge(units=0)]), admitted) is None, "nor a look"


def test_a_refund_ends_the_short_form(wire: WindowProtocol) -> None:
    ask = wire.build_check([charge()])
    back = wire.build_refund(ask, [0, 99, 60, 77])
    assert wire.encode([ask, back])[1] == [1, "l", 100, 60_000_000, 1, 1, 1, -1, 1, 1, 77]


def test_a_reply_is_cut_into_answers(wire: WindowProtocol) -> None:
    several, one = wire.build_check([charge(SEVERAL)]), wire.build_check([charge()])
    entries: list[WindowEntry] = [several, wire.build_refund(several, [0] * 10), one]
    reply = list(range(1 + 2 * VALUES + 2 + VALUES))
    assert wire.decode(reply, entries) == [reply[1:9], reply[9:11], reply[11:]]


@pytest.mark.parametrize(
    "reply",
    [
        None,
        [],
        b"OK",
        {1: 2},
        [1, 0, 99, 0],
        [1, 0, 99, 0, 5, 6],
        [1, 0, 99, 0, b"5"],
        [1, -3, 99, 0, 5],
        [1, 0, -1, 0, 5],
        [1, -1, 0, -1, 5],
    ],
)
def test_a_reply_that_does_not_fit_is_an_error(wire: WindowProtocol, reply: object) -> None:
    with pytest.raises(ValueError, match="the script's reply"):
        wire.decode(reply, [wire.build_check([charge()])])


def test_a_foreign_key_is_an_error_of_its_request_alone(wire: WindowProtocol) -> None:
    ask = wire.build_check([charge(SEVERAL)])
    reply = [1, -1, 0, 0, 5, 0, 9, 60, 77, 0, 9, 60, 7, -2, 10, 0, 0, -2, 3]
    answers = wire.decode(reply, [ask, ask, wire.build_refund(ask, [0] * 8)])
    assert answers == [reply[1:9], StoreErrorKind.FOREIGN, [-2, 3]]


@pytest.mark.parametrize("name", ["user", "plan-gold", "a.b_C-9", "x" * 60])
def test_plain_names_stand_in_keys_as_they_are(name: str) -> None:
    assert key_safe(name) == name


@pytest.mark.parametrize("name", ["", "x" * 61, "{1}", "a:b", "a b", "ü", "٣", "user\n", "\ud800", "~0"])
def test_other_names_stand_as_digests(wire: WindowProtocol, name: str) -> None:
    safe = key_safe(name)
    assert safe[0] == "~"
    assert len(safe) == 17
    assert wire.build_check([charge(kind=name)]).keys[0].split(":")[4] == safe


def test_digests_differ() -> None:
    assert key_safe("a:b") != key_safe("a:c")


def test_the_script_is_read_once() -> None:
    assert script() is script()
    assert "KEYS" in script()
