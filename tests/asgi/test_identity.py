"""The keyed hash, and the walk along proxies against a reference walk with known elements."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable
from typing import Any, cast

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from autoglm_throttle.settings.groups.callers import CallerSettings
from autoglm_throttle.types.identity import (
    CACHE_ENTRIES,
    CACHED_LENGTH_MAX,
    HOPS_READ,
    SHARED_KEY,
    UNIX,
    CallerHasher,
    ProxyChain,
    overflow_group,
)

SECRET = b"sixteen bytes or more"

# --- the hash ---

values = st.text(st.characters(), max_size=CACHED_LENGTH_MAX + 10)


def test_hash_is_kept_and_other_names_are_hashed() -> None:
    identity = CallerHasher(SECRET)
    assert identity.text("0123456789abcdef") == "0123456789abcdef"
    for name in (
        "",
        "0123456789abcde",
        "0123456789abcdef0",
        "0123456789ABCDEF",
        "0123456789abcdeg",
        "somebody",
    ):
        assert identity.text(name) == identity.hash("user", name)


@given(kind=st.sampled_from(["address", "key", "user", "group"]), value=values)
def test_an_identity_is_the_start_of_an_hmac(kind: str, value: str) -> None:
    message = f"{kind}:{value}".encode("utf-8", "surrogatepass")
    expected = hmac.new(SECRET, message, hashlib.sha256).hexdigest()[:16]
    identity = CallerHasher(SECRET)
    assert (
        identity.hash(kind, value)
        == identity.hash(kind, value)
        == CallerHasher(SECRET).hash(kind, value)
        == expected
    )


@given(value=st.text(min_size=3))
def test_an_identity_never_contains_the_value(value: str) -> None:
    text = CallerHasher(SECRET).hash("key", value)
    assert len(text) == 16
    assert set(text) <= set("0123456789abcdef")
    assume(not (set(value.lower()) <= set("0123456789abcdef")))
    assert value not in text


def test_kinds_and_secrets_keep_identities_apart() -> None:
    ours, theirs = CallerHasher(SECRET), CallerHasher(b"another secret, also long")
    texts = {who.hash(kind, "10.0.0.1") for who in (ours, theirs) for kind in ("address", "key", "user")}
    assert len(texts) == 6


def test_lone_surrogates_and_long_values_are_hashed() -> None:
    identity = CallerHasher(SECRET)
    odd = ["\udcff", "\x00", "a\nb", "k" * CACHED_LENGTH_MAX, "k" * (CACHED_LENGTH_MAX + 1), "k" * 65536]
    assert len({identity.hash("key", value) for value in odd}) == len(odd)


def test_missing_secret_is_drawn_once_per_process() -> None:
    assert (
        CallerHasher().hash("key", "x")
        == CallerHasher(None).hash("key", "x")
        != CallerHasher(SECRET).hash("key", "x")
    )


def test_shared_secret_gives_same_key_in_each_process() -> None:
    assert CallerHasher(SHARED_KEY).hash("address", "10.0.0.1") == "bb671e80479af3f5"
    assert len(SHARED_KEY) >= 16


def test_long_values_are_not_kept() -> None:
    identity = CallerHasher(SECRET)
    for n in range(100):
        identity.hash("key", f"{n:0{CACHED_LENGTH_MAX + 1}}")
    assert identity._cached_hash.cache_info().currsize == 0
    assert identity._cached_hash.cache_info().maxsize == CACHE_ENTRIES


# --- the walk ---

PROXIES = ("10.0.0.0/8", "192.0.2.7", "2001:db8:aaaa::/48")
TRUSTED = ("10.0.0.1", "10.9.9.9", "192.0.2.7", "2001:db8:aaaa::1", "2001:db8:aaaa:1::2")
STRANGERS = ("1.2.3.4", "192.0.2.8", "11.0.0.1", "2001:db8:bbbb::1", "2001:db8:bbbb:0:ffff::2", "fe80::5")
GARBAGE = (
    *("", "unknown", "_hidden", "1.2.3", "1.2.3.4.5", "999.1.1.1", "01.2.3.4", "::g", "[::1", "::1]"),
    *("1.2.3.4:", "1.2.3.4:x", "1.2.3.4:-1", "1.2.3.4:\xb2", "[::1]x", "[::1]:", "[::1]:\xb9", "[]", "[]:80"),
    *("for=1.2.3.4", '"1.2.3.4"', "1.2.3.4 5.6.7.8", "1.2.3.4;5.6.7.8", "example.org", "\x00", "\xff" * 50),
)

Element = tuple[str, str | None]
"""What stands in the header, and the address that it means; None if it means nothing."""


@st.composite
def elements(draw: st.DrawFn) -> Element:
    if draw(st.integers(0, 7)) == 0:
        return draw(st.sampled_from(GARBAGE)), None
    address = draw(st.sampled_from(TRUSTED * 2 + STRANGERS))
    port = draw(st.integers(0, 65535))
    if ":" in address:
        zone = draw(st.sampled_from(["", "%eth0", "%1"]))
        forms = (
            address,
            f"{address}{zone}",
            f"[{address}]:{port}",
            f"[{address}]",
            f"[{address}{zone}]:{port}",
        )
        upper = draw(st.booleans())
        text = draw(st.sampled_from(forms))
        return text.upper() if upper else text, address
    plain = (address, f"{address}:{port}", f"::ffff:{address}", f"[::ffff:{address}]:{port}")
    return draw(st.sampled_from(plain)), address


def trusting(proxies: Iterable[str] = ()) -> ProxyChain:
    return ProxyChain(proxies, CallerSettings().ipv6_prefix)


def slow_client(peer: str, chain: list[Element]) -> str:
    networks = [ipaddress.ip_network(entry) for entry in PROXIES]
    hop = peer
    for _, address in reversed(chain[-HOPS_READ:]):
        if address is None or not any(ipaddress.ip_address(hop) in network for network in networks):
            break
        hop = address
    parsed = ipaddress.ip_address(hop)
    return str(ipaddress.ip_network(f"{hop}/64", strict=False)[0]) if parsed.version == 6 else hop


@given(
    peer=st.sampled_from(TRUSTED * 3 + STRANGERS),
    chain=st.lists(elements(), max_size=30),
    cuts=st.sets(st.integers(0, 29)),
    blank=st.sampled_from(["", " ", "\t "]),
)
def test_the_walk_is_the_slow_one(peer: str, chain: list[Element], cuts: set[int], blank: str) -> None:
    lines: list[list[str]] = [[]]
    for position, (text, _) in enumerate(chain):
        if position in cuts and lines[-1]:
            lines.append([])
        lines[-1].append(blank + text + blank)
    forwarded = [",".join(line).encode("latin-1") for line in lines] if chain else []
    assert trusting(PROXIES).client(peer, forwarded) == slow_client(peer, chain)


@given(
    peer=st.sampled_from([*STRANGERS, "", "testclient"]),
    forwarded=st.lists(st.binary(max_size=60), max_size=4),
)
def test_untrusted_peer_cannot_change_its_address(peer: str, forwarded: list[bytes]) -> None:
    for proxies in (trusting(), trusting(PROXIES)):
        assert proxies.client(peer, forwarded) == proxies.client(peer, []) == proxies.group(peer)


@given(forged=st.lists(st.sampled_from([*TRUSTED, *STRANGERS, *GARBAGE]), max_size=25))
def test_elements_left_of_first_untrusted_are_ignored(forged: list[str]) -> None:
    header = ", ".join([*forged, "1.2.3.4", "10.9.9.9"]).encode("latin-1")
    assert trusting(PROXIES).client("10.0.0.1", [header]) == "1.2.3.4"


@given(forwarded=st.lists(st.binary(max_size=200), max_size=3))
def test_no_header_of_a_trusted_peer_breaks_the_walk(forwarded: list[bytes]) -> None:
    found = trusting(PROXIES).client("10.0.0.1", forwarded)
    assert ipaddress.ip_address(found), "always an address, never text from the header"


@pytest.mark.parametrize(
    ("element", "client"),
    [
        ("1.2.3.4", "1.2.3.4"),
        ("1.2.3.4:80", "1.2.3.4"),
        ("[2001:db8::1]:443", "2001:db8::"),
        ("[2001:db8::1]", "2001:db8::"),
        ("2001:db8::1", "2001:db8::"),
        ("2001:DB8:0:0:FFFF::1", "2001:db8::"),
        ("fe80::1%eth0", "fe80::"),
        ("[fe80::1%eth0]:80", "fe80::"),
        ("::ffff:1.2.3.4", "1.2.3.4"),
        ("[::ffff:1.2.3.4]:80", "1.2.3.4"),
        ("::ffff:102:304", "1.2.3.4"),
        ("unknown", "10.0.0.1"),
        ("_name", "10.0.0.1"),
        ("", "10.0.0.1"),
        ("1.2.3.4:", "10.0.0.1"),
        ("1.2.3.4:\xb2", "10.0.0.1"),
        ("[2001:db8::1", "10.0.0.1"),
        ("[2001:db8::1]443", "10.0.0.1"),
        ("[2001:db8::1]:", "10.0.0.1"),
    ],
)
def test_forms_of_an_element(element: str, client: str) -> None:
    assert trusting(["10.0.0.0/8"]).client("10.0.0.1", [element.encode("latin-1")]) == client


def test_a_malformed_element_ends_the_walk_at_the_last_good_hop() -> None:
    proxies = trusting(["10.0.0.0/8"])
    assert proxies.client("10.0.0.1", [b"1.2.3.4, junk, 10.0.0.2"]) == "10.0.0.2"
    assert proxies.client("10.0.0.1", [b"1.2.3.4, junk"]) == "10.0.0.1"


def test_if_all_hops_are_trusted_the_leftmost_is_the_client() -> None:
    assert trusting(["10.0.0.0/8"]).client("10.0.0.1", [b"10.0.0.4", b"10.0.0.3,10.0.0.2"]) == "10.0.0.4"


def test_only_the_last_twenty_elements_are_read() -> None:
    proxies = trusting(["10.0.0.0/8"])
    for trusted, client in ((HOPS_READ - 1, "1.2.3.4"), (HOPS_READ, "10.7.0.0"), (5000, "10.7.0.0")):
        chain = ["1.2.3.4", *["10.7.0.0"] * trusted]
        assert proxies.client("10.0.0.1", [", ".join(chain).encode()]) == client


def test_peer_rewritten_by_server_is_not_read_twice() -> None:
    assert trusting(["10.0.0.0/8"]).client("1.2.3.4", [b"6.6.6.6, 1.2.3.4"]) == "1.2.3.4"


def test_a_unix_socket_is_one_caller_unless_it_is_trusted() -> None:
    assert trusting().client("", [b"1.2.3.4"]) == UNIX
    assert trusting(["10.0.0.0/8"]).client("", [b"1.2.3.4"]) == UNIX
    unix = trusting(["unix"])
    assert unix.client("", [b"1.2.3.4"]) == "1.2.3.4"
    assert unix.client("", []) == unix.client("", [b"junk"]) == UNIX
    assert unix.client("testclient", [b"1.2.3.4"]) == "testclient", "unix is the empty peer, no other"
    assert (unix.trusts(""), unix.trusts("testclient"), trusting().trusts("")) == (
        True,
        False,
        False,
    )


def test_a_mapped_peer_is_its_ipv4_address() -> None:
    proxies = trusting(["10.0.0.0/8"])
    assert proxies.client("::ffff:10.0.0.1", [b"1.2.3.4"]) == "1.2.3.4"
    assert proxies.client("::ffff:1.2.3.4", [b"6.6.6.6"]) == "1.2.3.4"


@pytest.mark.parametrize(
    ("prefix", "group"),
    [(128, "2001:db8:1:2:3:4:5:6"), (64, "2001:db8:1:2::"), (48, "2001:db8:1::"), (32, "2001:db8::")],
)
def test_ipv6_callers_are_separated_by_prefix(prefix: int, group: str) -> None:
    proxies = ProxyChain((), prefix)
    assert proxies.group("2001:db8:1:2:3:4:5:6") == group
    assert proxies.group("1.2.3.4") == "1.2.3.4", "IPv4 callers by address"


@given(address=st.ip_addresses(v=6), prefix=st.integers(32, 128))
def test_a_prefix_is_that_of_the_standard_library(address: ipaddress.IPv6Address, prefix: int) -> None:
    assume(address.ipv4_mapped is None)
    network = ipaddress.ip_network(f"{address}/{prefix}", strict=False)
    assert ProxyChain((), prefix).group(str(address)) == str(network.network_address)


def test_whether_the_header_can_matter() -> None:
    assert not trusting().reads_header
    assert trusting(["unix"]).reads_header
    assert trusting(["10.0.0.1"]).reads_header


def test_a_proxy_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="nonsense"):
        trusting(["nonsense"])


def test_endless_addresses_are_not_kept() -> None:
    proxies = trusting(["10.0.0.0/8"])
    for n in range(CACHE_ENTRIES + 500):
        proxies.client("10.0.0.1", [f"1.{n >> 16}.{n >> 8 & 255}.{n & 255}".encode()])
    assert cast("Any", proxies.group).cache_info().currsize <= CACHE_ENTRIES
    assert cast("Any", proxies.trusts).cache_info().currsize <= CACHE_ENTRIES


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("1.2.3.4", "1.2.3.0/24"),
        ("::ffff:1.2.3.4", "1.2.3.0/24"),
        ("2001:db8:1:2::", "2001:db8:1::/48"),
        ("unix", "unix"),
        ("", "unix"),
        ("testclient", "unix"),
    ],
)
def test_neighbourhoods(address: str, group: str) -> None:
    assert overflow_group(address) == group
