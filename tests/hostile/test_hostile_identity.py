"""Forged identities: one caller stays one caller, however it is spelled, and pays for what it invents."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Iterator
from typing import Any

import pytest

from autoglm_throttle.asgi import Caller
from autoglm_throttle.settings import Settings
from autoglm_throttle.types.identity import CallerHasher
from tests.asgi.run_app import http_scope
from tests.hostile.attacks import Attack
from tests.hostile.limited_app import LIMIT, PROXY, STRANGER, Fields, LimitedApp

MANY = 60
TRUSTED: dict[str, Any] = {"trusted_proxies": "10.0.0.0/8"}
KEYS: dict[str, Any] = {"identity": "header:x-api-key"}
BEARER: dict[str, Any] = {"identity": "bearer"}
SECRET = "0123456789abcdef-secret"


def forwarded(*lines: str) -> Fields:
    return [(b"x-forwarded-for", line.encode("latin-1")) for line in lines]


def key(*values: bytes, name: bytes = b"x-api-key") -> Fields:
    return [(name, value) for value in values]


CHAINS = {
    "an address in front": lambda n: forwarded(f"198.18.0.{n}, 203.0.113.9"),
    "an address of the proxies in front": lambda n: forwarded(f"10.0.0.{n}, 203.0.113.9"),
    "a line of its own": lambda n: forwarded(f"198.18.0.{n}", "203.0.113.9"),
    "a line of its own that ends with a comma": lambda n: forwarded(f"198.18.0.{n},", "203.0.113.9"),
    "forty elements in front": lambda n: forwarded(f"198.18.0.{n}," * 40 + "203.0.113.9"),
    "forty proxies in front": lambda n: forwarded(f"198.18.0.{n}," + "10.0.0.1," * 40 + "203.0.113.9"),
    "64 KiB of commas in front": lambda n: forwarded(f"198.18.0.{n}" + "," * 65_536 + "203.0.113.9"),
    "quotes around": lambda n: forwarded(f'"198.18.0.{n}, 203.0.113.9'),
    "a NUL in front": lambda n: forwarded(f"198.18.0.{n}\0, 203.0.113.9"),
    "another port each time": lambda n: forwarded(f"203.0.113.9:{1024 + n}"),
    "blanks and tabs": lambda n: forwarded(f"198.18.0.{n},\t 203.0.113.9 \t"),
}
"""How a client spoils the chain to which a trusted proxy appends the client's address."""


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_spoiled_chain_keeps_the_last_untrusted_hop(attack: Attack, chain: Any) -> None:
    with attack("identity: X-Forwarded-For chains through a trusted proxy", times=MANY):
        app = LimitedApp(**TRUSTED)
        assert app.admitted_fields((chain(n) for n in range(MANY)), PROXY) == LIMIT
        assert app.users == 1
        # The same caller without the forgery.
        assert app.admitted_fields([forwarded("203.0.113.9")], PROXY) == 0


@pytest.mark.parametrize("settings", [{}, TRUSTED], ids=["no proxy", "another proxy"])
def test_chain_of_a_stranger_is_ignored(attack: Attack, settings: dict[str, Any]) -> None:
    with attack("identity: X-Forwarded-For of a peer that is no proxy", times=MANY):
        app = LimitedApp(**settings)
        spoofed = (forwarded(f"198.18.0.{n}, 10.0.0.1, 10.0.0.2") for n in range(MANY))
        assert app.admitted_fields(spoofed) == LIMIT
        assert app.users == 1


OTHER_FIELDS = (
    *("forwarded", "x-real-ip", "x-client-ip", "client-ip", "cf-connecting-ip", "true-client-ip"),
    *("x-cluster-client-ip", "fastly-client-ip", "x-forwarded", "forwarded-for", "x-original-forwarded-for"),
    *("x-forwarded-host", "x-host", "host", "via", "x-remote-ip", "x-remote-addr", "x-originating-ip"),
)


@pytest.mark.parametrize("client", [STRANGER, PROXY], ids=["stranger", "proxy"])
def test_other_address_fields_are_ignored(attack: Attack, client: Any) -> None:
    with attack("identity: other fields that name an address", times=len(OTHER_FIELDS)):
        app = LimitedApp(**TRUSTED)
        fields = [[(name.encode(), b"198.18.0.%d" % n)] for n, name in enumerate(OTHER_FIELDS)]
        assert app.admitted_fields(fields, client) == LIMIT
        assert app.users == 1


