"""Bug 11: an empty or missing key disables the limit; composed keys collide; client input becomes the key."""

from __future__ import annotations

from typing import Any

import pytest

from autoglm_throttle import Demand
from autoglm_throttle.testing import throttle_for_tests
from tests.peers_bugs.limiter import LIMIT, Make, Plain, Subject, ours

KIB_64 = 64 * 1024


def by_key(**settings: Any) -> Subject:
    return ours(identity="header:x-api-key", **settings)


def check_missing(make: Make) -> None:
    for value in (None, b"", b" ", b"\x00"):
        headers = [] if value is None else [(b"x-api-key", value)]
        passed = make().passed(LIMIT + 3, headers=headers)
        assert passed == LIMIT, f"the key {value!r} has no limit"


class EmptyIsFree(Plain):
    def key(self, scope: Any) -> str:
        return str(dict(scope["headers"]).get(b"x-api-key", b"").decode()).strip(" \x00")

    def hit(self, key: str, now: float) -> float:
        return super().hit(key, now) if key else 0.0


@pytest.mark.parametrize("make", [by_key, Plain.subject])
def test_empty_or_missing_key_is_limited(make: Make) -> None:
    check_missing(make)


def test_planted_free_key_is_found() -> None:
    with pytest.raises(AssertionError, match="no limit"):
        check_missing(EmptyIsFree.subject)


def test_empty_identity_of_a_demand_is_limited() -> None:
    throttle = throttle_for_tests(user_limit=f"{LIMIT}/minute")
    verdicts = [throttle.try_admit(Demand(user="")).admitted for _ in range(LIMIT + 3)]
    assert verdicts == [True] * LIMIT + [False] * 3


COLLIDING = [
    ((b"x-api-key", b"203.0.113.7"), "198.51.100.1"),
    ((b"x-api-key", b"address:203.0.113.7"), "198.51.100.1"),
    ((b"x-api-key", b"key:a"), "198.51.100.1"),
    ((b"x-api-key", b"a"), "198.51.100.1"),
    ((b"x-api-key", b"a/b"), "198.51.100.1"),
]


def check_collisions(make: Make) -> None:
    subject = make()
    subject.passed(LIMIT, client="203.0.113.7")
    for header, client in COLLIDING:
        assert subject.ask(client, headers=[header]).status == 200, f"{header} is somebody else's key"


class Composed(Plain):
    def key(self, scope: Any) -> str:
        headers = dict(scope["headers"])
        return headers.get(b"x-api-key", b"").decode().rpartition(":")[2] or super().key(scope)


def test_keys_do_not_collide_with_addresses_or_each_other() -> None:
    check_collisions(by_key)


def test_planted_collision_is_found() -> None:
    with pytest.raises(AssertionError, match="somebody else"):
        check_collisions(Composed.subject)


def check_size(make: Make) -> None:
    subject = make()
    for n in range(20):
        subject.ask(headers=[(b"x-api-key", b"%d" % n + b"k" * KIB_64)])
    assert subject.remembered() <= 1, "64 KiB of a client's text is a key"


class Verbatim(Plain):
    def key(self, scope: Any) -> str:
        return str(dict(scope["headers"])[b"x-api-key"].decode())


@pytest.mark.parametrize("make", [by_key, Plain.subject])
def test_key_state_is_short(make: Make) -> None:
    check_size(make)


def test_planted_long_key_is_found() -> None:
    with pytest.raises(AssertionError, match="64 KiB"):
        check_size(Verbatim.subject)


def test_identity_is_16_hex_digits_whatever_the_key() -> None:
    throttle = throttle_for_tests(identity="bearer")
    from autoglm_throttle.asgi import RequestClassifier, RouteTable

    callers = RequestClassifier(throttle.settings, RouteTable())
    for key in (b"a", b"k" * 8000, b"sk-\x7f"):
        user = callers.demand(
            {"headers": [(b"authorization", b"Bearer " + key)], "client": ("1.2.3.4", 1)}
        ).user
        assert len(user) == 16
        assert int(user, 16) >= 0
