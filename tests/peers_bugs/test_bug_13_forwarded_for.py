"""Bug 13: X-Forwarded-For trusted from anybody, or never usable behind a proxy."""

from __future__ import annotations

from typing import Any

import pytest

from tests.peers_bugs.limiter import LIMIT, Make, Plain, Subject, ours

PROXY = "10.0.0.1"


def behind_proxy() -> Subject:
    return ours(trusted_proxies="10.0.0.0/8")


def forwarded(text: str) -> list[tuple[bytes, bytes]]:
    return [(b"x-forwarded-for", text.encode())]


def check_forgery(make: Make) -> None:
    subject = make()
    answers = [subject.ask(headers=forwarded(f"198.51.100.{n}")).status for n in range(20)]
    assert answers.count(200) == LIMIT, "a forged header is a new identity"
    subject = make()
    answers = [subject.ask(PROXY, headers=forwarded(f"198.51.100.{n}, 192.0.2.9")).status for n in range(20)]
    assert answers.count(200) == LIMIT, "what a client wrote in front of the proxy's element is believed"


def check_usable(make: Make) -> None:
    subject = make()
    for n in range(5):
        passed = subject.passed(LIMIT + 1, client=PROXY, headers=forwarded(f"192.0.2.{n}"))
        assert passed == LIMIT, "all clients of the proxy are one"


class Right(Plain):
    def key(self, scope: Any) -> str:
        peer = str(scope["client"][0])
        header = dict(scope["headers"]).get(b"x-forwarded-for", b"").decode()
        return header.rpartition(",")[2].strip() if peer == PROXY and header else peer


class TrustsAll(Plain):
    def key(self, scope: Any) -> str:
        return str(dict(scope["headers"])[b"x-forwarded-for"].decode()).partition(",")[0]


@pytest.mark.parametrize("make", [behind_proxy, Right.subject])
def test_forged_header_is_no_new_identity(make: Make) -> None:
    check_forgery(make)


@pytest.mark.parametrize("make", [behind_proxy, Right.subject])
def test_clients_behind_a_proxy_are_distinguished(make: Make) -> None:
    check_usable(make)


def test_planted_trust_is_found() -> None:
    with pytest.raises(AssertionError, match="forged"):
        check_forgery(TrustsAll.subject)


def test_planted_distrust_is_found() -> None:
    with pytest.raises(AssertionError, match="are one"):
        check_usable(Plain.subject)


def test_header_is_not_even_read_without_trusted_proxies() -> None:
    subject = ours()
    answers = [subject.ask(headers=forwarded(f"198.51.100.{n}")).status for n in range(20)]
    assert answers.count(200) == LIMIT