def test_caller_inside_a_trusted_network_chooses_its_address(attack: Attack) -> None:
    with attack(
        "identity: a caller inside TRUSTED_PROXIES names other addresses",
        degraded="a trusted network is believed: list the proxies, not the network of the clients",
        times=MANY,
    ):
        app = LimitedApp(**TRUSTED)
        assert app.admitted_fields((forwarded(f"198.18.0.{n}") for n in range(MANY)), PROXY) == MANY


SPELLINGS = {
    "IPv4": ("203.0.113.9", "203.0.113.9:80", "[203.0.113.9]:80", "::ffff:203.0.113.9", "::FFFF:cb00:7109"),
    "mapped": (
        "[::ffff:203.0.113.9]:443",
        "0:0:0:0:0:ffff:203.0.113.9",
        "::ffff:203.0.113.9%eth0",
        "203.0.113.9",
    ),
    "IPv6": (
        *("2001:db8::1", "2001:DB8::1", "2001:0db8:0000:0000:0000:0000:0000:0001", "2001:db8:0::0:1"),
        *("[2001:db8::1]", "[2001:db8::1]:443", "2001:db8::1%eth0", "[2001:db8::1%25eth0]:1"),
        *("2001:db8::0.0.0.1", "2001:db8:0:0:ffff:ffff:ffff:ffff"),
    ),
    "link-local": ("fe80::1%eth0", "fe80::1%1", "fe80::1", "fe80::1%", "fe80::1%%", "fe80::ffff%a"),
}


@pytest.mark.parametrize("texts", SPELLINGS.values(), ids=SPELLINGS)
@pytest.mark.parametrize("by", ["peer", "chain"])
def test_spellings_of_one_address_are_one_caller(attack: Attack, texts: tuple[str, ...], by: str) -> None:
    with attack("identity: spellings of one address", times=2 * len(texts)):
        app = LimitedApp(**TRUSTED)
        twice = (*texts, *reversed(texts))
        if by == "peer":
            admitted = app.admitted(http_scope("/x", client=(text, 1)) for text in twice)
        else:
            admitted = app.admitted_fields((forwarded(text) for text in twice), PROXY)
        assert (admitted, app.users) == (LIMIT, 1)


def test_zone_ids_are_one_caller(attack: Attack) -> None:
    with attack("identity: another zone id for each request", times=MANY):
        app = LimitedApp()
        assert app.admitted(http_scope("/x", client=(f"fe80::1%{n}", 1)) for n in range(MANY)) == LIMIT


NO_ADDRESSES = ("1", "3405803785", "0xcb.0.0x71.9", "0313.0.0161.011", "203.0.113.09", "203.0.113", "a", "_x")
"""Text that other readers take for an address. The rightmost element is written by a trusted proxy."""


def test_texts_that_are_no_address_are_counted_as_the_proxy(attack: Attack) -> None:
    with attack("identity: octal, hexadecimal and short addresses", times=len(NO_ADDRESSES)):
        app = LimitedApp(**TRUSTED)
        assert app.admitted_fields((forwarded(text) for text in NO_ADDRESSES), PROXY) == LIMIT
        assert app.users == 1


def walked(network: str, prefix: int, count: int) -> Iterator[Any]:
    """Yield requests from the first addresses of networks inside a larger one."""
    first = int(ipaddress.ip_network(network).network_address)
    for n in range(count):
        yield http_scope("/x", client=(str(ipaddress.IPv6Address(first + (n << (128 - prefix)))), 1))


def test_walker_through_a_64_is_one_caller(attack: Attack) -> None:
    with attack("identity: a walker through a /64", times=1000):
        app = LimitedApp()
        assert app.admitted(walked("2001:db8::/64", 128, 1000)) == LIMIT


def test_walker_through_a_48_gains_no_more_than_max_users(attack: Attack) -> None:
    with attack(
        "identity: a walker through a /48",
        degraded="each /64 is a caller, until MAX_USERS of them are exhausted; ipv6_prefix=48 counts one",
        times=3000,
    ):
        users = 200
        app = LimitedApp(max_users=users)
        # Four requests from each: exhausted callers are not replaced, and newcomers share one limit.
        scopes = (scope for scope in walked("2001:db8::/48", 64, 750) for _ in range(LIMIT + 1))
        assert app.admitted(dict(scope) for scope in scopes) <= (users + 1) * LIMIT
        assert app.users <= users + 1
        coarse = LimitedApp(ipv6_prefix=48)
        assert coarse.admitted(walked("2001:db8::/48", 64, 750)) == LIMIT


def test_full_table_keeps_the_exhausted_and_serves_newcomers(attack: Attack) -> None:
    with attack("identity: a walker fills the table of users", times=3000):
        app = LimitedApp(max_users=100)
        assert app.admitted(http_scope("/x", client=STRANGER) for _ in range(LIMIT + 1)) == LIMIT
        scopes = (scope for scope in walked("2001:db8::/48", 64, 750) for _ in range(LIMIT + 1))
        app.admitted(dict(scope) for scope in scopes)
        assert app.admitted(http_scope("/x", client=STRANGER) for _ in range(LIMIT)) == 0
        newcomer = ("203.0.113.77", 1)
        assert app.admitted(http_scope("/x", client=newcomer) for _ in range(LIMIT)) == LIMIT


DUPLICATES = {
    "the same twice": lambda n: key(b"mine", b"mine"),
    "mine, then another": lambda n: key(b"mine", b"other-%d" % n),
    "mine among fifty": lambda n: key(b"mine", *(b"%d-%d" % (n, m) for m in range(50))),
    "upper case behind": lambda n: key(b"mine") + key(b"other-%d" % n, name=b"X-API-KEY"),
    "blanks around": lambda n: key(b" " * (n % 9) + b"mine" + b"\t" * (n % 7)),
}


@pytest.mark.parametrize("fields", DUPLICATES.values(), ids=DUPLICATES)
def test_duplicate_keys_are_one_caller(attack: Attack, fields: Any) -> None:
    with attack("identity: duplicate and case-varied key fields", times=MANY):
        app = LimitedApp(**KEYS)
        assert app.admitted_fields(fields(n) for n in range(MANY)) == LIMIT
        assert app.users == 2, "the key, and its address"


UNUSABLE: dict[str, bytes] = {
    "empty": b"",
    "blanks": b"  \t ",
    "8 KiB and a byte": b"k" * 8193,
    "64 KiB": b"k" * 65_536,
    "NUL": b"mine\0",
    "a line feed": b"mine\nx-priority: high",
    "CR LF": b"mine\r\nx-priority: high",
    "DEL": b"mine\x7f",
    "UTF-8": "ключ".encode(),
    "Latin-1": b"cl\xe9",
    "no UTF-8": b"\xff\xfe\xfd",
    "an escape": b"\x1b[31mmine",
}


@pytest.mark.parametrize("value", UNUSABLE.values(), ids=UNUSABLE)
@pytest.mark.parametrize("identity", [KEYS, BEARER], ids=["header", "bearer"])
def test_unusable_key_counts_as_the_address(attack: Attack, identity: dict[str, Any], value: bytes) -> None:
    with attack("identity: empty, huge, NUL and non-ASCII keys", times=MANY):
        app = LimitedApp(**identity)
        field = b"x-api-key" if identity is KEYS else b"authorization"
        prefix = b"" if identity is KEYS else b"Bearer "
        # Another suffix each time: none of these may become a caller.
        suffixed = (prefix + (value + b"%d" % n if value.strip() else value + b" " * n) for n in range(MANY))
        assert app.admitted_fields(key(text, name=field) for text in suffixed) == LIMIT
        assert app.users == 1
        assert not app.oddities.get("malformed_scope", 0)


def test_invented_keys_gain_no_more_than_the_address_factor(attack: Attack) -> None:
    with attack("identity: an invented key for each request", times=1000):
        app = LimitedApp(**KEYS, address_factor=2)
        assert app.admitted_fields(key(b"invented-%d" % n) for n in range(1000)) == 2 * LIMIT


BEARERS = {
    "case": (b"Bearer mine", b"bearer mine", b"BEARER mine", b"bEaReR mine"),
    "blanks": (b"Bearer mine", b"Bearer   mine", b"Bearer mine  ", b"  Bearer mine"),
}
NO_BEARERS = (
    *(b"Bearer", b"Bearer ", b"Bearer\tmine", b"Bearermine", b"Bearer:mine", b"Basic bWluZTo=", b"mine"),
    *(b'Digest username="mine"', b"Bearer\xa0mine", b"\xef\xbb\xbfBearer mine", b"Token mine"),
)


@pytest.mark.parametrize("values", BEARERS.values(), ids=BEARERS)
def test_spellings_of_one_token_are_one_caller(attack: Attack, values: tuple[bytes, ...]) -> None:
    with attack("identity: spellings of one bearer token", times=2 * len(values)):
        app = LimitedApp(**BEARER)
        assert app.admitted_fields(key(value, name=b"authorization") for value in values * 2) == LIMIT
        assert app.users == 2


def test_other_schemes_count_as_the_address(attack: Attack) -> None:
    with attack("identity: what is no bearer token", times=len(NO_BEARERS)):
        app = LimitedApp(**BEARER)
        assert app.admitted_fields(key(value, name=b"authorization") for value in NO_BEARERS) == LIMIT
        assert app.users == 1


def test_lowered_priorities_use_the_sum_of_their_limits(attack: Attack) -> None:
    with attack(
        "identity: one caller under several priorities",
        degraded="limits that differ by priority are counted separately, so they sum up",
        times=MANY,
    ):
        app = LimitedApp(user_limit_low="7/minute", user_limit_high="9/minute")
        labels = [label for _ in range(MANY // 3) for label in (b"high", b"mid", b"low")]
        assert app.admitted_fields(key(label, name=b"x-priority") for label in labels) == LIMIT + 7
        equal = LimitedApp()
        assert equal.admitted_fields(key(label, name=b"x-priority") for label in labels) == LIMIT


def plan_of(member: str) -> dict[str, Any]:
    plan = {"user_limit": "50/minute", "priority": "high", "members": [member]}
    return {**KEYS, "key_secret": SECRET, "plans": {"gold": plan}}


def test_hash_of_a_member_is_no_key_of_it(attack: Attack) -> None:
    member = CallerHasher(SECRET.encode()).hash("key", "the-key")
    with attack("identity: the hash of a plan's member as a key", times=MANY):
        app = LimitedApp(**plan_of(member))
        assert app.admitted_fields(key(member.encode()) for _ in range(MANY)) == LIMIT
        member_app = LimitedApp(**plan_of(member))
        assert member_app.admitted_fields(key(b"the-key") for _ in range(MANY)) == 50


def test_guessed_identities_of_identify_are_limited_by_address(attack: Attack) -> None:
    def identify(scope: Any) -> Caller | None:
        return Caller(dict(scope["headers"])[b"x-user"].decode())

    with attack("identity: an invented user for an unverified identify()", times=MANY):
        app = LimitedApp(identify=identify, address_factor=2)
        invented = (key(b"user %d" % n, name=b"x-user") for n in range(MANY))
        assert app.admitted_fields(invented) == 2 * LIMIT


def test_identify_that_fails_on_hostile_bytes_leaves_the_address(attack: Attack) -> None:
    def identify(scope: Any) -> Caller | None:
        return Caller(dict(scope["headers"])[b"x-user"].decode(), verified=True)

    with attack("identity: bytes that make identify() fail", times=MANY):
        app = LimitedApp(identify=identify)
        assert app.admitted_fields(key(b"\xff%d" % n, name=b"x-user") for n in range(MANY)) == LIMIT
        assert app.oddities["identify_failed"] == MANY


def public_hash(secret: bytes, kind: str, value: str) -> str:
    """Compute the hash of an identity as anybody can who has read the source."""
    return hmac.new(secret, f"{kind}:{value}".encode(), hashlib.sha256).hexdigest()[:16]


def test_hash_without_a_secret_is_guessed_with_a_shared_store(attack: Attack) -> None:
    with attack(
        "identity: hashes guessed back without KEY_SECRET",
        degraded="with REDIS_URL the key is public, so that processes agree: set KEY_SECRET",
    ):
        shared = Settings(redis_url="redis://127.0.0.1:1/0").identity_key
        assert shared is not None
        seen = CallerHasher(shared).hash("address", "203.0.113.9")
        guesses = {public_hash(shared, "address", f"203.0.113.{n}"): n for n in range(256)}
        assert guesses[seen] == 9


def test_hash_with_a_secret_or_of_one_process_is_not_guessed(attack: Attack) -> None:
    with attack("identity: hashes guessed back with KEY_SECRET, or of one process alone", times=2):
        shared = Settings(redis_url="redis://127.0.0.1:1/0").identity_key
        assert shared is not None
        for settings in (Settings(redis_url="redis://127.0.0.1:1/0", key_secret=SECRET), Settings()):
            assert settings.identity_key != shared
            seen = CallerHasher(settings.identity_key).hash("address", "203.0.113.9")
            assert seen not in {public_hash(shared, "address", f"203.0.113.{n}") for n in range(256)}
